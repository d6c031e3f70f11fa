"""`torch.func` over distances, cones and geometries, against reverse mode of one call."""

import pytest
import torch

from hypvl.geometry import cones, lorentz
from hypvl.geometry.spaces import Euclidean, Lorentz, Product, Sphere

V = 0.5 * torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X, Y = lorentz.exp0(V, c=1.0)
C = torch.tensor(1.3, dtype=torch.float64)


def contrast(space, a, keys):
    return sum(loss.sum() for loss in space.contrast(a, keys))


def outside(a):
    return cones.cone_violation(a, Y, c=C, min_radius=0.05).sum()


SPACES = {"product": Product(1, 3), "lorentz": Lorentz(3), "euclidean": Euclidean(3)}
FUNCTIONS = {
    "dist": lambda a: lorentz.dist(a, Y, c=C).sum(),
    "dist by c": lambda a: lorentz.dist(X, Y, c=a.square().sum()).sum(),
    "pairwise_dist": lambda a: lorentz.pairwise_dist(a, Y, c=C).square().sum(),
    "exp0": lambda a: lorentz.exp0(a, c=C).square().sum(),
    "log0": lambda a: lorentz.log0(a, c=C).square().sum(),
    "mobius_add": lambda a: lorentz.mobius_add(a, Y, c=C).square().sum(),
    "exterior_angle": lambda a: cones.exterior_angle(a, Y, c=C).sum(),
    "pairwise_exterior_angle": lambda a: cones.pairwise_exterior_angle(a, Y, c=C).sum(),
    "half_aperture": lambda a: cones.half_aperture(a, c=C, min_radius=0.05).sum(),
    "cone_violation": outside,
}
for name, space in SPACES.items():
    FUNCTIONS[name] = lambda a, space=space.double(): contrast(space, a, Y)


def unit(a):
    return a / a.norm(dim=-1, keepdim=True)


SPHERE = Sphere(3).double()
FUNCTIONS["sphere"] = lambda a: contrast(SPHERE, unit(a), unit(Y))


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_transforms_give_what_one_call_gives(name):
    f, along = FUNCTIONS[name], torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    leaf = X.clone().requires_grad_()
    value = f(leaf)
    slope = torch.autograd.grad(value, leaf)[0]
    assert slope.norm() > 1e-3
    close = {"rtol": 1e-8, "atol": 1e-10}
    assert torch.allclose(torch.func.grad(f)(X), slope, **close)
    primal, tangent = torch.func.jvp(f, (X,), (along,))
    assert torch.allclose(primal, value) and torch.allclose(tangent, (slope * along).sum(), **close)
    several = torch.stack([X, 0.9 * X])
    by_one = torch.stack([f(one) for one in several])
    assert torch.allclose(torch.func.vmap(f)(several), by_one, **close)
    h = 1e-5
    curve = (torch.func.grad(f)(X + h * along) - torch.func.grad(f)(X - h * along)) / (2 * h)
    hessian = torch.func.hessian(f)(X)
    assert torch.allclose((hessian * along).sum((-1, -2)), curve, rtol=1e-4, atol=1e-5)


def test_equal_points_and_roots_have_the_gradient_of_one_call():
    x, y = X.clone(), Y.clone()
    y[0], x[1], y[2] = x[0], 0, 0
    for f in (lorentz.dist, cones.exterior_angle):
        leaf = x.clone().requires_grad_()
        wanted = torch.autograd.grad(f(leaf, y, c=C).sum(), leaf)[0]
        tangent = torch.func.jvp(lambda a: f(a, y, c=C), (x,), (torch.ones_like(x),))[1]
        assert torch.allclose(tangent, wanted.sum(-1), rtol=1e-8, atol=1e-10)
