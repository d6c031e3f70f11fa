#!/usr/bin/env python
"""Time and error of the pairwise hyperbolic distance: published, matrix product, differences.

    python benchmarks/geometry.py --n 192 --k 8 --d 8

Prints a markdown table. Row i of y lies `separation` away from row i of x, as in a trained
contrastive batch; the other pairs are far apart. Errors are relative, against 50 digits.
"""

import argparse
import time

import torch

from hypvl.geometry.lorentz import exp0, mobius_add, pairwise_dist
from hypvl.geometry.precision import precise

FORMS = {
    "published": {"mode": "literal"},
    "gemm": {"method": "gemm"},
    "direct": {"method": "direct"},
}


def make_points(args, radius):
    "x and y [k, n, d] at a scaled radius of `radius`, matching rows `separation` apart, c = 1."
    generator = torch.Generator().manual_seed(args.seed)
    shape = (2, args.k, args.n, args.d)
    directions = torch.randn(*shape, generator=generator, dtype=torch.float64)
    v, w = directions / directions.norm(dim=-1, keepdim=True)
    x = exp0(v * radius, c=1.0)
    y = mobius_add(x, exp0(w * args.separation, c=1.0), c=1.0)
    return x.float().to(args.device), y.float().to(args.device)


def milliseconds(do, device, repeat):
    "The best time of `do`, the least disturbed by other work."

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    times = []
    for _ in range(repeat + 2):
        start = now()
        do()
        times.append(now() - start)
    return min(times[2:]) * 1e3


def worst_error(distances, x, y, shift):
    "Worst relative error of up to 200 pairs of row i of x with row i + shift of y."
    found = distances.roll(-shift, -1).diagonal(dim1=-2, dim2=-1).flatten()
    a = x.flatten(0, 1)[:200].double().cpu()
    b = y.roll(-shift, 1).flatten(0, 1)[:200].double().cpu()
    truth = precise("dist", a, b, c=1.0)
    return ((found[:200].double().cpu() - truth).abs() / truth).max().item()


def print_rows(args, radius):
    "A row for each form."
    x, y = make_points(args, radius)
    c = torch.ones(args.k, device=args.device)
    leaves = [t.requires_grad_() for t in (x, y, c)]
    for name, how in FORMS.items():

        def forward():
            return pairwise_dist(x, y, c=c, **how)

        def forward_and_backward():
            torch.autograd.grad(forward().sum(), leaves)

        once = milliseconds(forward, args.device, args.repeat)
        both = milliseconds(forward_and_backward, args.device, args.repeat)
        distances = forward().detach()
        near, far = [worst_error(distances, x.detach(), y.detach(), shift) for shift in (0, 1)]
        print(f"| {radius:g} | {name} | {once:.2f} | {both:.2f} | {near:.0e} | {far:.0e} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--n", type=int, default=192, help="rows of x and of y")
    add("--k", type=int, default=8, help="factors, a batch axis")
    add("--d", type=int, default=8, help="dimensions of a factor")
    radii = [1.0, 3.0, 6.0]
    add("--radius", type=float, nargs="+", default=radii, help="scaled radius of the points")
    add("--separation", type=float, default=1e-3, help="scaled distance of matching rows")
    add("--device", type=torch.device, default=torch.device("cpu"))
    add("--repeat", type=int, default=20)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    place = f"{args.device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"n={args.n}, k={args.k}, d={args.d}, {place}\n")
    columns = ["radius", "form", "forward ms", "forward + backward ms"]
    columns += ["error, matching rows", "error, other rows"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for radius in args.radius:
        print_rows(args, radius)


if __name__ == "__main__":
    main()
