"Geometry in a compiled graph: without a break, with the values and gradients of the plain call."

import pytest
import torch

from hypvl.geometry import cones, fused, lorentz, product
from hypvl.geometry.spaces import Euclidean, Lorentz, Product, Sphere

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
    "product_cross_entropy": lambda x, y: fused.product_cross_entropy(
        factors(x), factors(y), c=C, scale=5.0
    ),
    "product_cross_entropy_both": lambda x, y: sum(
        fused.product_cross_entropy_both(factors(x), factors(y), c=C, scale=5.0)
    ),
}
for space in (Sphere(8), Lorentz(8), Product(2, 4), Product(2, 4, metric="l2"), Euclidean(8)):
    name = space.describe()
    FUNCTIONS[f"lift, {name}"] = lambda x, y, space=space: space.lift(x)
    FUNCTIONS[f"contrast, {name}"] = lambda x, y, space=space: space.contrast(x, y)
    FUNCTIONS[f"both, {name}"] = lambda x, y, space=space: sum(space.contrast_both(x, y))
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
