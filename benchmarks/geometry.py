"""Time and error of the pairwise hyperbolic distance: published formula, matrix product, direct differences.

Run by hand, for example `python benchmarks/geometry.py --n 192 --k 8 --d 8`; prints a markdown table.
Row i of y lies `separation` away from row i of x, as in a trained contrastive batch; the other pairs are far apart.
Errors are relative, against 50 digits.
"""

import argparse
import time

import torch

from hypvl.geometry.lorentz import exp0, mobius_add, pairwise_dist
from hypvl.geometry.precision import precise

FORMS = {
    "published": dict(mode="literal"),
    "gemm": dict(method="gemm"),
    "direct": dict(method="direct"),
}


def points(n, k, d, radius, separation, device, generator):
    "x and y [k, n, d] at a scaled radius of `radius`, matching rows `separation` apart, c = 1."
    v, w = (
        t / t.norm(dim=-1, keepdim=True)
        for t in torch.randn(2, k, n, d, generator=generator, dtype=torch.float64)
    )
    x = exp0(v * radius, c=1.0)
    return [t.float().to(device) for t in (x, mobius_add(x, exp0(w * separation, c=1.0), c=1.0))]


def milliseconds(f, device, repeat):
    "The best time of `f`, the least disturbed by other work."
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    for _ in range(repeat + 2):
        sync()
        start = time.perf_counter()
        f()
        sync()
        times.append(time.perf_counter() - start)
    return min(times[2:]) * 1e3


def worst_errors(distance, x, y):
    "Worst relative error of up to 200 pairs on the diagonal and off it."
    errors = []
    for shift in (0, 1):
        got = distance.roll(-shift, -1).diagonal(dim1=-2, dim2=-1).flatten()[:200].double().cpu()
        a, b = (t.flatten(0, 1)[:200].double().cpu() for t in (x, y.roll(-shift, 1)))
        truth = precise("dist", a, b, c=1.0)
        errors.append(((got - truth).abs() / truth).max().item())
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=192, help="rows of x and of y")
    parser.add_argument("--k", type=int, default=8, help="factors, a batch axis")
    parser.add_argument("--d", type=int, default=8, help="dimensions of a factor")
    parser.add_argument(
        "--radius",
        type=float,
        nargs="+",
        default=[1.0, 3.0, 6.0],
        help="scaled radius of the points",
    )
    parser.add_argument(
        "--separation", type=float, default=1e-3, help="scaled distance of matching rows"
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(
        f"n={args.n}, k={args.k}, d={args.d}, {args.device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}\n"
    )
    print(
        "| radius | form | forward ms | forward + backward ms | error, matching rows | error, other rows |"
    )
    print("|---|---|---|---|---|---|")
    for radius in args.radius:
        x, y = points(
            args.n,
            args.k,
            args.d,
            radius,
            args.separation,
            args.device,
            torch.Generator().manual_seed(args.seed),
        )
        leaves = [
            x.requires_grad_(),
            y.requires_grad_(),
            torch.ones(args.k, device=args.device, requires_grad=True),
        ]
        for name, how in FORMS.items():
            f = lambda: pairwise_dist(*leaves[:2], c=leaves[2], **how)
            forward = milliseconds(f, args.device, args.repeat)
            both = milliseconds(
                lambda: torch.autograd.grad(f().sum(), leaves), args.device, args.repeat
            )
            near, far = worst_errors(f().detach(), x.detach(), y.detach())
            print(f"| {radius:g} | {name} | {forward:.2f} | {both:.2f} | {near:.0e} | {far:.0e} |")


if __name__ == "__main__":
    main()
