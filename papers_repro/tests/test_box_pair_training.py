"""Fine-tuning on pairs of a whole and a part, from the pretrained tower to the frames of a run."""

import multiprocessing
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch

from hypvl.models.registry import load_model
from hypvl.models.shipped import load_shipped
from hypvl.papers import runs
from hypvl.papers.visual_hierarchies.box_files import BoxWorldConfig
from hypvl.papers.visual_hierarchies.box_source import BoxSource
from hypvl.papers.visual_hierarchies.box_table import load_boxes
from hypvl.papers.visual_hierarchies.containment import read_pairs
from hypvl.papers.visual_hierarchies.recipes import hierarchy_recipe
from hypvl.training.metrics import read_metrics
from hypvl.training.recipe import without_steps

TINY = {
    "data.world.train": 24,
    "data.world.validation": 8,
    "data.world.test": 10,
    "data.world.lvis": 10,
    "train.steps": 48,
    "train.batch_size": 12,
    "train.checkpoint_every": 20,
    "train.tensorboard": False,
}
WORLD = BoxWorldConfig(train=24, validation=8, test=10, lvis=10)


class Killed(Exception):
    pass


def killed_at(step):
    "In place of `make_loader`: batch number `step` raises."
    make = runs.make_loader

    def loader(*arguments):
        made = make(*arguments)

        class BoxPairLoader(type(made)):
            def __iter__(self):
                for number, batch in enumerate(super().__iter__()):
                    if number == step:
                        raise Killed
                    yield batch

        made.__class__ = BoxPairLoader
        return made

    return loader


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    source = hierarchy_recipe("hyp", "smoke", **TINY).data
    return source.prepare(tmp_path_factory.mktemp("boxes"), progress=False)


@pytest.mark.parametrize("family", ["hyp", "euc"])
def test_training_continues_after_a_kill(family, data, tmp_path):
    "The loss falls; a killed run ends with the weights of one that was left alone."
    recipe = hierarchy_recipe(family, "smoke", **TINY)
    history = runs.train(recipe, data, tmp_path / "whole", "cpu", progress=False)
    losses = history["contrast"]
    assert losses.tail(12).mean() < losses.head(12).mean()
    with patch.object(runs, "make_loader", killed_at(30)), pytest.raises(Killed):
        runs.train(recipe, data, tmp_path / "killed", "cpu", progress=False)
    assert read_metrics(tmp_path / "killed")["step"].max() < 48
    runs.train(recipe, data, tmp_path / "killed", "cpu", progress=False)
    whole, killed = (load_model(tmp_path / name).state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_a_frozen_model_is_measured_and_not_trained(data, tmp_path):
    recipe = hierarchy_recipe("frozen", "smoke", **without_steps(TINY))
    assert runs.train(recipe, data, tmp_path, "cpu", progress=False).empty
    model, shipped = load_model(tmp_path), load_shipped("clip_world")
    assert torch.equal(model.image_projection.weight, shipped.image_projection.weight)
    for name, tensor in shipped.image_tower.state_dict().items():
        assert torch.equal(model.image_tower.state_dict()[name], tensor), name
    frames = runs.find_probe("instances_by_cosine")(model, data, recipe, tmp_path)
    rows = frames["results"]
    assert set(rows["suite"]) == {"instances", "order", "single_class"}
    asked = rows[rows["dataset"].eq("HierOpenImages") & rows["score"].eq("paper")]
    table = asked.fillna({"model": "CLIP"}).pivot_table("value", "metric", "model")
    wanted = [f"{way}_same_class@5" for way in ("parent_to_child", "child_to_parent")]
    assert (table.loc[wanted, "CLIP"] > table.loc[wanted, "chance"]).all()
    assert (table.loc[wanted, "CLIP"] <= table.loc[wanted, "oracle"]).all()
    assert isinstance(frames["hits"], pd.DataFrame) and len(frames["hits"])


def _prepare(barrier, root, results):
    "What each of several processes does at the same moment."
    barrier.wait()
    data = BoxSource(world=WORLD).prepare(root, progress=False)
    results.put((str(data.train), (data.suite / "report.json").read_text()))


def test_processes_that_prepare_one_folder_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    arguments = (barrier, tmp_path / "together", results)
    processes = [context.Process(target=_prepare, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    found = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0, 0, 0] and len(found) == 1
    alone = BoxSource(world=WORLD).prepare(tmp_path / "alone", progress=False)
    assert found.pop()[1] == (alone.suite / "report.json").read_text()
    together = tmp_path / "together" / alone.suite.name
    for split in ("train", "test", "lvis"):
        mine, theirs = load_boxes(alone.suite / split), load_boxes(together / split)
        assert mine.content_hash == theirs.content_hash
        left, right = read_pairs(mine, alone.suite / split), read_pairs(theirs, together / split)
        assert np.array_equal(left.child, right.child)
    assert not [*together.rglob("*.part"), *together.rglob(".owner")]
