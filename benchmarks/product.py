#!/usr/bin/env python
"""Time and memory of product distances and their contrastive loss: textbook, chunked and fused forms.

    python benchmarks/product.py                         # the sizes of the documentation
    python benchmarks/product.py --sizes 256x64x8 --forms chunked fused --device cuda

Prints a markdown table. Every row runs in a process of its own; on a CPU the memory is the growth of that process's
largest resident set during the run, on a GPU what the allocator reports. Times are the best of `--repeats`: CPU time of
one thread on a CPU (other processes matter little), wall time on a GPU.
"""

import argparse
import json
import subprocess
import sys
import time

FORMS = ("textbook", "chunked", "fused")


def make(form, c):
    "Loss of a form as a function of points and scale."
    import torch
    import torch.nn.functional as F

    from hypvl.geometry import literal
    from hypvl.geometry.product import pairwise_product_dist
    from hypvl.losses.fused import product_info_nce

    def target(x):
        return torch.arange(len(x), device=x.device)

    def textbook(x, y, scale):
        d = literal.pairwise_dist(x.movedim(1, 0), y.movedim(1, 0), c=c, eps=1e-6)
        return F.cross_entropy(-scale * d.mean(0), target(x))

    def chunked(x, y, scale):
        return F.cross_entropy(-scale * pairwise_product_dist(x, y, c=c), target(x))

    def fused(x, y, scale):
        return product_info_nce(x, y, c=c, scale=scale)

    return {"textbook": textbook, "chunked": chunked, "fused": fused}[form]


def measure(form, size, device, repeats):
    "One row: forward and forward + backward seconds, peak MiB above the inputs, the loss."
    import resource

    import torch

    from hypvl.geometry.lorentz import exp0

    torch.set_num_threads(1)
    B, k, d = size
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, B, k, d, generator=generator) / d**0.5
    v[1] = v[0] + 0.3 * v[1]
    x, y = (exp0(t.to(device), c=1.0).requires_grad_() for t in v)
    c, scale = (
        torch.ones(k, device=device, requires_grad=True),
        torch.tensor(4.0, device=device, requires_grad=True),
    )
    small = [t[:4].detach().requires_grad_() for t in (x, y)]
    loss = make(form, c)
    loss(*small, scale).backward()  # imports and caches
    cuda = torch.device(device).type == "cuda"

    def now():
        if not cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def peak():
        return (
            torch.cuda.max_memory_allocated()
            if cuda
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )

    before, forward, both = peak(), [], []
    for _ in range(repeats):
        start = now()
        value = loss(x, y, scale)
        forward.append(now() - start)
        value.backward()
        both.append(now() - start)
    return {
        "forward": min(forward),
        "both": min(both),
        "mib": (peak() - before) / 2**20,
        "loss": value.item(),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["192x8x8", "192x1x64", "512x64x8"],
        help="batch x factors x dimension",
    )
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row", nargs=2, metavar=("FORM", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()

    def parse(size):
        parts = size.split("x")
        if len(parts) != 3 or not all(p.isdigit() for p in parts):
            parser.error(f"--sizes must look like 512x64x8, got {size!r}")
        return tuple(map(int, parts))

    if options.row:
        return print(
            json.dumps(
                measure(options.row[0], parse(options.row[1]), options.device, options.repeats)
            )
        )
    for size in options.sizes:
        parse(size)
    print(
        "| B x k x d | form | forward, ms | forward + backward, ms | peak memory, MiB | loss |\n|---|---|---:|---:|---:|---:|",
        flush=True,
    )
    for size in options.sizes:
        for form in options.forms:
            command = [
                sys.executable,
                __file__,
                "--row",
                form,
                size,
                "--device",
                options.device,
                "--repeats",
                str(options.repeats),
            ]
            row = json.loads(
                subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True
                ).stdout.splitlines()[-1]
            )
            print(
                f"| {size} | {form} | {1e3 * row['forward']:.1f} | {1e3 * row['both']:.1f} | {row['mib']:.0f} | {row['loss']:.6f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
