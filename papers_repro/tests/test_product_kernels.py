"""The product contrast in its forms: digits, second derivatives, transforms, stored kernels.

Oracles are loops in float64 through the paired distance, which its notebook checks against mpmath.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from hypvl.geometry import product_kernels
from hypvl.geometry.lorentz import dist, exp0
from hypvl.geometry.pairwise import product_cross_entropy, product_cross_entropy_both
from hypvl.geometry.product import pairwise_product_dist, product_dist

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(product_kernels.__file__)))


@pytest.fixture(params=["numba", "plain"])
def form(request, monkeypatch):
    "Each test runs with the compiled loops and without them."
    if request.param == "numba":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(product_kernels, "numba", None)
    return request.param


def batch(n=24, k=8, d=8, noise=0.3, radius=1.0, seed=0):
    "Queries and keys near them, float32."
    v = torch.randn(2, n, k, d, generator=torch.Generator().manual_seed(seed)) * radius / d**0.5
    return exp0(v[0], c=1.0), exp0(v[0] + noise * v[1], c=1.0)


def both(x, y, c, scale, **how):
    "One number of both directions, of unequal weights."
    rows, columns = product_cross_entropy_both(x, y, c=c, scale=scale, **how)
    return rows.mean() + 0.3 * columns.mean()


def textbook(x, y, c, scale, **how):
    "The same by broadcasting, in the type of x."
    logits = -scale * product_dist(x[:, None], y, c=c, **how)
    target = torch.arange(len(x))
    return F.cross_entropy(logits, target) + 0.3 * F.cross_entropy(logits.T, target)


def gradients(f, inputs, **how):
    leaves = [t.clone().requires_grad_() for t in inputs]
    value = f(*leaves, **how)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def wide(*tensors):
    return [t.double() for t in tensors]


# Digits of the loss


def of_rounded_distances(x, y, c, scale):
    "Cross-entropy of distances that were computed in float64 and rounded: what torch gives."
    d = product_dist(x.double()[:, None], y.double(), c=c.double()).float()
    target = torch.arange(len(x))
    logits = -scale * d
    return F.cross_entropy(logits, target) + 0.3 * F.cross_entropy(logits.T, target)


@pytest.mark.parametrize("wanted", [1e-6, 1e-4, 1e-2, 1.0, 10.0])
def test_loss_and_gradients_keep_their_digits_at_scale_100(form, wanted):
    "Noise is searched so that the loss has the wanted size."
    low, high = 1e-3, 30.0
    scale = torch.tensor(100.0)
    c = torch.linspace(0.5, 2, 64)
    for _ in range(30):
        noise = (low * high) ** 0.5
        x, y = batch(32, 64, 8, noise)
        small = textbook(*wide(x, y, c, scale)) < wanted
        low, high = (noise, high) if small else (low, noise)
    exact = gradients(textbook, wide(x, y, c, scale))
    found = gradients(both, (x, y, c, scale))
    rounded = gradients(of_rounded_distances, (x, y, c, scale))
    assert 0.5 * wanted < exact[0] < 2 * wanted
    limits = (1e-5, 1e-5, 1e-5, 3e-5, 1e-5)  # that of the curvature is a small difference
    for got, want, torchs, limit in zip(found, exact, rounded, limits):
        off = error(got, want)  # torch's own is up to .2 at the smallest loss
        assert off <= max(4 * error(torchs, want), limit) and off < 1e-4


@pytest.mark.parametrize("metric", ["l1", "l2"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_gradients_of_a_batch_are_within_1e5(form, metric, reduce):
    x, y = batch(70, 5, 12)
    c, scale, how = torch.linspace(0.2, 5, 5), torch.tensor(3.0), dict(metric=metric, reduce=reduce)
    exact = gradients(textbook, wide(x, y, c, scale), **how)
    for got, want in zip(gradients(both, (x, y, c, scale), **how), exact):
        assert error(got, want) < 1e-5


# Near pairs


def on_a_ray(radius, separation):
    "A point of 8 coordinates and one that much farther out, float32."
    ray = torch.randn(8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ray = ray / ray.norm()
    side = torch.linalg.qr(torch.stack([ray, torch.ones(8).double()], 1))[0][:, 1]
    r, s = torch.tensor([radius, separation], dtype=torch.float64)
    x = r.sinh() * ray
    y = s.cosh() * x + s.sinh() * side
    return x.float()[None, None], y.float()[None, None], ray


@pytest.mark.parametrize("radius, separation, far", [(3, 1e-4, 8), (6, 1e-3, 11), (1, 1e-5, 11)])
def test_a_far_key_takes_no_gradient_from_a_near_pair(form, radius, separation, far):
    x, y, ray = on_a_ray(radius, separation)
    key = (torch.tensor(float(far)).sinh() * -ray).float()[None, None]
    keys = torch.cat([y, key])
    x.requires_grad_()
    d = pairwise_product_dist(x, keys, c=1.0)
    found = torch.autograd.grad(d[0, 0], x)[0]
    leaf = x.detach().double().requires_grad_()
    exact = dist(leaf, y.double(), c=1.0)
    wanted = torch.autograd.grad(exact.sum(), leaf)[0]
    assert abs(d[0, 0].item() / exact.item() - 1) < 1e-6
    assert wanted.norm() > 0.01 and error(found, wanted) < 1e-5


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_equal_rows_have_the_gradients_of_the_textbook(form, share):
    x, y = batch(60, 4, 8)
    equal = int(share * 60)
    x[:equal], y[:equal] = x[:1], x[:1]
    inputs = x, y, torch.ones(4), torch.tensor(10.0)
    for got, want in zip(gradients(both, inputs), gradients(textbook, wide(*inputs))):
        assert (got - want).abs().max() <= 1e-5 * max(want.abs().max(), 0.1)


# Derivatives of higher order, and transforms


def small(dtype=torch.float64):
    x, y = batch(4, 2, 3)
    return x.to(dtype), y.to(dtype), torch.tensor([0.7, 1.5], dtype=dtype)


@pytest.mark.parametrize("metric", ["l1", "l2"])
def test_second_derivatives_are_those_of_the_textbook(form, metric):
    x, y, c = small()
    y[0] = x[0]  # an equal pair: the first derivative is 0 there

    def loss(x, y, c):
        return product_cross_entropy(x, y, c=c, scale=3.0, metric=metric).sum()

    def plain(x, y, c):
        logits = -3 * product_dist(x[:, None], y, c=c, metric=metric)
        return F.cross_entropy(logits, torch.arange(len(x)), reduction="sum")

    y = y.roll(1, 0)  # matched pairs apart, so that both have second derivatives
    found = torch.autograd.functional.hessian(loss, (x[1:], y[1:], c))
    wanted = torch.autograd.functional.hessian(plain, (x[1:], y[1:], c))
    for row, exact in zip(found, wanted):
        for got, want in zip(row, exact):
            assert want.norm() > 0 and error(got, want) < 1e-6


def penalty(f, x):
    leaf = x.clone().requires_grad_()
    grad = torch.autograd.grad(f(leaf), leaf, create_graph=True)[0]
    return torch.autograd.grad(grad.square().sum(), leaf)[0]


def test_a_gradient_penalty_is_that_of_the_textbook(form):
    x, y, c = small(torch.float32)
    found = penalty(lambda a: both(a, y, c, 3.0), x)
    wanted = penalty(lambda a: textbook(a, y.double(), c.double(), 3.0), x.double())
    assert error(found, wanted) < 1e-4


def test_a_second_derivative_over_processes_is_an_error(form):
    x, y, c = small(torch.float32)
    x.requires_grad_()
    rows, columns = product_cross_entropy_both(
        x, y, c=c, scale=3.0, gather=lambda t: (t if t.dim() == 2 else t, 0)
    )
    with pytest.raises(RuntimeError, match="expected gather=None where create_graph=True"):
        torch.autograd.grad((rows + columns).sum(), x, create_graph=True)


def test_transforms_of_torch_func(form):
    x, y, c = small()
    scale = torch.tensor(3.0, dtype=torch.float64)

    def loss(x, y=y, c=c, scale=scale):
        return both(x, y, c, scale)

    wanted = gradients(textbook, (x, y, c, scale))
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(x, y, c, scale)
    for got, want in zip(found, wanted[1:]):
        assert error(got, want) < 1e-9
    value, slope = torch.func.jvp(loss, (x,), (torch.ones_like(x),))
    assert abs(value - wanted[0]) < 1e-12 and abs(slope - wanted[1].sum()) < 1e-9
    hessian = torch.func.hessian(loss)(x)
    exact = torch.autograd.functional.hessian(lambda a: textbook(a, y, c, scale), x)
    assert error(hessian, exact) < 1e-9
    several = torch.stack([x, 2 * x])
    by_one = torch.stack([loss(one) for one in several])
    assert torch.allclose(torch.func.vmap(loss)(several), by_one, rtol=1e-12)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent
    assert abs(tangent - wanted[1].sum()) < 1e-9
    d = torch.func.jacrev(lambda a: pairwise_product_dist(a, y, c=c))(x)
    assert (
        error(d.sum((0, 1)), gradients(lambda a: pairwise_product_dist(a, y, c=c).sum(), [x])[1])
        < 1e-9
    )


def test_one_opaque_graph_with_the_numbers_of_the_plain_call():
    x, y, c = small(torch.float32)
    scale = torch.tensor(3.0)
    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    inputs = x, y, c, scale
    for got, want in zip(gradients(compiled, inputs), gradients(both, inputs)):
        assert torch.allclose(got, want, rtol=1e-6, atol=1e-7)


# Parts of a batch


def test_offset_and_accumulation(form):
    x, y = batch(40, 3, 8)
    c, scale = torch.tensor([0.5, 1.0, 2.0]), torch.tensor(14.0)
    whole = gradients(
        lambda *a: product_cross_entropy(*a[:2], c=a[2], scale=a[3]).sum(), (x, y, c, scale)
    )
    parts = [
        gradients(
            lambda *a: product_cross_entropy(*a[:2], c=a[2], scale=a[3], offset=start).sum(),
            (x[start : start + 10], y, c, scale),
        )
        for start in range(0, 40, 10)
    ]
    assert error(sum(p[0] for p in parts), whole[0]) < 1e-5
    assert error(torch.cat([p[1] for p in parts]), whole[1]) < 1e-5
    for i in (2, 3, 4):
        assert error(sum(p[i] for p in parts), whole[i].double()) < 1e-5


# Stored kernels

CALL = """
import numpy as np
from hypvl.geometry.product_kernels import _convert
out = np.empty(3, np.float32)
_convert(np.arange(3.0), out)
print(out)
"""


def call(cache):
    "Output of a process that compiles one kernel."
    environment = {**os.environ, "PYTHONPATH": SOURCE, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", CALL]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_two_processes_compile_at_once(tmp_path):
    pytest.importorskip("numba")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(call, [tmp_path, tmp_path]))
    assert [one.stdout for one in done] == ["[0. 1. 2.]\n"] * 2
    assert list(tmp_path.rglob("*.nbi"))  # the kernel is stored


def test_without_a_folder_kernels_are_compiled_and_not_stored(monkeypatch):
    numba = pytest.importorskip("numba")

    class NoFolder:
        @staticmethod
        def njit(cache=False, **how):
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return numba.njit(**how)

    monkeypatch.setattr(product_kernels, "numba", NoFolder)
    with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR to a folder that can be written"):
        kernel = product_kernels._compiled(product_kernels._convert.py_func)
    out = torch.empty(3)
    kernel(torch.arange(3.0).double().numpy(), out.numpy())
    assert out.tolist() == [0, 1, 2]
