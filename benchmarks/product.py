#!/usr/bin/env python
"""Time and memory of product distances and their contrastive loss, both directions, in four forms.

Textbook, chunked and fused, and on a GPU the kernels of `geometry.gpu_kernels`:

    python benchmarks/product.py                         # the sizes of the documentation
    python benchmarks/product.py --sizes 768x64x8 2048x64x8 --threads 2
    python benchmarks/product.py --sizes 768x64x8 --forms fused kernels --device cuda
    python benchmarks/product.py --roofline benchmarks/product_roofline.png

Prints a markdown table. Every row runs in a process of its own; on a CPU the memory is the growth
of that process's largest resident set during the run, on a GPU what the allocator reports. Times
are the best of `--repeats`: CPU time on a CPU with one thread (other processes matter little), wall
time with more and on a GPU. `--roofline` draws what the operations of a tile reach on this machine,
beside what it can: the fastest large matrix product, and copies of as many bytes.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial

from clock import least_cpu_seconds, peak_bytes, seconds_now

FORMS = ("textbook", "chunked", "fused")  # everywhere
KERNELS = "kernels"  # on a GPU


def make_loss(form, c):
    "Loss of a form as a function of points and scale."
    import torch
    import torch.nn.functional as F

    from hypvl.geometry import literal
    from hypvl.geometry.pairwise import product_cross_entropy_both
    from hypvl.geometry.product import pairwise_product_dist

    def both(logits):
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def textbook(x, y, scale):
        d = literal.pairwise_dist(x.movedim(1, 0), y.movedim(1, 0), c=c, eps=1e-6)
        return both(-scale * d.mean(0))

    def chunked(x, y, scale):
        return both(-scale * pairwise_product_dist(x, y, c=c))

    def fused(x, y, scale, by="tiled"):
        rows, columns = product_cross_entropy_both(x, y, c=c, scale=scale, form=by)
        return (rows.mean() + columns.mean()) / 2

    kernels = partial(fused, by="triton")
    return {"textbook": textbook, "chunked": chunked, "fused": fused, KERNELS: kernels}[form]


def measure(form, size, options):
    "One row: forward and forward + backward seconds, peak MiB above the inputs, the loss."
    import torch

    from hypvl.geometry.lorentz import exp0

    torch.set_num_threads(options.threads)
    batch, k, d = size
    device = torch.device(options.device)

    def now():
        return time.perf_counter() if options.threads > 1 else seconds_now(device)

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
    for _ in range(options.repeats):
        start = now()
        value = loss(x, y, scale)
        forward.append(now() - start)
        value.backward()
        both.append(now() - start)
    mebibytes = (peak_bytes(device) - before) / 2**20
    times = {"forward": min(forward), "both": min(both)}
    return {**times, "mib": mebibytes, "loss": value.item()}


def measure_in_a_process(form, size, options):
    "The same, with nothing else in memory."
    command = [sys.executable, __file__, "--row", form, size, "--device", options.device]
    command += ["--repeats", str(options.repeats), "--threads", str(options.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def operations():
    "Those of a tile of 128 x 1024 pairs in d = 8: name, call, flops and bytes moved of a pair."
    import torch

    rows, columns, width = 128, 1024, 10
    left, right = torch.rand(1, width, rows).double(), torch.rand(1, width, columns).double()
    wide = torch.rand(1, rows, columns).double()
    z, out, weight = wide.float(), wide.float(), torch.ones(1)
    total = torch.zeros(rows * columns)
    by_row, by_column = (
        torch.empty(1, width, rows).double(),
        torch.empty(1, width, columns).double(),
    )
    return rows * columns, [
        ("cosh: product, float64", lambda: torch.bmm(left.mT, right, out=wide), 2 * width, 8),
        ("to float32", lambda: z.copy_(wide), 0, 12),
        ("least value (near pairs)", lambda: z.amin(), 1, 4),
        ("z + z²/2", lambda: torch.addcmul(z, z, z, value=0.5, out=out), 3, 8),
        ("square root", lambda: torch.sqrt(z, out=out), 1, 8),
        ("z + sinh", lambda: torch.add(z, z, alpha=1.4, out=out), 2, 8),
        ("log1p", lambda: torch.log1p(z, out=out), 20, 8),
        ("sum over factors", lambda: total.addmv_(z.flatten(1).mT, weight), 2, 12),
        ("gradient / sinh", lambda: torch.div(z, z, out=out), 1, 12),
        ("to float64", lambda: wide.copy_(z), 0, 12),
        ("gradient of rows", lambda: torch.bmm(right, wide.mT, out=by_row), 2 * width, 8),
        ("gradient of columns", lambda: torch.bmm(left, wide, out=by_column), 2 * width, 8),
    ]


def draw_roofline(path, repeats):
    "Time of each operation on one thread, and the least that arithmetic and memory allow."
    import matplotlib.pyplot as plt
    import torch

    torch.set_num_threads(1)

    def best(call):
        return least_cpu_seconds(call, 20 * repeats)

    pairs, every = operations()
    rates = {}  # flops a second of the largest products
    for dtype in (torch.float32, torch.float64):
        square = torch.rand(1024, 1024, dtype=dtype)
        rates[dtype] = 2 * 1024**3 / best(lambda: square @ square)
    whole, into = torch.rand(pairs), torch.empty(pairs)
    bandwidth = 8 * pairs / best(lambda: into.copy_(whole))  # in the cache, read and written
    names, found, least = [], [], []
    for name, call, flops, moved in every:
        rate = rates[torch.float64 if "product" in name or "of " in name else torch.float32]
        names.append(name)
        found.append(1e9 * best(call) / pairs)
        least.append(1e9 * max(flops / rate, moved / bandwidth))
        print(f"{name:28} {found[-1]:5.2f} ns a pair, at least {least[-1]:.2f}")
    print(f"{'one after the other':28} {sum(found):5.2f} ns a pair, at least {sum(least):.2f}")
    numbers = [rates[torch.float32] / 1e9, rates[torch.float64] / 1e9, bandwidth / 1e9]
    print("GFLOP/s in float32 and float64, GB/s in the cache:", *(f"{n:.0f}" for n in numbers))
    fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.barh(names, found, color="tab:blue", label="measured")
    ax.plot(least, names, "k|", ms=16, mew=2, label="least by arithmetic or memory")
    ax.invert_yaxis()
    ax.set(xlabel="ns a pair and factor, one thread", title="Operations of a tile")
    ax.legend(frameon=False)
    fig.savefig(path, dpi=100)


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
    sizes = [(192, 8, 8), (192, 1, 64), (768, 64, 8), (2048, 64, 8)]
    add("--sizes", nargs="+", type=size_of, default=sizes, help="batch x factors x dimension")
    add("--forms", nargs="+", default=list(FORMS), choices=(*FORMS, KERNELS))
    add("--device", default="cpu")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=1)
    add("--roofline", metavar="PICTURE", help="draw the operations of a tile instead")
    add("--row", nargs=2, metavar=("FORM", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        form, size = options.row
        print(json.dumps(measure(form, size_of(size), options)))
        return
    if options.roofline:
        draw_roofline(options.roofline, options.repeats)
        return
    columns = ["B x k x d", "form", "forward, ms", "forward + backward, ms", "times the first form"]
    columns += ["peak memory, MiB", "loss"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for size in options.sizes:
        name, first = "x".join(str(part) for part in size), None
        for form in options.forms:
            row = measure_in_a_process(form, name, options)
            first = first or row["both"]
            times = f"{1e3 * row['forward']:.1f} | {1e3 * row['both']:.1f}"
            times += f" | {first / row['both']:.1f}"
            print(
                f"| {name} | {form} | {times} | {row['mib']:.0f} | {row['loss']:.6f} |", flush=True
            )


if __name__ == "__main__":
    main()
