#!/usr/bin/env python
"""Time and memory of a router of pairs: the network as written, in tiles, and in compiled tiles.

    python benchmarks/router.py                          # the sizes of the documentation
    python benchmarks/router.py --sizes 512 1024 --forms naive tiles
    python benchmarks/router.py --sizes 1024 --forms naive tiles --threads 2

Forward and backward of a loss on the weights of B x B pairs. Prints a markdown table. Every row
runs in a process of its own; on a CPU the memory is the growth of that process's largest resident
set during the run, on a GPU what the allocator reports. Times are the best of `--repeats`: CPU time
of one thread on a CPU (other processes matter little), wall time of several, and on a GPU.
`compiled` passes the functions of a tile through torch.compile, whose first call, some ten seconds,
is not counted.
"""

import argparse
import json
import subprocess
import sys
import time

from clock import peak_bytes, seconds_now

FORMS = ("naive", "tiles", "compiled")


def make_case(batch, form, device, chunk):
    "A router and what it reads."
    import torch

    from hypvl.papers.agr import router as module

    torch.manual_seed(0)
    implementation = "naive" if form == "naive" else "split_chunked"
    router = module.PairRouter(implementation=implementation, chunk_pairs=chunk or None).to(device)
    if form == "compiled":
        for name in ("tile_logits", "tile_gradients"):
            setattr(module, name, torch.compile(getattr(module, name)))
    correction = 5 * torch.randn(batch, batch, device=device)
    baseline = -6 * torch.rand(batch, batch, device=device)
    contexts = torch.randn(2, batch, 16, device=device).requires_grad_()
    return router, correction, baseline, contexts


def loss_of(router, correction, baseline, contexts):
    "A contrast of the two scores, weighed by the router, and the mean entropy of the weights."
    import torch
    import torch.nn.functional as F

    weight = (2 * router(correction, baseline, *contexts)).sigmoid()
    target = torch.arange(len(weight), device=weight.device)
    mixed = torch.lerp(baseline, correction, weight)
    return F.cross_entropy(mixed, target) + 0.1 * (weight.mean() - 0.5).square()


def measure(form, batch, device, repeats, chunk, threads):
    "One row: forward and forward + backward seconds, peak MiB above the inputs, gradients."
    import torch

    from hypvl.papers.agr.router import CHUNK_PAIRS

    torch.set_num_threads(threads)
    device = torch.device(device)

    def now():
        return time.perf_counter() if threads > 1 else seconds_now(device)

    pairs = chunk or CHUNK_PAIRS[device.type]
    rows = pairs // batch  # a tile of the same shape warms up
    warm = make_case(batch, form, device, chunk)
    part = slice(0, max(1, rows))
    few = [warm[1][part], warm[2][part], (warm[3][0][part], warm[3][1])]
    if form != "naive":
        warm[0](few[0], few[1], *few[2]).sum().backward()
    del warm, few
    case = make_case(batch, "tiles" if form == "compiled" else form, device, chunk)
    before, forward, both = peak_bytes(device), [], []
    for _ in range(repeats):
        case[0].zero_grad()
        case[3].grad = None
        start = now()
        value = loss_of(*case)
        forward.append(now() - start)
        value.backward()
        both.append(now() - start)
    mebibytes = (peak_bytes(device) - before) / 2**20
    norm = case[3].grad.norm().item()
    times = {"forward": min(forward), "both": min(both)}
    return {**times, "mib": mebibytes, "loss": value.item(), "gradient": norm}


def measure_in_a_process(form, batch, options):
    "The same, with nothing else in memory."
    command = [sys.executable, __file__, "--row", form, str(batch), "--device", options.device]
    command += ["--repeats", str(options.repeats), "--chunk", str(options.chunk)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sizes", nargs="+", type=int, default=[512, 1024, 2048], help="pairs of a batch")
    add("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    add("--device", default="cpu")
    add("--repeats", type=int, default=3)
    add("--chunk", type=int, default=0, help="pairs of a tile; 0: as the router chooses")
    add("--threads", type=int, default=1, help="of a CPU; with more than 1 wall time is taken")
    add("--row", nargs=2, metavar=("FORM", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        form, batch = options.row
        given = (options.device, options.repeats, options.chunk, options.threads)
        row = measure(form, int(batch), *given)
        print(json.dumps(row))
        return
    columns = ["B", "form", "forward, s", "forward + backward, s", "times naive"]
    columns += ["peak memory, MiB", "loss", "gradient"]
    print(f"| {' | '.join(columns)} |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for batch in options.sizes:
        slowest = None
        for form in options.forms:
            row = measure_in_a_process(form, batch, options)
            slowest = slowest or row["both"]
            times = f"{row['forward']:.2f} | {row['both']:.2f} | {slowest / row['both']:.1f}"
            ends = f"{row['mib']:.0f} | {row['loss']:.6f} | {row['gradient']:.6g}"
            print(f"| {batch} | {form} | {times} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
