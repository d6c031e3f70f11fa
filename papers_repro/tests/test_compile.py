"""Geometry in a compiled graph: without a break, with the values and gradients of the plain call.

And no objective waits for the numbers that it computes.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hypvl.geometry
from hypvl.geometry import cones, lorentz, pairwise, product
from hypvl.geometry.spaces import Euclidean, Lorentz, Product, Sphere, SphereConfig
from hypvl.losses.objective import FamilyObjective
from hypvl.losses.terms import Context
from hypvl.models.registry import create_model
from hypvl.papers.agr.clipped import ClippedConfig
from hypvl.papers.agr.routed_geometry import RoutedConfig
from hypvl.papers.agr.routing_losses import RoutedObjective
from hypvl.papers.clip_line import recipe as published_recipe
from hypvl.papers.h2em.composition_losses import CompositionObjective
from hypvl.papers.h2em.compositional_model import COMPOSITION_KINDS, composition_space
from hypvl.papers.study import find_paper
from hypvl.training.update import Step

C = torch.tensor(0.8)


def factors(x):
    return x.unflatten(-1, (2, 4))


FUNCTIONS = {
    "exp0": lambda x, y: lorentz.exp0(x, c=C),
    "log0": lambda x, y: lorentz.log0(x, c=C),
    "dist": lambda x, y: lorentz.dist(x, y, c=C),
    "dist0": lambda x, y: lorentz.dist0(x, c=C),
    "inner": lambda x, y: lorentz.inner(x, y, c=C),
    "pairwise_inner": lambda x, y: lorentz.pairwise_inner(x, y, c=C),
    "pairwise_dist": lambda x, y: lorentz.pairwise_dist(x, y, c=C),
    "pairwise_dist gemm": lambda x, y: lorentz.pairwise_dist(x, y, c=C, method="gemm"),
    "mobius_add": lambda x, y: lorentz.mobius_add(x, y, c=C),
    "half_aperture": lambda x, y: cones.half_aperture(x, c=C),
    "exterior_angle": lambda x, y: cones.exterior_angle(x, y, c=C),
    "pairwise_exterior_angle": lambda x, y: cones.pairwise_exterior_angle(x, y, c=C),
    "cone_violation": lambda x, y: cones.cone_violation(x, y, c=C),
    "product_dist": lambda x, y: product.product_dist(factors(x), factors(y), c=C),
    "pairwise_product_dist": lambda x, y: product.pairwise_product_dist(
        factors(x), factors(y), c=C
    ),
    "product_cross_entropy": lambda x, y: pairwise.product_cross_entropy(
        factors(x), factors(y), c=C, scale=5.0
    ),
    "product_cross_entropy_both": lambda x, y: sum(
        pairwise.product_cross_entropy_both(factors(x), factors(y), c=C, scale=5.0)
    ),
}
for space in (Sphere(8), Lorentz(8), Product(2, 4), Product(2, 4, metric="l2"), Euclidean(8)):
    name = space.describe()
    FUNCTIONS[f"lift, {name}"] = lambda x, y, space=space: space.lift(x)
    FUNCTIONS[f"one way, {name}"] = lambda x, y, space=space: space.contrast_one_way(x, y)
    FUNCTIONS[f"contrast, {name}"] = lambda x, y, space=space: sum(space.contrast(x, y))
    FUNCTIONS[f"entail, {name}"] = lambda x, y, space=space: space.entail(x, y)


def value_and_gradient(function, points):
    "Result, and gradient of its sum."
    leaves = [p.clone().requires_grad_() for p in points]
    result = function(*leaves)
    grads = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    return [result.detach(), *(g for g in grads if g is not None)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_with_the_same_values(name):
    generator = torch.Generator().manual_seed(0)
    points = [lorentz.exp0(torch.randn(6, 8, generator=generator), c=1.0) for _ in range(2)]
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = value_and_gradient(compiled, points)
    for a, b in zip(found, value_and_gradient(function, points), strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm() + 1e-6


def test_a_training_step_breaks_nowhere_in_geometry():
    "From pictures and texts to the loss, as a recipe has it."
    recipe = find_paper("phyclip").recipes("main", preset="smoke", seed=0)[-1]
    model = create_model(recipe.model, seed=0).train()
    known = model.text_tower.config.vocabulary
    texts = [[known[-2], known[i], known[i + 4], known[-1]] for i in range(4)]
    batch = {"text": torch.tensor(texts), "box_text": torch.tensor(texts[::-1])}
    for name in ("image", "box_image"):
        batch[name] = torch.rand(4, 3, recipe.image_size, recipe.image_size)
    step = Step(model, recipe.objective.make())
    torch._dynamo.reset()
    found = torch._dynamo.explain(step)(batch, recipe.train.steps - 1)
    geometry = Path(hypvl.geometry.__file__).parent
    places = [f"{f.filename}:{f.lineno}" for one in found.break_reasons for f in one.user_stack]
    assert found.graph_count > 0 and any("text.py" in place for place in places)
    assert not [place for place in places if Path(place).is_relative_to(geometry)]


def test_a_published_step_is_one_graph():
    made = published_recipe("phyclip", "paper", "S", boxes=True)
    vision = replace(made.model.vision, depth=2, patch_size=112)  # less to compute
    text = replace(made.model.text, layers=2)
    model = create_model(replace(made.model, vision=vision, text=text), seed=0).train()
    texts = model.tokenizer(["a cat", "a dog on a mat"] * 32)  # enough for groups by length
    batch = {"text": texts, "box_text": texts.flip(0)}
    for name in ("image", "box_image"):
        batch[name] = torch.rand(1, 3, made.image_size, made.image_size).expand(64, -1, -1, -1)
    torch._dynamo.reset()
    step = Step(model, made.objective.make())
    found = torch._dynamo.explain(step)(batch, made.train.steps - 1)
    assert (found.graph_count, found.break_reasons) == (1, [])


FAMILIES = {"clip": Sphere(8), "meru": Lorentz(8), "hycoclip": Lorentz(8), "phyclip": Product(2, 4)}
OBJECTIVES = {
    f"{name}, boxes={boxes}": (FamilyObjective(name, boxes=boxes), space)
    for name, space in FAMILIES.items()
    for boxes in (True, False)
}
OBJECTIVES["h2em"] = (CompositionObjective(), composition_space(width=8).make())
OBJECTIVES["agr"] = (
    RoutedObjective(),
    RoutedConfig(correction=SphereConfig(dim=8), baseline=ClippedConfig(d=8)).make(),
)


def stand_in(name, space):
    "An entry of a batch of six, without memory."
    if name in ("pair", "state", "object"):
        return torch.zeros(6, dtype=torch.long, device="meta")
    if name == "pair_parts":
        return torch.zeros(5, 2, dtype=torch.long, device="meta")
    candidates = {"pair_texts": (6, 5), "state_texts": (6, 3), "object_texts": (6, 4)}
    shape = (*candidates.get(name, (6,)), space.dim)
    return torch.zeros(shape, device="meta", requires_grad=True)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_reads_no_number_on_the_way(name):
    "Tensors without values: code that reads one fails."
    config, space = OBJECTIVES[name]
    space, objective = space.to("meta").train(), config.make()
    points = {name: stand_in(name, space) for name in objective.inputs}
    loss, _ = objective(points, space, context=Context(kinds=COMPOSITION_KINDS))
    assert loss.is_meta
    loss.backward()
    assert all(x.grad is not None for x in points.values() if x.requires_grad)


def test_a_number_that_is_read_fails():
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        torch.zeros((), device="meta").item()
