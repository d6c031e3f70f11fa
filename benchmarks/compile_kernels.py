#!/usr/bin/env python
"""Compile the Triton kernels of the product contrast ahead of time; no GPU is needed.

    python benchmarks/compile_kernels.py                  # 8 and 32 dimensions, sm_80 and sm_90
    python benchmarks/compile_kernels.py --dims 1 8 --metrics l1 l2 --capabilities 90

Prints a markdown table: CPU seconds to compile, registers and spilled bytes per thread, bytes of
shared memory per block, and the instruction of the float64 products.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hypvl.geometry import gpu_kernels

FLOAT64 = "roots shares sums_x sums_y sums out lse_x lse_y slopes for_c".split()
FLOAT32 = """x y scale distances least_x least_y nearest hits least grad_x grad_y weights
for_x""".split()
TYPES = {name: "*fp64" for name in FLOAT64} | {name: "*fp32" for name in FLOAT32}
TYPES["flags"] = "*i8"


def kernels_of_a_step(settings):
    "Name, kernel and constants of each kernel of a training step that keeps distances."
    for exact in (False, True):
        form = "differences" if exact else "product"
        how = settings | {"EXACT": exact}
        yield f"distances, {form}", gpu_kernels._distance_kernel, how | {"KEEP": True, "SUMS": True}
        yield f"gradient of rows, {form}", gpu_kernels._gradient_kernel, how | {"WITH_C": True}
        columns = {"WITH_C": False, "by_row": 1}
        yield f"gradient of columns, {form}", gpu_kernels._gradient_kernel, how | columns
    size = {"L2": settings["L2"], "B": settings["B"]}
    yield "weights", gpu_kernels._weight_kernel, size | {"BOTH": True}
    yield "logsumexp", gpu_kernels._logsumexp_kernel, {"B": 128}


def compile_one(kernel, constants, capability, options):
    "CPU seconds, registers, spilled bytes, shared bytes and product instruction."
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else TYPES.get(n, "i32") for n in names}
    pointers = [i for i, name in enumerate(names) if signature[name].startswith("*")]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    start = sum(children_and_own())
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    seconds = sum(children_and_own()) - start
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = {key: int(re.search(rf"{key}:(\d+)", usage).group(1)) for key in ("REG", "STACK")}
    products = set(re.findall(r"mma\.sync\S*?(m\d+n\d+k\d+)\S*(f64)", found.asm["ptx"]))
    instruction = ", ".join(" ".join(parts) for parts in sorted(products)) or "none"
    return seconds, used["REG"], used["STACK"], found.metadata.shared, instruction


def children_and_own():
    "CPU seconds of this process and of those that it has started: ptxas is one."
    times = os.times()
    return times.user, times.system, times.children_user, times.children_system


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--metrics", nargs="+", default=["l1"], choices=["l1", "l2"])
    parser.add_argument("--capabilities", nargs="+", type=int, default=[80, 90])
    options = parser.parse_args()
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # a stored kernel would take no time
    print("| d | metric | sm | kernel | CPU s | registers | spilled, B | shared, B | product |")
    print("|---:|---|---:|---|---:|---:|---:|---:|---|")
    for d in options.dims:
        for metric in options.metrics:
            settings = gpu_kernels._settings(torch.empty(1, 1, d), metric == "l2")
            stages = {"num_stages": settings.pop("num_stages")}
            for capability in options.capabilities:
                total = 0.0
                for name, kernel, constants in kernels_of_a_step(settings):
                    row = compile_one(kernel, constants, capability, stages)
                    total += row[0]
                    cells = [d, metric, capability, name, f"{row[0]:.1f}", *row[1:]]
                    print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
                print(f"| {d} | {metric} | {capability} | all | {total:.1f} | | | | |", flush=True)


if __name__ == "__main__":
    main()
