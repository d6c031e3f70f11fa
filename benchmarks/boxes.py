#!/usr/bin/env python
"""A million boxes on one core: read from a CSV of Open Images, paired by containment, counted.

Images have 8.4 boxes on average with a long tail, as the training split of Open Images.

    OMP_NUM_THREADS=1 python benchmarks/boxes.py

Times are CPU times of this process, once; memory is the most that the process has held.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from hypvl.papers.visual_hierarchies.class_tree import class_statistics, class_tree
from hypvl.papers.visual_hierarchies.containment import containment_pairs, read_pairs, write_pairs
from hypvl.papers.visual_hierarchies.cross_image import CrossImage, candidates, training_pairs
from hypvl.papers.visual_hierarchies.open_images import read_open_images

HEADER = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,"
    "IsDepiction,IsInside,XClick1X,XClick2X,XClick3X,XClick4X,XClick1Y,XClick2Y,XClick3Y,XClick4Y\n"
)


def write_csv(path, count, classes):
    "A CSV of random boxes in the layout of the training split."
    rng = np.random.default_rng(0)
    sizes = np.minimum(1 + rng.negative_binomial(0.7, 0.7 / (0.7 + 7.4), count // 6), 700)
    image = np.repeat(np.arange(len(sizes)), sizes)[:count]
    low = rng.uniform(0, 0.9, (len(image), 2))
    high = np.minimum(low + np.exp(rng.uniform(-4, 0, (len(image), 2))), 1)
    label = np.minimum(rng.zipf(1.3, len(image)) - 1, classes - 1)
    tail = ",0,0,0,0,0" + ",0.500000" * 8 + "\n"
    with open(path, "w") as file:
        file.write(HEADER)
        for i, klass, (x1, y1), (x2, y2) in zip(image, label, low, high):
            corners = f"{x1:.6f},{x2:.6f},{y1:.6f},{y2:.6f}"
            file.write(f"{i:016x},xclick,/m/{klass:04d},1,{corners}{tail}")
    return len(image)


def held():
    "Most megabytes that this process has held."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=600)
    args = parser.parse_args()
    classes = {f"/m/{n:04d}": f"class {n}" for n in range(args.classes)}

    def timed(what, do):
        start = time.process_time()
        made = do()
        rows = f"{len(made):,}" if hasattr(made, "__len__") else ""
        seconds = time.process_time() - start
        print(f"| {what} | {rows} | {seconds:.1f} | {held():.0f} |", flush=True)
        return made

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "boxes.csv"
        count = write_csv(path, args.count, args.classes)
        size = path.stat().st_size / 2**20
        print(
            f"{count:,} boxes, {size:.0f} MB\n\n| | rows | CPU s | MB held |\n|---|---:|---:|---:|"
        )
        print(f"| before | | | {held():.0f} |")
        boxes = timed("read the CSV", lambda: read_open_images(path, classes))
        timed("containment pairs", lambda: containment_pairs(boxes))
        timed("the same with scenes as Parquet", lambda: write_pairs(boxes, folder, progress=False))
        pairs = timed("read the Parquet", lambda: read_pairs(boxes, folder))
        statistics = timed("class statistics", lambda: class_statistics(boxes, pairs))
        timed("class tree", lambda: class_tree(statistics, boxes, 5, 0.001).graph.edges)
        timed("training filter", lambda: training_pairs(boxes, pairs))
        cross = timed("prepare boxes of other images", lambda: CrossImage(boxes))
        timed("draw them for an epoch", lambda: cross.draw(0))
        timed("candidates and queries", lambda: candidates(boxes).rows)


if __name__ == "__main__":
    main()
