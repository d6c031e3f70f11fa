"Two processes that talk through gloo compute what one process computes with the whole batch."

import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from hypvl.losses.contrast import gather_processes
from hypvl.training.metrics import read_metrics
from hypvl.training.update import Step, backward, make_accelerator

sys.path.insert(0, str(Path(__file__).parent))
from tiny_training import Batches, Died, Linear2, objective, trainer  # noqa: E402

BATCH = 12
CONFIG = dict(
    train=dict(
        steps=6,
        batch_size=BATCH,
        lr=1e-2,
        warmup=1,
        log_every=1,
        checkpoint_every=2,
        progress=False,
        tensorboard=False,
    )
)


def gradients(accelerator, variant, pieces):
    "Loss and gradients of one update of the local part of the batch, in so many micro-batches."
    rank, processes = accelerator.process_index, accelerator.num_processes
    step = Step(
        Linear2().double(),
        objective(variant),
        gather_processes if processes > 1 else None,
        processes,
    )
    module = accelerator.prepare(step)
    source = iter(Batches(BATCH, rank, processes, pieces))
    batches = [{s: x.double() for s, x in next(source).items()} for _ in range(pieces)]
    result = backward(module, batches, 0, accelerator, grads=True)
    return dict(
        loss=accelerator.reduce(result.loss.clone(), "mean"),
        **{n: p.grad for n, p in step.model.named_parameters()},
    )


def die(t, row):
    if row["step"] == 5:
        raise Died


def weights(t):
    return {n: w.clone() for n, w in t.model.state_dict().items()}


def trained(accelerator, folder, config=CONFIG):
    "Final weights of a run."
    t = trainer(config, folder, accelerator)
    t.fit()
    return weights(t)


def worker(rank, port, folder):
    "One of two processes: updates, a training run, and a run that dies and is resumed."
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )
    torch.set_num_threads(1)
    accelerator, folder, dropped = (
        make_accelerator(device="cpu"),
        Path(folder),
        CONFIG | dict(dropout=0.3),
    )
    assert accelerator.num_processes == 2
    found = {f"{v}{n}": gradients(accelerator, v, n) for v in ("official", "paper") for n in (1, 3)}
    found["two"] = trained(accelerator, folder / "two")
    found["whole"] = trained(accelerator, folder / "whole", dropped)
    with pytest.raises(Died):
        trainer(dropped, folder / "parts", accelerator, [die]).fit()
    torch.manual_seed(99)
    found["parts"] = trained(accelerator, folder / "parts", dropped)
    with pytest.raises(Died):
        trainer(dropped, folder / "dead", accelerator, [die]).fit()
    torch.save(found, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "What two processes left."
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port, str(folder)), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"rank{r}.pt", weights_only=True) for r in range(2)]


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_loss_and_gradient_equal_the_big_batch(ranks, variant):
    one = gradients(make_accelerator(device="cpu"), variant, 1)
    assert one["geometry.log_curvature"].abs().min() > 0 and one["geometry.logit_scale"].abs() > 0
    for found in (rank[f"{variant}{pieces}"] for rank in ranks for pieces in (1, 3)):
        for name, value in one.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9)


def test_training_equals_one_process(ranks, folder, tmp_path):
    one = trained(make_accelerator(device="cpu"), tmp_path)
    for rank in ranks:
        for name, w in one.items():
            torch.testing.assert_close(rank["two"][name], w, rtol=1e-4, atol=1e-6)
    a, b = read_metrics(tmp_path), read_metrics(folder / "two")
    assert set(a) == set(b)
    for column in ("loss", "contrast/image_text", "grad_norm", "norm/text", "curvature"):
        torch.testing.assert_close(
            torch.tensor(b[column]), torch.tensor(a[column]), rtol=1e-3, atol=1e-5
        )


def test_a_resumed_run_is_the_same_bit_for_bit(ranks, folder):
    for rank in ranks:
        assert all(torch.equal(rank["parts"][name], w) for name, w in rank["whole"].items())
        assert not all(torch.equal(rank["two"][name], w) for name, w in rank["whole"].items())
    for name, w in ranks[0]["whole"].items():
        assert torch.equal(ranks[1]["whole"][name], w)
    a, b = (
        read_metrics(folder / n).drop(columns=["samples_per_s", "seconds"])
        for n in ("whole", "parts")
    )
    assert a.equals(b)


def test_a_checkpoint_of_two_processes_is_not_continued_by_one(folder, ranks):
    with pytest.raises(ValueError, match="is of 2 processes, now there are 1"):
        trained(make_accelerator(device="cpu"), folder / "dead", CONFIG | dict(dropout=0.3))
