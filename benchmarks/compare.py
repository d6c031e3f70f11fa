#!/usr/bin/env python
"""Time of a comparison of geometries and losses, from features to its report.

    python benchmarks/compare.py --pairs 30000
    python benchmarks/compare.py --file features_clip.npy

`--pairs` draws features that share a linear map of 32 numbers per pair under noise. `--file` is a
file of features [2, N, W], images then texts, whose rows belong together.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import hypvl


def draw_features(pairs, width):
    "Features of images and texts, float32 [N, W] each."
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((pairs, 32), dtype=np.float32)
    sides = []
    for _ in range(2):
        signal = hidden @ rng.standard_normal((32, width), dtype=np.float32)
        sides.append(signal + 8 * rng.standard_normal((pairs, width), dtype=np.float32))
    return sides


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    image, text = np.load(args.file) if args.file else draw_features(args.pairs, args.width)
    start = time.perf_counter()
    found = hypvl.compare((image, text))
    seconds = time.perf_counter() - start
    print(found.report())
    print(f"{len(image):,} pairs x {image.shape[1]}: {seconds:.0f} s")


if __name__ == "__main__":
    main()
