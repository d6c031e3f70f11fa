"""Every section of every paper: a model differs from the one it is compared with as declared.

A pair has the same seed and the same batch. Its recipes differ in the declared fields alone,
parameters outside of the declared groups start equal, and the first loss or the gradient differs
at one of three steps of the schedules.
"""

from functools import cache

import pytest
import torch
from test_every_paper import update

from hypvl.models.registry import create_model
from hypvl.papers import paper_packages
from hypvl.papers.agr import recipes as agr
from hypvl.papers.changes import compared_recipes, field_differences
from hypvl.papers.runs import starting_model
from hypvl.papers.study import find_paper
from hypvl.papers.syntax import photographs as syntax
from hypvl.papers.visual_hierarchies import photograph_hierarchies as hierarchies
from hypvl.training.update import make_accelerator

LENGTH = ("train.steps", "train.warmup", "objective.ramp", "objective.steps")
LENGTH += ("model.geometry.curriculum.steps",)  # what no single step shows
LONGER = {"agr": {"train.steps": 120}}  # whose phases take a twelfth of the steps
STEPS = (0, 7, None)  # first, in all of AGR's phases but the last, last
ON_PHOTOGRAPHS = (
    *agr.PHOTOGRAPH_CHANGES,
    *syntax.PHOTOGRAPH_CHANGES,
    *hierarchies.PHOTOGRAPH_CHANGES,
)
SMALLEST = 1e-4  # difference of the loss, or of a gradient relative to the largest


@cache
def sections(name):
    "The recipes of all sections at their smallest, by section."
    paper, more = find_paper(name), LONGER.get(name, {})
    return {one: paper.recipes(one, preset="smoke", seed=0, **more) for one in paper.sections}


def starting(recipe):
    "Parameters before the first step."
    named = starting_model(recipe).named_parameters()
    return {name: value.detach().clone() for name, value in named}


class Steps:
    "First steps of recipes; each of them is computed once."

    def __init__(self, folder):
        self.folder, self.accelerator = folder, make_accelerator(device="cpu")
        self.found, self.batches = {}, {}

    def batch(self, recipe):
        "The first samples of a recipe."
        if recipe.hash not in self.batches:
            model = create_model(recipe.model, seed=0)
            data = recipe.data.prepare(self.folder, recipe.image_size, progress=False)
            loader = recipe.data.loader(data, model.tokenizer, recipe.image_size, 8)
            self.batches[recipe.hash] = next(iter(loader)), dict(loader.kinds)
        return self.batches[recipe.hash]

    def of(self, recipe, again=False):
        "Loss and gradients at some steps."
        if again or recipe.hash not in self.found:
            batch, kinds = self.batch(recipe)
            steps = [update(recipe, batch, kinds, self.accelerator, 1, now, True) for now in STEPS]
            if again:
                return steps
            self.found[recipe.hash] = steps
        return self.found[recipe.hash]


def distance(one, other):
    "How far two steps are apart: loss, logged terms, or a gradient relative to the largest."
    named = ["loss", *(set(one["rows"]) & set(other["rows"]))]  # a term of weight 0 is logged
    apart = max(abs(one["log"][name] - other["log"][name]) for name in named)
    mine, theirs = one["grads"], other["grads"]
    largest = max([float(grad.norm()) for grad in (*mine.values(), *theirs.values())] or [1.0])
    for name in mine.keys() & theirs.keys():
        if mine[name].shape == theirs[name].shape:
            apart = max(apart, float((mine[name] - theirs[name]).norm()) / largest)
    return max(apart, SMALLEST * 2 if mine.keys() != theirs.keys() else 0.0)


def same_batches(steps, made, reference):
    "Whether two recipes begin with the same samples."
    ours, theirs = (steps.batch(one)[0] for one in (made, reference))
    assert ours.keys() == theirs.keys()
    equal = [
        torch.equal(value, theirs[key]) if torch.is_tensor(value) else value == theirs[key]
        for key, value in ours.items()
    ]
    return all(equal)


@pytest.mark.parametrize("name", paper_packages())
def test_a_model_differs_from_its_reference_in_the_declared_fields_alone(name):
    recipes, changes = sections(name), find_paper(name).changes
    compared = list(compared_recipes(changes, recipes))
    known = {one.hash for pair in compared for one in pair[1:]}
    assert not [one.name for made in recipes.values() for one in made if one.hash not in known]
    used = {}
    for change, made, reference in compared:
        fields = field_differences(made, reference)
        undeclared = [key for key in fields if not change.covers(key)]
        assert not undeclared, (change.section, made.name, reference.name, undeclared)
        assert fields, (change.section, made.name)
        used.setdefault(id(change), set()).update(change.covers(key) for key in fields)
    assert {change.section for change in changes} <= {*recipes}
    for change in changes:
        if recipes[change.section] and change not in ON_PHOTOGRAPHS:  # or needs an encoder
            assert used[id(change)] == set(change.fields), change


@pytest.mark.parametrize("name", paper_packages())
def test_other_parameters_start_equal(name):
    wrong, started = [], {}

    def start(recipe):
        if recipe.hash not in started:
            started[recipe.hash] = starting(recipe)
        return started[recipe.hash]

    for change, made, reference in compared_recipes(find_paper(name).changes, sections(name)):
        ours, theirs = start(made), start(reference)
        for parameter in ours.keys() | theirs.keys():
            if any(part in parameter for part in change.parameters):
                continue
            here, there = ours.get(parameter), theirs.get(parameter)
            if here is None or there is None or not torch.equal(here, there):
                wrong.append((change.section, made.name, reference.name, parameter))
    assert not wrong, wrong[:20]


@pytest.mark.full
@pytest.mark.parametrize("name", paper_packages())
def test_the_first_steps_of_a_pair_differ(name, tmp_path):
    steps, repeated = Steps(tmp_path), []
    for change, made, reference in compared_recipes(find_paper(name).changes, sections(name)):
        place = (change.section, made.name, reference.name)
        fields = field_differences(made, reference)
        untrained = not (made.train.steps and reference.train.steps)
        if untrained or all(key in LENGTH for key in fields):
            continue
        if not any(key.startswith("data.") for key in fields):
            assert same_batches(steps, made, reference), place
        pairs = list(zip(steps.of(made), steps.of(reference)))
        assert max(distance(*pair) for pair in pairs) > SMALLEST, place
        if not repeated:
            repeated = list(zip(steps.of(reference, again=True), steps.of(reference)))
            assert [distance(*pair) for pair in repeated] == [0, 0, 0]
    assert repeated
