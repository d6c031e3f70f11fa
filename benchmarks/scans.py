#!/usr/bin/env python
"""Would compiled loops, as in the product kernels, serve search and the sweep over compositions?

    OMP_NUM_THREADS=1 python benchmarks/scans.py

Each job is done by the package and by a serial loop of numba, one after the other. The least CPU
time of `--repeats` on one thread is printed, and both results are compared.

1. The k largest inner products of queries among float32 vectors (`largest_products`).
2. Distances in a product of 64 factors: float64 as the index scores candidates, float32 by the
   kernels, and the candidate lists of the index.
3. The best seen and unseen candidate of each image (`StreamingSweep`), with and without
   thresholds.
"""

import argparse

import numpy as np
import torch
from clock import least_cpu_seconds
from numba import njit

from hypvl.evaluation.czsl import StreamingSweep, feasibility_thresholds
from hypvl.geometry.spaces import Product
from hypvl.search import build_index
from hypvl.search.exact_search import Scorer, largest_products

HOW = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}
K = 10


@njit(**HOW)
def scan(keys, queries, products, rows):
    "The K largest products of each query, in order."
    for n in range(len(keys)):
        for q in range(len(queries)):
            product = np.float32(0)
            for w in range(keys.shape[1]):
                product += keys[n, w] * queries[q, w]
            if product > products[q, -1]:
                place = K - 1
                while place > 0 and product > products[q, place - 1]:
                    products[q, place] = products[q, place - 1]
                    rows[q, place] = rows[q, place - 1]
                    place -= 1
                products[q, place] = product
                rows[q, place] = n


def scanned(keys, queries):
    "Products and rows of `scan`."
    products = np.full((len(queries), K), -np.inf, np.float32)
    rows = np.zeros((len(queries), K), np.int64)
    scan(keys, queries, products, rows)
    return products, rows


@njit(**HOW)
def best_by_group(scores, first, group, value, column):
    "Update the best score of each group and image, and its column."
    for image in range(len(scores)):
        for p in range(scores.shape[1]):
            own = group[first + p]
            if own >= 0 and scores[image, p] > value[own, image]:
                value[own, image] = scores[image, p]
                column[own, image] = first + p


def report(job, amount, seconds):
    "Rows of one job; `times` is relative to the first."
    first = next(iter(seconds.values()))
    for way, own in seconds.items():
        print(f"| {job} | {amount} | {way} | {1000 * own:.0f} | {first / own:.2f} |", flush=True)


def inner_products(args, rng):
    "Job 1."
    keys = rng.standard_normal((args.points, 512), np.float32)
    for count in (1, 8, 64):
        queries = rng.standard_normal((count, 512), np.float32)
        ours, loop = largest_products(keys, queries, K), scanned(keys, queries)
        assert np.allclose(ours[0], loop[0], rtol=1e-4)
        seconds = {
            "torch (package)": least_cpu_seconds(
                lambda: largest_products(keys, queries, K), args.repeats
            ),
            "numba": least_cpu_seconds(lambda: scanned(keys, queries), args.repeats),
        }
        report("inner products", f"{count} queries", seconds)


@torch.no_grad()
def distances(args, rng):
    "Job 2."
    geometry = Product(64, 8).requires_grad_(False)
    points = rng.standard_normal((args.points // 4, 512), np.float32) * np.float32(0.2)
    index, scorer = build_index(geometry, points, candidates=500), Scorer(geometry)
    keys = torch.from_numpy(points)
    for count in (1, 8, 64):
        queries = points[:count] + np.float32(1e-3)
        asked = torch.from_numpy(queries)

        def float64():
            return scorer.scores(queries, points)

        def kernels():
            return torch.cat([geometry.score(asked, part) for part in keys.split(8192)], 1)

        assert np.allclose(float64()[0], kernels()[0].numpy(), rtol=1e-5)
        seconds = {
            "float64 (package, all points)": least_cpu_seconds(float64, args.repeats),
            "float32 kernels (numba)": least_cpu_seconds(kernels, args.repeats),
            "candidate lists (package)": least_cpu_seconds(
                lambda: index.search(asked, K), args.repeats
            ),
        }
        report("64 × 8 distances", f"{count} queries", seconds)


def compositions(args, rng):
    "Job 3, at the size of C-GQA."
    states, objects, seen_count, width = 413, 674, 5592, 8192
    pairs = np.stack(np.divmod(np.arange(states * objects), objects), 1)
    seen = np.zeros(len(pairs), bool)
    seen[rng.permutation(len(pairs))[:seen_count]] = True
    targets = rng.choice(len(pairs), args.images)
    feasibility = np.where(seen, 0, rng.uniform(-0.2, 0.8, len(pairs)))
    levels = feasibility_thresholds(feasibility, seen)
    chunk = rng.standard_normal((args.images, width), np.float32)
    for name, how in {"no threshold": {}, "50 thresholds": {"thresholds": levels}}.items():
        known = feasibility if how else None
        ours = StreamingSweep(targets, pairs, seen, known, **how)
        group, groups = ours.group, len(ours._score)
        value = np.full((groups, args.images), -np.inf, np.float32)
        column = np.full(value.shape, -1)
        ours.update(chunk, slice(0, width))
        best_by_group(chunk, 0, group, value, column)
        assert (ours._score == value).all() and (ours._pair == column).all()

        def package():
            ours.update(chunk, slice(0, width))

        def loop():
            value.fill(-np.inf)
            best_by_group(chunk, 0, group, value, column)

        seconds = {
            "NumPy (package)": least_cpu_seconds(package, args.repeats),
            "numba": least_cpu_seconds(loop, args.repeats),
        }
        report("bias sweep", f"{args.images} images, {width} pairs, {name}", seconds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print("| job | amount | way | ms | times |\n|---|---|---|---:|---:|")
    inner_products(args, rng)
    distances(args, rng)
    compositions(args, rng)


if __name__ == "__main__":
    main()
