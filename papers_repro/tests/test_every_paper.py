"""Every paper's recipes compute the same on one process, on several, and in micro-batches.

The papers are those of the registry, so that one more is covered by itself: its recipes of preset
`smoke` with their own models, rows and data, in double precision, at the end of all schedules.
"""

import signal
import subprocess
import sys

import pandas as pd
import pytest
import torch
import torch.multiprocessing as mp
from conftest import ENV
from tiny_training import become_process, free_port

from hypvl.config import config_hash, save_config
from hypvl.inputs import input_kind
from hypvl.losses.terms import gather_processes
from hypvl.models.registry import create_model
from hypvl.papers import paper_packages
from hypvl.papers.runs import starting_model, train
from hypvl.papers.study import find_paper
from hypvl.training.interruption import Interrupted
from hypvl.training.loop import Updater
from hypvl.training.metrics import fetch, read_metrics
from hypvl.training.optim import freeze
from hypvl.training.update import Step, backward, make_accelerator

BATCH = 8  # samples of an update: 8, 4 or 2 on each process
PIECES = 2  # micro-batches of a process


def recipes(paper):
    "Recipes of the first section that train, one of each model and table of rows."
    found = {}
    for recipe in paper.recipes(paper.sections[0], preset="smoke", seed=0):
        rows = [repr(row) for row in recipe.objective.make().terms]
        if recipe.train.steps:
            found.setdefault(config_hash([recipe.model, rows]), recipe)
    return list(found.values())


def double(value):
    "Floating-point numbers in double precision."
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


def part(batch, kinds, start, end):
    "Some samples of a batch."
    found = {}
    for name, value in batch.items():
        found[name] = value if input_kind(name, kinds).shared else value[start:end]
    return found


