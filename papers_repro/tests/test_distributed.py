"""Several processes that talk through gloo compute what one computes with the whole batch.

The models are the real small towers, words included; every kind of loss term is tried, with 2 and
with 4 processes, in one piece and in micro-batches. Processes are started once per number of them.
"""

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from hypvl.geometry.spaces import Euclidean, Lorentz, Product, Sphere
from hypvl.losses.contrast import Contrast, ContrastOneWay
from hypvl.losses.entailment import Entail
from hypvl.losses.label_contrast import CandidateContrast, LabelContrast
from hypvl.losses.objective import FamilyObjective, Objective, Schedule
from hypvl.losses.terms import Context, gather_processes
from hypvl.models.registry import create_model
from hypvl.papers.agr.clipped import ClippedConfig
from hypvl.papers.syntax.syntax_loss import Syntax
from hypvl.training.callbacks import Validation
from hypvl.training.metrics import fetch, read_metrics
from hypvl.training.update import Step, backward, make_accelerator

sys.path.insert(0, str(Path(__file__).parent))
from tiny_training import (  # noqa: E402
    Batches,
    Died,
    Linear2,
    become_process,
    free_port,
    objective,
    trainer,
)

BATCH = 12
SETTINGS = dict(
    steps=6,
    batch_size=BATCH,
    lr=1e-2,
    warmup=1,
    log_every=1,
    checkpoint_every=2,
    guard=dict(every=2, grace=100),
    progress=False,
    tensorboard=False,
)
CONFIG = dict(train=SETTINGS)

# --- the cases: objectives that together have every kind of loss term and every reduction

CAPTIONS = [  # one edge, five edges, ... and from the seventh on none: the last processes have none
    ("two cats chase a dog", [1, 2, 2, 4, 2]),
    ("a red cat", [2, 2, 2]),
    ("a dog", [1, 1]),
    ("a large owl sits on a box", [2, 2, 3, 3, 3, 6, 4]),
    ("black cats", [1, 1]),
    ("a cat and a dog", [1, 1, 1, 4, 1]),
    *[(word, [0]) for word in ("cats", "dogs", "owls", "boxes", "trees", "birds")],
]
INIT, FINAL = "words@init", "words@final"
GROUPS = ("groups", "groups")
KINDS = {"target": "labels", "groups": "labels"}


def syntax_table(reduce):
    "All three terms; words stand first in the table."
    pairs = {"edge": (FINAL, FINAL), "word": (INIT, FINAL), "text": (INIT, "text")}
    rows = []
    for term, inputs in pairs.items():
        rows.append(Syntax(term, *inputs, reduce=reduce, name=f"{term} {reduce}"))
    return rows


def tables():
    "Name → objective. Rows of a table have different weights, so that no two errors cancel."
    rows = {}
    for reduction in ("mean", "sum"):
        rows[f"rows {reduction}"] = [
            Contrast("image", "text", 1.7, reduction),
            ContrastOneWay("image", "text", 1.0, reduction, "one way"),
            ContrastOneWay("box_text", "image", 0.6, reduction),
            Contrast("image+box_image", "text+box_text", 0.5, reduction, "joined"),
            LabelContrast("image", "text", *GROUPS, "mask", 0.4, reduction, "mask"),
            LabelContrast("text", "image", *GROUPS, "average", 0.3, reduction, "average"),
            Entail("text", "image", 0.7, 0.2, reduction),
        ]
    rows["index"] = [  # the words of its caption are an image's candidates
        CandidateContrast("image", FINAL, "target", 1.0, "mean", "index mean"),
        CandidateContrast("box_image", FINAL, "target", 0.1, "sum", "index sum"),
    ]
    rows["angles"] = [
        ContrastOneWay("text", "image", similarity="angle_to_specific"),
        ContrastOneWay("image", "text", 0.5, similarity="angle_to_general"),
    ]
    rows["syntax"] = [*syntax_table("mean"), *syntax_table("sum"), *syntax_table("per_text")]
    rows["means and sums"] = [
        Syntax("edge", label_weights=(1.0, 0.5, 2.0), detach="general"),
        Contrast("image", "text", 1.0, "mean"),
        Entail("text", "image", 1.0, 0.2, "sum"),
    ]
    rows["a row that rests"] = [Syntax("word", INIT, FINAL, weight=0.0), Contrast("image", "text")]
    found = {name: Objective(table) for name, table in rows.items()}
    found["delayed"] = Objective([Contrast("image", "text")], {"contrast": Schedule(delay=3)})
    for family, variant in (("phyclip", "official"), ("phyclip", "paper"), ("clip", "official")):
        found[f"{family} {variant}"] = FamilyObjective(family, variant=variant).make()
    return found


