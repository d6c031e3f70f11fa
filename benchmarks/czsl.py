#!/usr/bin/env python
"""The bias sweep over all pairs of C-GQA: the published way with a full matrix, and streamed.

    OMP_NUM_THREADS=1 python benchmarks/czsl.py --images 5000
    OMP_NUM_THREADS=1 python benchmarks/czsl.py --images 200        # where memory is short

Both ways get the same scores, made in chunks of pairs; making them is not timed. The published way
collects the columns into a matrix [images, pairs] in float32, adds a bias of 1e3 to the unseen
pairs for the best of them, and then, for each of 21 to 40 biases, copies the matrix, adds the bias
and takes the best ten of each image. Each way runs in a process of its own; memory is the most
that it has held, less what it held before it saw a score. The published way holds two matrices, the
scores and their biased copy; where they would not fit it is refused: `--published 0` leaves it out.
"""

import argparse
import multiprocessing
import resource
import time

import numpy as np
import psutil
import torch

from hypvl.evaluation.bias_sweep import OFFSET, sweep
from hypvl.evaluation.czsl import StreamingSweep, feasibility_thresholds, search_threshold

STATES, OBJECTS, SEEN = 413, 674, 5592
CHUNK = 8192


def make_task(images):
    "Pairs, which are seen, targets (half of them seen), feasibility."
    rng = np.random.default_rng(0)
    pairs = np.stack(np.divmod(np.arange(STATES * OBJECTS), OBJECTS), 1)
    seen = np.zeros(len(pairs), bool)
    seen[rng.permutation(len(pairs))[:SEEN]] = True
    targets = rng.choice(np.flatnonzero(~seen), images)
    targets[::2] = rng.choice(np.flatnonzero(seen), len(targets[::2]))
    feasibility = np.where(seen, 0, rng.uniform(-0.2, 0.8, len(pairs)))
    return pairs, seen, targets, feasibility


def chunks(images, targets, seen):
    "First column and scores float32 [images, CHUNK]; targets and seen pairs score higher."
    rng = np.random.default_rng(1)
    for first in range(0, len(seen), CHUNK):
        last = min(first + CHUNK, len(seen))
        scores = rng.standard_normal((images, last - first), np.float32)
        scores += 1.0 * seen[first:last]
        rows = np.flatnonzero((targets >= first) & (targets < last))
        scores[rows, targets[rows] - first] += rng.uniform(2, 7, len(rows)).astype(np.float32)
        yield first, scores


def held():
    "Most megabytes that this process has held."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def published(images, pairs, seen, targets, feasibility):
    "A full matrix, copied for each bias."
    spent, columns = 0.0, []
    for _, scores in chunks(images, targets, seen):
        start = time.process_time()
        columns += torch.from_numpy(scores).unbind(1)
        spent += time.process_time() - start
    start = time.process_time()
    matrix = torch.stack(columns, 1)
    del columns, scores
    target, trained = torch.from_numpy(targets), torch.from_numpy(seen)
    of_seen, unseen = trained[target], (~trained).float()

    def answers(bias):
        biased = matrix.clone()
        biased += bias * unseen  # in place: indexing would copy the matrix twice more
        return biased.topk(10, dim=1).indices[:, 0]

    unseen_prediction = answers(1e3)
    reachable = (~of_seen & (unseen_prediction == target)).nonzero()[:, 0]
    best_seen = matrix[reachable][:, trained].topk(10, dim=1).values[:, 0]
    own = matrix[reachable, target[reachable]]
    needed = (best_seen - own - OFFSET).sort().values
    seen_accuracy, unseen_accuracy = [], []
    for bias in needed[:: max(len(needed) // 20, 1)].tolist():
        right = answers(bias) == target
        seen_accuracy.append(right[of_seen].float().mean().item())
        unseen_accuracy.append(right[~of_seen].float().mean().item())
    right = unseen_prediction == target
    seen_accuracy.append(right[of_seen].float().mean().item())
    unseen_accuracy.append(right[~of_seen].float().mean().item())
    area = float(np.trapezoid(seen_accuracy, unseen_accuracy))
    return spent + time.process_time() - start, area, len(seen_accuracy)


def streamed(images, pairs, seen, targets, feasibility):
    "Running maxima."
    start = time.process_time()
    sweep_state = StreamingSweep(targets, pairs, seen)
    spent = time.process_time() - start
    for first, scores in chunks(images, targets, seen):
        start = time.process_time()
        sweep_state.update(scores, slice(first, first + scores.shape[1]))
        spent += time.process_time() - start
    start = time.process_time()
    found = sweep(sweep_state.best())
    return spent + time.process_time() - start, found.auc, len(found.curve)


def searched(images, pairs, seen, targets, feasibility):
    "Fifty thresholds of feasibility in the same pass."
    start = time.process_time()
    levels = feasibility_thresholds(feasibility, seen)
    sweep_state = StreamingSweep(targets, pairs, seen, feasibility, thresholds=levels)
    spent = time.process_time() - start
    for first, scores in chunks(images, targets, seen):
        start = time.process_time()
        sweep_state.update(scores, slice(first, first + scores.shape[1]))
        spent += time.process_time() - start
    start = time.process_time()
    _, table = search_threshold(sweep_state)
    return spent + time.process_time() - start, float(table.auc.max()), len(table)


def measure(way, images, send):
    "One way in this process: CPU seconds, area, points, megabytes."
    torch.set_num_threads(1)
    task = make_task(images)
    before = held()
    found = way(images, *task)
    send.send((*found, held() - before))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--published", type=int, default=1, help="0: leave the full matrix out")
    args = parser.parse_args()
    matrix = args.images * STATES * OBJECTS * 4 / 2**20
    free = psutil.virtual_memory().available / 2**20
    if args.published and 2.5 * matrix > free:
        parser.error(
            f"--images {args.images}: the published way holds two matrices of {matrix:,.0f} MB and "
            f"{free:,.0f} MB are free; fewer images, or --published 0"
        )
    print(f"{args.images:,} images, {STATES * OBJECTS:,} pairs: a matrix of {matrix:,.0f} MB\n")
    print("| way | CPU s | times | MB held | area | points |\n|---|---:|---:|---:|---:|---:|")
    context, baseline = multiprocessing.get_context("spawn"), None
    ways = {"published: full matrix": published} if args.published else {}
    ways |= {"streamed": streamed, "streamed, 50 thresholds": searched}
    for name, way in ways.items():
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=measure, args=(way, args.images, send))
        process.start()
        send.close()
        try:
            seconds, area, points, memory = receive.recv()
        except EOFError:
            print(f"| {name} | did not finish | | | | |", flush=True)
            continue
        finally:
            process.join()
        baseline = seconds if way is published else baseline
        times = f"{baseline / seconds:.0f}" if baseline and way is streamed else ""
        row = f"{seconds:.1f} | {times} | {memory:,.0f} | {area:.4f} | {points}"
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