def update(recipe, batch, kinds, accelerator, pieces, now=None, training=False):
    "Log and gradients of one update of this process's samples, the last where none is named."
    rank, processes = accelerator.process_index, accelerator.num_processes
    model = starting_model(recipe)
    model.double().train(training)  # nothing is drawn without
    objective = recipe.objective.make()
    freeze(model, recipe.train.groups, objective)
    now = recipe.train.steps - 1 if now is None else now
    begin = getattr(model.geometry, "begin_step", None)
    if begin is not None:
        begin(now)
    step = Step(model, objective, kinds, gather_processes if processes > 1 else None, processes)
    module = accelerator.prepare(step) if processes > 1 else step
    size = BATCH // processes // pieces
    starts = [rank * BATCH // processes + i * size for i in range(pieces)]
    torch.manual_seed(0)
    result = backward(module, [part(batch, kinds, s, s + size) for s in starts], now, accelerator)
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    log = fetch({"loss": result.loss} | result.logs, accelerator)
    rows = [row.name for row in objective.terms if row.name in log]
    return {"log": log, "rows": rows, "grads": grads}


def worker(rank, processes, port, name, folder):
    "One of the processes."
    become_process(rank, processes, port)
    torch.set_num_threads(1)
    accelerator, found = make_accelerator(device="cpu"), []
    assert accelerator.num_processes == processes
    batches = torch.load(folder / "batches.pt", weights_only=True)
    for recipe, (batch, kinds) in zip(recipes(find_paper(name)), batches):
        pieces = (1, PIECES) if processes == 2 else (1,)
        found.append([update(recipe, batch, kinds, accelerator, n) for n in pieces])
    torch.save(found, folder / f"{processes}_{rank}.pt")
    torch.distributed.destroy_process_group()


def spawn(processes, name, folder):
    "What so many processes found, by rank."
    port = free_port()
    arguments = (processes, port, name, folder)
    mp.start_processes(worker, arguments, processes, start_method="forkserver")
    return [torch.load(folder / f"{processes}_{r}.pt", weights_only=True) for r in range(processes)]


def same(found, one, label):
    "Gradients and logged values equal to 1e-5."
    assert found["grads"].keys() == one["grads"].keys(), label
    largest = max(float(grad.norm()) for grad in one["grads"].values())
    for name, grad in one["grads"].items():
        error = float((found["grads"][name] - grad).norm())
        # what cancels to nothing is as exact as the largest gradient allows
        assert error <= 1e-5 * float(grad.norm()) + 1e-10 * largest, (label, name, error)
    assert found["log"].keys() == one["log"].keys(), label
    for name in ("loss", *found["rows"]):  # other columns may be means over processes
        value = one["log"][name]
        assert found["log"][name] == pytest.approx(value, rel=1e-5, abs=1e-9, nan_ok=True), (
            label,
            name,
        )


@pytest.mark.full
@pytest.mark.parametrize("name", paper_packages())
def test_processes_and_micro_batches_compute_what_one_process_does(name, tmp_path, smoke_data):
    paper, accelerator = find_paper(name), make_accelerator(device="cpu")
    made, batches, alone = recipes(paper), [], []
    assert made
    for recipe in made:
        data = recipe.data.prepare(smoke_data, recipe.image_size, progress=False)
        tokenizer = create_model(recipe.model, seed=0).tokenizer
        loader = recipe.data.loader(data, tokenizer, recipe.image_size, BATCH)
        batch = {key: double(value) for key, value in next(iter(loader)).items()}
        kinds = dict(loader.kinds)
        batches.append((batch, kinds))
        alone.append(update(recipe, batch, kinds, accelerator, 1))
        assert any(grad.norm() > 0 for grad in alone[-1]["grads"].values())
        pieces = update(recipe, batch, kinds, accelerator, PIECES)
        same(pieces, alone[-1], f"{recipe.name}, {PIECES} micro-batches")
    torch.save(batches, tmp_path / "batches.pt")
    for processes in (2, 4):
        for found in spawn(processes, name, tmp_path):
            for recipe, updates, one in zip(made, found, alone):
                for pieces in updates:
                    same(pieces, one, f"{recipe.name}, {processes} processes")


@pytest.mark.parametrize("name", paper_packages())
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    name, tmp_path, smoke_data, monkeypatch
):
    "Up to the last bit: the same batches, the same draws of dropout."
    recipe = recipes(find_paper(name))[-1]
    data = recipe.data.prepare(smoke_data, recipe.image_size, progress=False)
    whole = train(recipe, data, tmp_path / "whole", "cpu", progress=False)
    update = Updater.update

    def update_and_stop(updater, step, total):
        if step == 1:
            signal.raise_signal(signal.SIGTERM)
        return update(updater, step, total)

    with monkeypatch.context() as patched:
        patched.setattr(Updater, "update", update_and_stop)
        with pytest.raises(Interrupted):
            train(recipe, data, tmp_path / "parts", "cpu", progress=False)
    stopped = len(read_metrics(tmp_path / "parts"))
    assert 0 < stopped < recipe.train.steps
    parts = train(recipe, data, tmp_path / "parts", "cpu", progress=False)
    clocks = ["seconds", "samples_per_s"]
    pd.testing.assert_frame_equal(parts.drop(columns=clocks), whole.drop(columns=clocks))


@pytest.mark.full
@pytest.mark.parametrize("name", paper_packages())
def test_a_recipe_trains_in_processes_that_the_user_starts(name, root, tmp_path):
    paper = find_paper(name)
    recipes_of_main = paper.recipes(paper.sections[0], preset="smoke", seed=0)
    save_config(next(r for r in recipes_of_main if r.train.steps), tmp_path / "recipe.json")
    command = f"{sys.executable} -m torch.distributed.run --nproc_per_node 4 -m hypvl train"
    done = subprocess.run(
        [*command.split(), tmp_path / "recipe.json", "--out", tmp_path / "out", "--device", "cpu"],
        cwd=root,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert len(set(lines)) == len(lines), lines
    output = [line.partition(" ")[0] for line in lines]
    output = [word for word in output if word != "tests"]  # where the world has an evaluation set
    assert output == ["recipe", "data", "training", "done", "model"]  # the first process alone
