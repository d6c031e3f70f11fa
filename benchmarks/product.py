#!/usr/bin/env python
"""Time and memory of the contrastive loss on product distances, both directions, in each form.

Textbook, plain (torch's operations), numba (compiled loops), an earlier version of the package,
and on a GPU the kernels of `geometry.gpu_kernels`:

    python benchmarks/product.py                         # 768 pairs, 64 factors of 8 dimensions
    python benchmarks/product.py --sizes 768x1x512 256x8x16 --threads 2
    python benchmarks/product.py --batches random tenth half collapsed --forms numba
    python benchmarks/product.py --forms textbook before plain numba --before 5bba68b9
    python benchmarks/product.py --sizes 768x64x8 --forms plain kernels --device cuda

Prints a markdown table. Every row runs in a process of its own; on a CPU the memory is the growth
of that process's largest resident set during the run, on a GPU what the allocator reports. Times
are the best of `--repeats`: CPU time on a CPU with one thread (other processes matter little), wall
time with more and on a GPU. `before` is the fused form of the commit that `--before` names.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clock import peak_bytes, seconds_now

ROOT = Path(__file__).resolve().parent.parent
FORMS = ("textbook", "before", "plain", "numba", "kernels")
BATCHES = ("random", "tenth", "half", "collapsed")  # equal rows: none, 10 %, 50 %; one point


def make_loss(form, c):
    "Loss of a form as a function of points and scale."
    import torch
    import torch.nn.functional as F

    from hypvl.geometry import literal
    from hypvl.geometry.pairwise import product_cross_entropy_both

    def textbook(x, y, scale):
        d = literal.pairwise_dist(x.movedim(1, 0), y.movedim(1, 0), c=c, eps=1e-6)
        logits = -scale * d.mean(0)
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def fused(x, y, scale):
        asked = {"form": "triton"} if form == "kernels" else {}
        rows, columns = product_cross_entropy_both(x, y, c=c, scale=scale, **asked)
        return (rows.mean() + columns.mean()) / 2

    if form == "plain":
        from hypvl.geometry import product_kernels

        product_kernels.numba = None
    return textbook if form == "textbook" else fused


def make_batch(kind, batch, k, d):
    "Queries and keys near them."
    import torch

    from hypvl.geometry.lorentz import exp0

    v = torch.randn(2, batch, k, d, generator=torch.Generator().manual_seed(0)) / d**0.5
    v[1] = v[0] + 0.3 * v[1]
    equal = {"tenth": batch // 10, "half": batch // 2}.get(kind, 0)
    v[:, :equal] = v[0, 0]
    if kind == "collapsed":
        v = v[:1, :1] + 1e-4 * v
    return exp0(v, c=1.0)


def measure(form, size, options):
    "One row: forward and forward + backward seconds, peak MiB above the inputs, the loss."
    import torch

    torch.set_num_threads(options.threads)
    batch, k, d = size
    device = torch.device(options.device)

    def now():
        return time.perf_counter() if options.threads > 1 else seconds_now(device)

    x, y = make_batch(options.batches[0], batch, k, d).to(device)
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


def measure_in_a_process(form, size, batch, options, earlier):
    "The same, with nothing else in memory."
    command = [sys.executable, __file__, "--row", form, size, "--device", options.device]
    command += ["--repeats", str(options.repeats), "--threads", str(options.threads)]
    command += ["--batches", batch]
    path = earlier if form == "before" else str(ROOT)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def extract(commit, folder):
    "The package as it was at a commit."
    command = ["git", "-C", str(ROOT), "archive", "--format=tar"]
    done = subprocess.run([*command, f"{commit}:hypvl"], check=True, stdout=subprocess.PIPE)
    inside = Path(folder, "hypvl")
    inside.mkdir()
    subprocess.run(["tar", "-x", "-C", str(inside)], input=done.stdout, check=True)


def size_of(text):
    "'512x64x8' as three numbers."
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"a size must look like 512x64x8, got {text!r}")
    return tuple(int(part) for part in parts)


def print_table(options, earlier):
    "A row per size, batch and form."
    columns = ["B x k x d", "batch", "form", "forward, ms", "forward + backward, ms"]
    columns += ["times the first form", "peak memory, MiB", "loss"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---:|---:|---:|---:|---:|", flush=True)
    for size in options.sizes:
        name = "x".join(str(part) for part in size)
        for batch in options.batches:
            first = None
            for form in options.forms:
                row = measure_in_a_process(form, name, batch, options, earlier)
                first = first or row["both"]
                cells = [name, batch, form, f"{1e3 * row['forward']:.1f}"]
                cells += [f"{1e3 * row['both']:.1f}", f"{first / row['both']:.1f}"]
                cells += [f"{row['mib']:.0f}", f"{row['loss']:.6f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sizes", nargs="+", type=size_of, default=[(768, 64, 8)], help="B x k x d")
    add("--batches", nargs="+", default=["random"], choices=BATCHES)
    add("--forms", nargs="+", default=["textbook", "plain", "numba"], choices=FORMS)
    add("--before", metavar="COMMIT", help="whose fused form is the form 'before'")
    add("--device", default="cpu")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=1)
    add("--row", nargs=2, metavar=("FORM", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        form, size = options.row
        print(json.dumps(measure(form, size_of(size), options)))
        return
    if "before" in options.forms and not options.before:
        parser.error("--forms before needs --before COMMIT, got none")
    with tempfile.TemporaryDirectory() as folder:
        if options.before:
            extract(options.before, folder)
        print_table(options, folder)


if __name__ == "__main__":
    main()
