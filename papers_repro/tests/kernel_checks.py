"""The Triton kernels of the product contrast against loops in float64: `kernel_checks.py cpu`.

On a CPU it needs TRITON_INTERPRET=1 (tile by tile, slow), so sizes are small there. On a GPU
(`cuda`) the compiled kernels run, with larger batches, and the host must never wait.
"""

import sys

import torch
import torch.nn.functional as F

from hypvl.geometry import gpu_kernels as kernels
from hypvl.geometry.lorentz import dist, exp0
from hypvl.geometry.pairwise import product_cross_entropy, product_cross_entropy_both
from hypvl.geometry.product import product_dist
from hypvl.geometry.spaces import Product

device = sys.argv[1]
if device == "cpu":  # several tiles and parts in few programs
    kernels.TILE, kernels.PROGRAMS = 16, 4
generator = torch.Generator().manual_seed(0)


def batch(n, m, k, d, noise=0.3):
    "Queries, keys near them, equal pairs and roots among them."
    v, w = torch.randn(2, max(n, m), k, d, generator=generator) / d**0.5
    x, y = exp0(v, c=1.0)[:n], exp0(v + noise * w, c=1.0)[:m]
    y[:3], x[4, 0], y[5, -1], x[6, 0], y[6, 0] = x[:3], 0, 0, 0, 0
    return x.to(device), y.to(device)


def loops(x, y, c, scale, offset=0, **how):
    "Both directions from all distances of all factors."
    logits = -scale * product_dist(x[:, None], y, c=c, **how)
    own = torch.arange(len(x), device=x.device) + offset
    rows = F.cross_entropy(logits, own, reduction="none")
    if len(x) != len(y):
        return (rows,)
    return rows, F.cross_entropy(logits.T, own, reduction="none")


def by_kernels(x, y, c, scale, **settings):
    settings |= dict(c=c, scale=scale, form="triton")
    if len(x) != len(y):
        return (product_cross_entropy(x, y, **settings),)
    return product_cross_entropy_both(x, y, **settings)


def values(form, inputs, **settings):
    "Losses and gradients of a weighted sum of them."
    leaves = [t.clone().requires_grad_() for t in inputs]
    found = form(*leaves, **settings)
    weights = torch.linspace(0.5, 1.5, len(inputs[0]), dtype=found[0].dtype, device=device)
    loss = sum((n + 1) * (part * weights).sum() for n, part in enumerate(found))
    return [torch.cat([f.detach() for f in found]), *torch.autograd.grad(loss, leaves)]


def errors(found, right):
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, right)]


def wide(inputs):
    return [t.double() for t in inputs]


worst = 0
cases = [(19, 19, 3, 8, 0), (16, 33, 2, 5, 17), (17, 17, 1, 16, 0)]
if device == "cuda":
    cases += [(256, 256, 64, 8, 0), (256, 256, 5, 32, 0), (256, 512, 64, 1, 256)]
for n, m, k, d, offset in cases:
    c = torch.linspace(0.5, 2, k, device=device)
    inputs = *batch(n, m, k, d), c, torch.tensor(7.0, device=device)
    for metric, reduce in (("l1", "mean"), ("l2", "sum")):
        how = dict(metric=metric, reduce=reduce, offset=offset)
        right = values(loops, wide(inputs), **how)
        for keep in (1 << 23, 0):
            found = values(by_kernels, inputs, keep=keep, **how)
            assert max(errors(found, right)) < 1e-5, (n, m, k, d, how, errors(found, right))
            worst = max(worst, *errors(found, right))
again = values(by_kernels, inputs, keep=0, **how)
assert all(torch.equal(a, b) for a, b in zip(found, again))  # no order is left to chance
print(f"losses and gradients, worst relative error {worst:.1e}")


# losses from 1e-6 to 10 at scale 100, beside torch's own on distances rounded to float32
def of_rounded(x, y, c, scale):
    d = product_dist(x.double()[:, None], y.double(), c=c.double()).float()
    own = torch.arange(len(x), device=x.device)
    logits = -scale * d
    return [F.cross_entropy(t, own, reduction="none") for t in (logits, logits.T)]


worst, k = 0, 4 if device == "cpu" else 64
c, scale = torch.linspace(0.5, 2, k, device=device), torch.tensor(100.0, device=device)
v = torch.randn(2, 16, k, 8, generator=generator) / 8**0.5
for wanted in (1e-6, 1e-4, 1e-2, 1.0, 10.0):
    low, high = 1e-3, 30.0
    for _ in range(20):
        noise = (low * high) ** 0.5
        inputs = *(exp0(t, c=1.0).to(device) for t in (v[0], v[0] + noise * v[1])), c, scale
        small = loops(*wide(inputs))[0].mean() < wanted
        low, high = (noise, high) if small else (low, noise)
    right = values(loops, wide(inputs))
    found, rounded = (errors(values(f, inputs), right) for f in (by_kernels, of_rounded))
    for error, torchs in zip(found, rounded):
        assert error <= max(4 * torchs, 3e-5) and error < 1e-4, (wanted, found, rounded)
    worst = max(worst, *found)
print(f"scale 100, losses 1e-6 to 10, worst relative error {worst:.1e}")


