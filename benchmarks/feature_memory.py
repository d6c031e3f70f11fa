#!/usr/bin/env python
"""Memory of training on a million pairs of features.

    OMP_NUM_THREADS=2 python benchmarks/feature_memory.py

A store of `--pairs` pairs of `--width` features, and `--steps` updates of PHyCLIP's heads on it.
The peak of anonymous memory (`RssAnon`) is that of the whole training process, torch included.
Pages of memory-mapped files do not count: the system drops them when it needs memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from hypvl.features import FeatureStore


def write_random(path, rows, width):
    "A file of random features, written in pieces."
    rng = np.random.default_rng(0)
    shape = (rows, width)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    for first in range(0, rows, 65536):
        last = min(first + 65536, rows)
        out[first:last] = rng.standard_normal((last - first, width), dtype=np.float32)
    out.flush()


class AnonymousMemory(threading.Thread):
    "The peak of this process's anonymous memory in MiB, looked at every 10 ms."

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.start_value = 0.0, self.now()

    def now(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def run(self):
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(0.01)


def train_once(args):
    "Train heads on the store, and print the peak of anonymous memory as JSON."
    memory = AnonymousMemory()
    memory.start()
    from hypvl.papers.feature_recipes import on_features
    from hypvl.papers.recipe_names import find_recipe
    from hypvl.papers.runs import train

    settings = {"objective.boxes": False, "train.steps": args.steps, "train.batch_size": args.batch}
    recipe = on_features(find_recipe("phyclip:phyclip", "mini", overrides=settings), args.store)
    imported = memory.peak
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        data = recipe.data.prepare(out, 0)
        train(recipe, data, Path(out) / "run", "cpu", progress=False)
        seconds = time.perf_counter() - start
    found = {"peak_mib": memory.peak, "imported_mib": imported, "seconds": seconds}
    print(json.dumps(found), flush=True)


def measure_memory(args):
    "Write a store in this process, train in another."
    with tempfile.TemporaryDirectory(dir=args.folder) as box:
        folder = Path(box)
        for side in ("image", "text"):
            write_random(folder / f"{side}.npy", args.pairs, args.width)
        memory = AnonymousMemory()
        memory.start()
        start = time.perf_counter()
        FeatureStore.from_arrays(folder / "store", folder / "image.npy", folder / "text.npy")
        seconds = time.perf_counter() - start
        print(f"store written in {seconds:.0f} s, peak anonymous memory {memory.peak:.0f} MiB")
        command = [sys.executable, __file__, "--store", str(folder / "store")]
        command += ["--steps", str(args.steps), "--batch", str(args.batch)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = json.loads(output.splitlines()[-1])
    print(f"{args.pairs:,} pairs x {args.width}, {args.steps} updates of {args.batch}:")
    print(
        f"peak anonymous memory {found['peak_mib']:.0f} MiB (after imports "
        f"{found['imported_mib']:.0f}), target 1,024; {found['seconds']:.0f} s"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--folder", help="for the store, some 6 GB")
    parser.add_argument("--store", help="train on this one, in the process that is measured")
    args = parser.parse_args()
    if args.store:
        train_once(args)
    else:
        measure_memory(args)


if __name__ == "__main__":
    main()
