"""Shards of an index in two processes that talk through gloo find what the whole index finds."""

import os

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from tiny_training import free_port

from hypvl.geometry.spaces import Lorentz
from hypvl.search import build_index, load_shard, save_index, save_shards
from hypvl.search.sharded_search import take_part

HOWS = (
    {},
    dict(labels=1),
    dict(norms=(0.2, 0.6)),
    dict(by="angle"),
    dict(by="angle", direction="parents"),
    dict(certify=True),
)


def space_and_points():
    "One hyperbolic space, and points of which some are equal."
    space = Lorentz(6).requires_grad_(False)
    points = space.lift(2 * torch.randn(501, 6, generator=torch.Generator().manual_seed(0)))
    points[400:410] = points[3]
    return space, points


def worker(rank, folder, port):
    "One of two processes: search its shard with the other one's."
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )
    torch.set_num_threads(1)
    space, points = space_and_points()
    index = load_shard(folder, space)
    found = [tuple(index.search(points[:7], 12, **how)) for how in HOWS]
    matches = [tuple(match) for match in index.within(points[:7], -1.0)]
    torch.save((index.sizes, found, matches), folder / f"rank{rank}.pt")
    try:
        load_shard(folder / "mixed", space if rank else Lorentz(6, curvature_init=2.0))
    except ValueError as e:
        (folder / f"error{rank}.txt").write_text(str(e))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def index():
    space, points = space_and_points()
    return build_index(space, points, labels=np.arange(501) % 3)


def test_two_processes_find_what_one_finds(index, tmp_path):
    save_shards(index, tmp_path, 2)
    save_index(take_part(index, 1, 2), tmp_path / "mixed" / "shard-00001-of-00002")
    other = Lorentz(6, curvature_init=2.0)
    other_index = build_index(other, torch.zeros(2, 6))
    save_index(other_index, tmp_path / "mixed" / "shard-00000-of-00002")
    mp.start_processes(worker, (tmp_path, free_port()), 2, start_method="forkserver")
    _, points = space_and_points()
    for rank in range(2):
        sizes, found, matches = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert sizes == [251, 250]
        for (scores, ids), how in zip(found, HOWS):
            whole = index.search(points[:7], 12, **how)
            assert torch.equal(ids, whole.ids), how
            assert torch.equal(scores, whole.scores), how
        for mine, whole in zip(matches, index.within(points[:7], -1.0)):
            assert torch.equal(mine[1], whole.ids)
        message = (tmp_path / f"error{rank}.txt").read_text()
        assert "they are of different models" in message
