"A model, an objective and a loader that train in milliseconds, importable by the processes of the tests beside it."

import os
import signal
from pathlib import Path

import torch
from torch import nn

from hypvl.config import from_dict
from hypvl.geometry.spaces import Product
from hypvl.losses.objective import Objective, family_rows
from hypvl.training.loop import TrainConfig, Trainer, make_accelerator

STREAMS = {"image": 10, "box_image": 10, "text": 7, "box_text": 7}


class Linear2(nn.Module):
    "Two linear towers with dropout before a product of two hyperbolic planes; boxes share the towers."

    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.image, self.text, self.drop, self.geometry = (
            nn.Linear(10, 4),
            nn.Linear(7, 4),
            nn.Dropout(dropout),
            Product(2, 2),
        )
        for p in (*self.image.parameters(), *self.text.parameters()):
            nn.init.normal_(p, std=0.4, generator=generator)

    def embed(self, batch, streams):
        towers = {s: self.image if "image" in s else self.text for s in streams}
        return {
            s: self.geometry.lift(
                self.drop(towers[s](batch[s])), "image" if "image" in s else "text"
            )
            for s in streams
        }


class Batches:
    "The same samples however many processes and micro-batches there are; each process takes its part."

    def __init__(self, whole, rank=0, processes=1, pieces=1):
        self.whole, self.rank, self.processes, self.pieces, self.index = (
            whole,
            rank,
            processes,
            pieces,
            0,
        )

    def batch(self, index):
        generator = torch.Generator().manual_seed(index)
        return {s: torch.randn(self.whole, n, generator=generator) for s, n in STREAMS.items()}

    def __iter__(self):
        while True:
            update, piece = divmod(self.index, self.pieces)
            parts = {
                s: x.chunk(self.processes)[self.rank].chunk(self.pieces)[piece]
                for s, x in self.batch(update).items()
            }
            self.index += 1
            yield parts

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


def objective(variant="official"):
    return Objective(family_rows("phyclip", boxes=True, variant=variant))


class Died(Exception):
    "Stands for a crash of all processes."


def trainer(config, out, accelerator, callbacks=()):
    "A trainer of this process's part."
    settings = from_dict(TrainConfig, config["train"])
    loader = Batches(
        settings.batch_size,
        accelerator.process_index,
        accelerator.num_processes,
        settings.accumulate,
    )
    return Trainer(
        Linear2(dropout=config.get("dropout", 0.0)),
        objective(config.get("variant", "official")),
        loader,
        settings,
        out,
        accelerator,
        callbacks,
    )


def train(config, out):
    "A job: train, and be killed after the step `kill`, if it is given and the run has not died before."
    grave = Path(out) / "died"

    def kill(trainer, row):
        if row["step"] == config.get("kill") and not grave.exists():
            grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trainer(config, Path(out) / "run", make_accelerator(device="cpu"), [kill]).fit()
    return {"steps": config["train"]["steps"]}
