"""A model, an objective and a loader that train in milliseconds.

They are importable by the processes of the tests beside this file.
"""

import os
import signal
import socket
from pathlib import Path

import torch
from torch import nn

from hypvl.config import from_dict
from hypvl.geometry.spaces import Product
from hypvl.losses.objective import FamilyObjective
from hypvl.training.config import TrainConfig
from hypvl.training.launch import run_job
from hypvl.training.loop import Trainer
from hypvl.training.update import make_accelerator


def free_port():
    "A port of this machine that nobody listens on."
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


INPUTS = {"image": 10, "box_image": 10, "text": 7, "box_text": 7}


class Linear2(nn.Module):
    "Two linear towers with dropout before a product of two hyperbolic planes."

    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.image, self.text = nn.Linear(10, 4), nn.Linear(7, 4)
        self.drop, self.geometry = nn.Dropout(dropout), Product(2, 2)
        for p in (*self.image.parameters(), *self.text.parameters()):
            nn.init.normal_(p, std=0.4, generator=generator)

    def embed(self, batch, inputs, kinds=None):
        points = {}
        for name in inputs:
            side = "image" if "image" in name else "text"
            tower = self.image if side == "image" else self.text
            points[name] = self.geometry.lift(self.drop(tower(batch[name])), side)
        return points


class Batches:
    """The same samples however many processes and micro-batches there are.

    Each process takes its part.
    """

    shared_position = True  # `index` counts batches of all processes

    def __init__(self, whole, rank=0, processes=1, pieces=1):
        self.whole, self.rank, self.processes, self.pieces = whole, rank, processes, pieces
        self.index = 0

    def batch(self, index):
        generator = torch.Generator().manual_seed(index)
        return {s: torch.randn(self.whole, n, generator=generator) for s, n in INPUTS.items()}

    def __iter__(self):
        while True:
            update, piece = divmod(self.index, self.pieces)
            parts = {}
            for name, x in self.batch(update).items():
                parts[name] = x.chunk(self.processes)[self.rank].chunk(self.pieces)[piece]
            self.index += 1
            yield parts

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


def objective(variant="official"):
    return FamilyObjective("phyclip", boxes=True, variant=variant).make()


class Died(Exception):
    "Stands for a crash of all processes."


def trainer(config, out, accelerator, callbacks=()):
    "A trainer of this process's part."
    settings = from_dict(TrainConfig, config["train"])
    rank, processes = accelerator.process_index, accelerator.num_processes
    loader = Batches(settings.batch_size, rank, processes, settings.accumulate)
    model = Linear2(dropout=config.get("dropout", 0.0))
    table = objective(config.get("variant", "official"))
    return Trainer(model, table, loader, settings, out, accelerator, callbacks)


def train(config, out):
    """A job: train, and have an accident.

    `config["fault"]` = {step, signal, rank} sends a signal to the process of this rank after a
    step, once in the life of the folder.
    """
    accelerator = make_accelerator(device="cpu", timeout=config["train"].get("peer_timeout", 600))
    fault, grave = config.get("fault") or {}, Path(out) / "died"

    def strike(trainer, row):
        here = fault.get("rank", 0) == accelerator.process_index
        if here and row["step"] == fault.get("step") and not grave.exists():
            grave.touch()
            os.kill(os.getpid(), getattr(signal, fault["signal"]))

    trainer(config, Path(out) / "run", accelerator, [strike]).fit()
    return {"steps": config["train"]["steps"]}


def become_process(rank, processes, port):
    "Tell accelerate that this is one of some processes of this machine."
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )


def attempt(out, rank=None, processes=1, port=0):
    "Run the job of a folder as one of some processes; leave the words of an error."
    torch.set_num_threads(1)
    if rank is not None:
        become_process(rank, processes, port)
    try:
        run_job(out)
    except BaseException as error:
        words = f"{type(error).__name__}: {error}"
        (Path(out) / f"error_{os.getpid()}.txt").write_text(words)
        os._exit(error.code if isinstance(error, SystemExit) else 1)
    os._exit(0)  # processes whose peers have died would wait for them