# near pairs beside a far key
def near_pairs(radius, separation, n=9):
    ray, side = torch.randn(2, n, 8, generator=generator, dtype=torch.float64)
    ray = ray / ray.norm(dim=-1, keepdim=True)
    side = side - (side * ray).sum(-1, keepdim=True) * ray
    side = side / side.norm(dim=-1, keepdim=True)
    turn = torch.arange(n)[:, None] % 3 * (torch.pi / 2)
    r, s = torch.tensor([radius, separation], dtype=torch.float64)
    along = turn.cos() * r.cosh() * ray + turn.sin() * side
    x, y = r.sinh() * ray, s.cosh() * r.sinh() * ray + s.sinh() * along
    far = torch.tensor(11.0).sinh() * torch.eye(8)[:1]
    return [t.float()[:, None].to(device) for t in (x, torch.cat([y, far.double()]))]


value_worst = slope_worst = 0
one = torch.ones(1, device=device)
for radius in (0.1, 1.0, 3.0, 6.0, 11.0):
    for separation in (1e-6, 1e-4, 1e-2):
        x, y = near_pairs(radius, separation)
        apart = (x != y[:-1]).any(-1)[:, 0]
        leaves = [t.double()[:, 0].requires_grad_() for t in (x, y[:-1])]
        exact = dist(*leaves, c=1.0)
        *_, nearest, d, flags = kernels.softmax_sums(x, y, one, one, False, 1.0, 0, False, 1 << 20)
        assert torch.equal(d.diagonal(), nearest)
        off = (nearest[apart] / exact[apart] - 1).abs().max().item() if apart.any() else 0
        settings = kernels._settings(x, False)
        rest = kernels._factors(one, False, 1.0), torch.eye(9, 10, device=device), flags, settings
        slopes = [kernels._of_side(x, y, *rest, False)[0], kernels._of_side(y, x, *rest, True)[0]]
        for got, want in zip(slopes, torch.autograd.grad(exact.sum(), leaves)):
            error = (got[:9, 0] - want).norm(dim=-1) / want.norm(dim=-1)
            slope_worst = max(slope_worst, error[apart].max().item() if apart.any() else 0)
        value_worst = max(value_worst, off)
assert value_worst < 1e-6 and slope_worst < 1e-5, (value_worst, slope_worst)
print(f"near pairs: distances {value_worst:.1e}, gradients {slope_worst:.1e}")


# three processes; what they gather, their column sums, is prepared in a first round
def sharded(x, y, c, scale):
    size, sent = len(x) // 3, []

    def send(t):
        sent.append(t)
        return t.repeat(3, 1), 0

    for gather in (send, lambda t: (torch.cat(sent) if t.dim() == 2 else t.repeat(3), 0)):
        losses = []
        for start in range(0, len(x), size):
            both = product_cross_entropy_both(
                x[start : start + size],
                y,
                c=c,
                scale=scale,
                offset=start,
                gather=gather,
                form="triton",
            )
            losses += [both[0].sum() + 0.3 * both[1].sum()]
    return (sum(losses)[None],)


def whole(x, y, c, scale):
    rows, columns = loops(x, y, c, scale)
    return (rows.sum()[None] + 0.3 * columns.sum(),)


def one_value(form, inputs):
    leaves = [t.clone().requires_grad_() for t in inputs]
    loss = form(*leaves)[0]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


inputs = *batch(36, 36, 2, 4), *(torch.tensor(t, device=device) for t in ([0.5, 2.0], 7.0))
assert max(errors(one_value(sharded, inputs), one_value(whole, wide(inputs)))) < 1e-5

# the geometry takes the kernels, and their second derivatives are those of the default form
answers = []
for space in (Product(2, 4, form="triton").to(device), Product(2, 4).double().to(device)):
    leaves = [t.flatten(1).to(space.log_curvature).requires_grad_() for t in inputs[:2]]
    loss = space.contrast_one_way(*leaves).sum() + sum(space.contrast(*leaves)).sum()
    wanted = [*leaves, space.log_curvature, space.logit_scale]
    answers.append([loss.detach(), *torch.autograd.grad(loss, wanted)])
assert max(errors(*answers)) < 1e-5
x, y = (t[7:20] for t in inputs[:2])
slopes = []
for form, a, b in ((by_kernels, x, y), (loops, x.double(), y.double())):
    leaf = a.clone().requires_grad_()
    loss = sum(t.sum() for t in form(leaf, b, torch.ones(2).to(b), torch.tensor(3.0).to(b)))
    grad = torch.autograd.grad(loss, leaf, create_graph=True)[0]
    slopes.append(torch.autograd.grad(grad.square().sum(), leaf)[0])
assert slopes[1].norm() > 0 and errors(slopes[:1], slopes[1:])[0] < 1e-4

# a key that is not finite leaves the distances of the others
odd = y.clone()
odd[4, 1, 2] = torch.nan
d, clean = (
    kernels.softmax_sums(x, t, torch.ones(2, device=device), one, False, 0.5, 0, False, 1 << 20)[3]
    for t in (odd, y)
)
others = torch.arange(13) != 4
assert d[:, 4].isnan().all() and torch.equal(d[:, others], clean[:, others])
if device == "cuda":
    leaves = [t.clone().requires_grad_() for t in (x, y)]
    for keep in (1 << 23, 0):
        torch.cuda.set_sync_debug_mode("error")  # the host never waits
        sum(
            t.sum() for t in by_kernels(*leaves, torch.ones(2, device=device), one[0], keep=keep)
        ).backward()
        torch.cuda.set_sync_debug_mode("default")
print("all parts agree")