def model(**settings):
    "The real towers, narrow, in double precision."
    narrow = {"vision.channels": (4, 8), "vision.blocks": (0, 1), "vision.width": 16}
    narrow |= {"text.width": 16, "text.layers": 2, "text.heads": 2, "text.context_length": 16}
    settings = {"words": "own"} | settings
    return create_model("phyclip_tiny", seed=0, **settings, **narrow).double().eval()


def samples(tokenizer, first, last, words=None):
    "Part of the batch; captions are as long as the longest of the part, or as `words`."
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, BATCH, 3, 24, 24, generator=generator, dtype=torch.float64)
    captions = CAPTIONS[first:last]  # none is its box's: one point has no direction to itself
    text = tokenizer([caption for caption, _ in captions])
    words = words or max(len(heads) for _, heads in captions)
    head = torch.full((len(captions), words), -1, dtype=torch.int16)
    for row, (_, heads) in zip(head, captions):
        row[: len(heads)] = torch.tensor(heads, dtype=torch.int16)
    inside = (text > 0) & (text < 49406)  # neither padding nor the marks of start and end
    places = torch.arange(text.shape[1]).expand_as(text) - 1
    groups = torch.tensor([[i % 5, 5 + i % 3] for i in range(BATCH)])[first:last]
    return dict(
        image=images[0, first:last],
        box_image=images[1, first:last],
        text=text,
        box_text=tokenizer(["the " + caption.split()[-1] for caption, _ in captions]),
        piece_word=torch.where(inside, places, -1).to(torch.int16),
        head=head,
        dep=torch.where(head < 0, -1, (head + 1) % 3).to(torch.int16),
        target=torch.zeros(len(captions), dtype=torch.long),
        groups=groups,
    )


