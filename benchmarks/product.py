#!/usr/bin/env python
"""Time and memory of product distances and their contrastive loss in three forms.

Textbook, chunked and fused:

    python benchmarks/product.py                         # the sizes of the documentation
    python benchmarks/product.py --sizes 256x64x8 --forms chunked fused --device cuda

Prints a markdown table. Every row runs in a process of its own; on a CPU the memory is the growth
of that process's largest resident set during the run, on a GPU what the allocator reports. Times
are the best of `--repeats`: CPU time of one thread on a CPU (other processes matter little), wall
time on a GPU.
"""

import argparse
import json
import subprocess
import sys

from clock import peak_bytes, seconds_now

FORMS = ("textbook", "chunked", "fused")


def make_loss(form, c):
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
    import torch

    from hypvl.geometry.lorentz import exp0

    torch.set_num_threads(1)
    batch, k, d = size
    device = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, batch, k, d, generator=generator) / d**0.5
    v[1] = v[0] + 0.3 * v[1]
    x, y = exp0(v.to(device), c=1.0)
    x.requires_grad_()
    y.requires_grad_()
    c = torch.ones(k, device=device, requires_grad=True)
    scale = torch.tensor(4.0, device=device, requires_grad=True)
    loss = make_loss(form, c)
    few = [t[:4].detach().requires_grad_() for t in (x, y)]
    loss(*few, scale).backward()  # imports and caches

    before, forward, both = peak_bytes(device), [], []
    for _ in range(repeats):
        start = seconds_now(device)
        value = loss(x, y, scale)
        forward.append(seconds_now(device) - start)
        value.backward()
        both.append(seconds_now(device) - start)
    mebibytes = (peak_bytes(device) - before) / 2**20
    times = {"forward": min(forward), "both": min(both)}
    return {**times, "mib": mebibytes, "loss": value.item()}


def measure_in_a_process(form, size, options):
    "The same, with nothing else in memory."
    command = [sys.executable, __file__, "--row", form, size]
    command += ["--device", options.device, "--repeats", str(options.repeats)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def size_of(text):
    "'512x64x8' as three numbers."
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"a size must look like 512x64x8, got {text!r}")
    return tuple(int(part) for part in parts)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    sizes = [(192, 8, 8), (192, 1, 64), (512, 64, 8)]
    add("--sizes", nargs="+", type=size_of, default=sizes, help="batch x factors x dimension")
    add("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    add("--device", default="cpu")
    add("--repeats", type=int, default=3)
    add("--row", nargs=2, metavar=("FORM", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        form, size = options.row
        print(json.dumps(measure(form, size_of(size), options.device, options.repeats)))
        return
    columns = ["B x k x d", "form", "forward, ms", "forward + backward, ms"]
    columns += ["peak memory, MiB", "loss"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    for size in options.sizes:
        name = "x".join(str(part) for part in size)
        for form in options.forms:
            row = measure_in_a_process(form, name, options)
            times = f"{1e3 * row['forward']:.1f} | {1e3 * row['both']:.1f}"
            print(f"| {name} | {form} | {times} | {row['mib']:.0f} | {row['loss']:.6f} |")


if __name__ == "__main__":
    main()
