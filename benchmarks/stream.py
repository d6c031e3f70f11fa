#!/usr/bin/env python
"""Whether memory stays flat while samples are streamed from shards in the shuffled, endless order.

    python benchmarks/sweep_state.py --samples 100000

One process reads; its resident memory is printed ten times on the way. Shards hold 1,000 samples
of a picture, two boxes and their texts, 64 px; all are links to one file, which the loader cannot
know. Memory that grew with samples, shards or epochs would show.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import open_clip
from real_data import write_photographs

from hypvl.data.batches import Loader
from hypvl.data.grit.shard_dataset import ShardDataset

SHARD = 1000


def resident_mib() -> float:
    "Memory of this process that is in use now, in MiB."
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def write_shards(folder: Path, shards: int) -> None:
    "One shard of drawn photographs, and links to it."
    write_photographs(folder / "00000.tar", 64, SHARD, np.random.default_rng(0))
    for n in range(1, shards):
        os.link(folder / "00000.tar", folder / f"{n:05d}.tar")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name), max(1, options.samples // SHARD))
        dataset = ShardDataset(name, open_clip.get_tokenizer("ViT-B-32"), 64)
        loader = Loader(dataset, options.batch)
        print("| samples | CPU s | MiB in use |\n|---:|---:|---:|", flush=True)
        start, seen, every = time.process_time(), 0, max(1, options.samples // 10)
        for batch in loader:
            seen += len(batch["image"])
            if seen % every < options.batch:
                seconds = time.process_time() - start
                print(f"| {seen:,} | {seconds:.0f} | {resident_mib():.0f} |", flush=True)
            if seen >= options.samples:
                break


if __name__ == "__main__":
    main()