def update(accelerator, towers, objective, pieces, steps):
    """Log and gradients of the last of some updates of the local part of the batch.

    Each is made in so many micro-batches.
    """
    rank, processes = accelerator.process_index, accelerator.num_processes
    gather = gather_processes if processes > 1 else None
    step = Step(towers, objective, KINDS, gather, processes)
    module = accelerator.prepare(step) if processes > 1 else step
    size = BATCH // processes // pieces
    starts = [rank * BATCH // processes + i * size for i in range(pieces)]
    words = 7 if "target" in objective.inputs else None  # as many candidates everywhere
    batches = [samples(towers.tokenizer, start, start + size, words) for start in starts]
    for now in steps:
        towers.zero_grad()
        result = backward(module, batches, now, accelerator)
    grads = {n: p.grad.clone() for n, p in towers.named_parameters() if p.grad is not None}
    return dict(log=fetch(result.logs, accelerator), grads=grads)


def updates(accelerator, all_pieces):
    "Every case."
    towers, found = model(), {}
    for name, table in tables().items():
        for pieces in all_pieces:
            steps = (0, 1, 5) if name == "delayed" else (0,)  # every row rests in the first two
            found[name, pieces] = update(accelerator, towers, table, pieces, steps)
    return found


def started(accelerator, all_pieces):
    "The first update of a model whose heads start from data: its heads, log and gradients."
    found = {}
    for pieces in all_pieces:
        towers = model(geometry=ClippedConfig(k=2, d=4)).train()
        terms = Objective([Contrast("image", "text"), Entail("text", "image")])
        found[pieces] = update(accelerator, towers, terms, pieces, (0,))
        heads = towers.image_projection, towers.text_projection
        found[pieces]["heads"] = [head.weight.detach().clone() for head in heads]
    return found


# --- loss terms alone, in every space

SPACES = dict(
    sphere=Sphere(8),
    hyperbolic=Lorentz(8, curvature_init=0.5),
    product=Product(4, 2, curvature_init=2.0),
    product_l2=Product(4, 2, metric="l2"),
    literal=Product(4, 2, mode="literal"),
    euclidean=Euclidean(8),
)
for space in SPACES.values():
    space.double()
LABELS = ("labels", "labels")
ROWS = dict(
    one_way=[ContrastOneWay("image", "text"), ContrastOneWay("text", "image", 0.4, "sum")],
    both_ways=[Contrast("image", "text", 0.7), Contrast("text", "image", 0.4, "sum")],
    joined=[Contrast("image+box_image", "text+box_text")],
    mask=[LabelContrast("image", "text", *LABELS)],
    average=[LabelContrast("image", "text", *LABELS, "average")],
    angles=[LabelContrast("text", "image", *LABELS, similarity="angle_to_specific")],
    direction=[ContrastOneWay("text", "image", similarity="direction")],
)


def cases():
    "Names of a space and of rows that it has an answer for."
    for space, geometry in SPACES.items():
        for rows in ROWS:
            if rows != "angles" or "angles" not in geometry.lacks():
                yield space, rows


def row_case(space, rows, rank=0, processes=1):
    "Loss of the whole batch, gradient by the local points, and this process's by the parameters."
    geometry, size = SPACES[space], BATCH // processes
    generator = torch.Generator().manual_seed(3)
    points, leaves = {}, []
    for name in ("image", "text", "box_image", "box_text"):
        features = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
        lifted = geometry.lift(features, name.removeprefix("box_")).detach()
        points[name] = lifted[rank * size : (rank + 1) * size].clone().requires_grad_()
        leaves.append(points[name])
    labels = torch.arange(BATCH) % 5
    points["labels"] = labels[rank * size : (rank + 1) * size]
    gather = gather_processes if processes > 1 else None
    table = Objective(ROWS[rows])
    context = Context(kinds={"labels": "labels"}, gather=gather, processes=processes)
    loss, _ = table(points, geometry, context=context)
    trained = [p for p in geometry.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, [*leaves, *trained], allow_unused=True)
    grads = [torch.zeros(1, dtype=torch.float64) if g is None else g / processes for g in grads]
    return loss.detach(), grads[: len(leaves)], grads[len(leaves) :]


def row_cases(rank, processes):
    "Every case; losses are averages over processes."
    found = {}
    for space, rows in cases():
        loss, points, parameters = row_case(space, rows, rank, processes)
        summed = [gather_processes(g[None])[0].sum(0) for g in parameters]
        found[space, rows] = gather_processes(loss[None])[0].mean(), points, summed
    return found


# --- whole runs


def die(t, row):
    if row["step"] == 5:
        raise Died


def trained(accelerator, folder, config=CONFIG):
    "Final weights of a run."
    t = trainer(config, folder, accelerator)
    t.fit()
    return {n: w.clone() for n, w in t.model.state_dict().items()}


PARTS = (6, 6, 4), (6, 6)  # sizes of the validation batches of two processes


def validated(accelerator):
    "The objective on validation batches, of which the processes have unequally many."
    rank, whole = accelerator.process_index, Batches(12)
    mine = [
        {name: x.chunk(2)[rank][:size] for name, x in whole.batch(i).items()}
        for i, size in enumerate(PARTS[rank])
    ]
    if accelerator.num_processes == 1:
        mine = [whole.batch(i) for i in range(2)]
    gather = gather_processes if accelerator.num_processes > 1 else None
    step = Step(Linear2(), objective(), {}, gather, accelerator.num_processes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        columns = Validation(mine, step, accelerator).measure(0)
    return columns, [str(warning.message) for warning in caught]


def runs(accelerator, folder):
    "A training run, a run with dropout, and one that dies and is resumed."
    dropped = CONFIG | dict(dropout=0.3)
    found = dict(two=trained(accelerator, folder / "two"))
    found["whole"] = trained(accelerator, folder / "whole", dropped)
    found["validated"] = validated(accelerator)
    with pytest.raises(Died):
        trainer(dropped, folder / "parts", accelerator, [die]).fit()
    torch.manual_seed(99)
    found["parts"] = trained(accelerator, folder / "parts", dropped)
    with pytest.raises(Died):
        trainer(CONFIG, folder / "dead", accelerator, [die]).fit()
    found["grown"] = trained(accelerator, folder / "alone")  # begun by one process
    return found


def worker(rank, processes, port, folder):
    "One of the processes."
    become_process(rank, processes, port)
    torch.set_num_threads(1)
    accelerator, folder = make_accelerator(device="cpu"), Path(folder)
    assert accelerator.num_processes == processes
    found = dict(updates=updates(accelerator, (1, 3 if processes == 4 else 2)))
    found["started"] = started(accelerator, (1, 3))
    found["rows"] = row_cases(rank, processes)
    if processes == 2:
        found |= runs(accelerator, folder)
    torch.save(found, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


def spawn(processes, folder):
    "What so many processes found, by rank."
    port = free_port()
    arguments = processes, port, str(folder)
    mp.start_processes(worker, arguments, processes, start_method="forkserver")
    return [torch.load(folder / f"rank{r}.pt", weights_only=True) for r in range(processes)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def ranks(folder):
    with pytest.raises(Died):
        trainer(CONFIG, folder / "alone", make_accelerator(device="cpu"), [die]).fit()
    return spawn(2, folder)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return spawn(4, tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def alone():
    "One process with the whole batch."
    return updates(make_accelerator(device="cpu"), (1,))


def check(found, one):
    "Gradients equal to 1e-5, logged values the same."
    assert found["grads"].keys() == one["grads"].keys()
    for name, grad in one["grads"].items():
        error = (found["grads"][name] - grad).norm()
        assert error <= 1e-5 * grad.norm() + 1e-12, (name, error.item(), grad.norm().item())
    assert found["log"].keys() == one["log"].keys()
    for name, value in one["log"].items():
        same = math.isclose(found["log"][name], value, rel_tol=1e-5, abs_tol=1e-9)
        assert same or (math.isnan(value) and math.isnan(found["log"][name])), (
            name,
            found["log"][name],
            value,
        )


@pytest.mark.parametrize("name", tables())
def test_gradient_and_log_are_those_of_the_whole_batch(name, alone, ranks, four):
    one = alone[name, 1]
    assert any(grad.norm() > 0 for grad in one["grads"].values())
    for processes in (ranks, four):
        for rank in processes:
            for (case, _), found in rank["updates"].items():
                if case == name:
                    check(found, one)


def test_heads_that_start_from_data_see_the_whole_batch(ranks, four):
    cpu = make_accelerator(device="cpu")
    one = started(cpu, (1, 2, 4))
    found = [one[2], one[4]]
    for rank in [*ranks, *four]:
        found += rank["started"].values()
    for other in found:
        check(other, one[1])
        for head, expected in zip(other["heads"], one[1]["heads"]):
            torch.testing.assert_close(head, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("space, rows", list(cases()))
def test_terms_give_the_loss_and_gradient_of_the_whole_batch(space, rows, ranks, four):
    loss, points, parameters = row_case(space, rows)
    for processes in (ranks, four):
        found = [rank["rows"][space, rows] for rank in processes]
        for other in found:
            torch.testing.assert_close(other[0], loss, rtol=1e-5, atol=1e-7)
        for i, grad in enumerate(points):
            joined = torch.cat([other[1][i] for other in found])
            assert (joined - grad).norm() <= 1e-5 * grad.norm() + 1e-7
        for i, grad in enumerate(parameters):
            error = (found[0][2][i] - grad).norm()
            assert error <= 1e-5 * grad.norm() + 1e-6, (i, error)


TORCHRUN = """
from hypvl.training.update import make_accelerator
accelerator = make_accelerator()
open(f"{accelerator.process_index} of {accelerator.num_processes}", "w").close()
accelerator.end_training()
"""


def test_torchrun_without_a_gpu_joins_its_processes(tmp_path):
    (tmp_path / "join.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--standalone", "join.py"]  # which finds a free port itself
    without = {name: value for name, value in os.environ.items() if "ACCELERATE" not in name}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=without | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(p.name for p in tmp_path.glob("* of *")) == ["0 of 2", "1 of 2"]


def test_training_equals_one_process(ranks, folder, tmp_path):
    one = trained(make_accelerator(device="cpu"), tmp_path)
    for rank in ranks:
        for name, w in one.items():
            torch.testing.assert_close(rank["two"][name], w, rtol=1e-4, atol=1e-6)
    a, b = read_metrics(tmp_path), read_metrics(folder / "two")
    assert set(a) == set(b)
    for column in a.drop(columns=["samples_per_s", "seconds", "guard"]):
        x, y = torch.tensor(a[column].astype(float)), torch.tensor(b[column].astype(float))
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-5, equal_nan=True, msg=column)


def test_validation_leaves_out_what_one_process_alone_has(ranks):
    (columns, warned), (other, silent) = (rank["validated"] for rank in ranks)
    expected, nothing = validated(make_accelerator(device="cpu"))
    assert columns == other and columns.keys() == expected.keys() and len(columns) > 2
    for name, value in expected.items():
        assert math.isclose(columns[name], value, rel_tol=1e-5), name
    assert not nothing and not silent and len(warned) == 1
    assert "parts of unequal size" in warned[0] and "[4, 0]" in warned[0]


def test_a_resumed_run_is_the_same_bit_for_bit(ranks, folder):
    for rank in ranks:
        assert all(torch.equal(rank["parts"][name], w) for name, w in rank["whole"].items())
        assert not all(torch.equal(rank["two"][name], w) for name, w in rank["whole"].items())
    for name, w in ranks[0]["whole"].items():
        assert torch.equal(ranks[1]["whole"][name], w)
    tables = [read_metrics(folder / name) for name in ("whole", "parts")]
    a, b = (table.drop(columns=["samples_per_s", "seconds"]) for table in tables)
    assert a.equals(b)


def test_a_run_resumes_on_another_number_of_processes(folder, ranks):
    cpu = make_accelerator(device="cpu")
    shrunk = trained(cpu, folder / "dead")  # two processes, then one
    for name, weight in ranks[0]["two"].items():
        torch.testing.assert_close(shrunk[name], weight, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ranks[0]["grown"][name], weight, rtol=1e-5, atol=1e-6)
        assert torch.equal(ranks[0]["grown"][name], ranks[1]["grown"][name])
    for name in ("dead", "alone"):
        assert read_metrics(folder / name)["step"].tolist() == list(range(1, 7))
