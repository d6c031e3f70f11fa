#!/usr/bin/env python
"""Scenes a second of the synthetic dataset on one core, drawn and written as raw GRIT.

Drawn means: with caption, boxes and parse.

    python benchmarks/world.py

Times are CPU times of this process, best of `--repeats`.
"""

import argparse
import tempfile

from clock import least_cpu_seconds

from hypvl.data.world.captions import sample
from hypvl.data.world.scenes import World, WorldConfig
from hypvl.data.world.writers import write_grit


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--size", type=int, default=48, help="side of a scene in pixels")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    world = World(WorldConfig(image_size=args.size))

    def draw():
        for i in range(args.count):
            sample(world, "train", i)

    def write():
        with tempfile.TemporaryDirectory() as folder:
            write_grit(world, "train", args.count, folder, progress=False)

    print(f"{args.count} scenes of {args.size} px\n\n| | scenes/s on one core |\n|---|---:|")
    for what, do in (("drawn", draw), ("drawn, encoded, written", write)):
        print(f"| {what} | {args.count / least_cpu_seconds(do, args.repeats):.0f} |", flush=True)


if __name__ == "__main__":
    main()
