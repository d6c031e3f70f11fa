#!/usr/bin/env python
"""Time and recall of `hypvl.search` on a million points.

    OMP_NUM_THREADS=2 python benchmarks/search.py                    # trains a small PHyCLIP first
    OMP_NUM_THREADS=2 python benchmarks/search.py --model RUN/model --embeddings points.npz

Four comparisons, the first three with two sides in turn, best of `--repeats`, because the machine
may be shared; where it is busy, `--clock cpu` with one thread says more than the time of a clock:

1. exact search by Lorentz distance, against `faiss.IndexFlatIP` on the same points, which
   computes plain inner products;
2. search by an l1 product distance, against every distance (`geometry.score`, block by block);
3. exact search by exterior angle, against every angle;
4. what a vector database finds (`--parts database`): recall@10 of faiss's HNSW graph on 20,000
   clustered points, by candidates of `bound_vectors` ranked again, and by `search_vectors`.

Trained points: pictures, captions, boxes and phrases of the world, embedded by a PHyCLIP of 64
factors of 8 dimensions (`--steps` updates of the recipe of preset `mini`), without repeats. They
are copied up to `--points`; each copy is moved in the tangent spaces at the roots of its factors by
normal noise whose expected length is `--noise` times the median distance, there, of a point to its
nearest neighbour. Queries are pictures and captions of the validation scenes, not moved. Random
points have normal tangent vectors. `--embeddings` keeps what was embedded, for the next time.
"""

import argparse
import os
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from hypvl.geometry.lorentz import exp0, log0
from hypvl.geometry.spaces import Lorentz, Product
from hypvl.search import build_index
from hypvl.search.database import database_rows, rerank_distances

BLOCK = 1 << 15


def train_model(cache, steps):
    "Folder of a PHyCLIP with 64 factors, trained on the world, and its data."
    from hypvl.papers.clip_line import recipe
    from hypvl.papers.runs import train

    made = recipe("phyclip", "mini", **{"model.geometry.k": 64, "train.steps": steps})
    data = made.data.prepare(cache / "data", made.image_size, workers=1)
    folder = cache / "runs" / made.hash
    if not (folder / "model").is_dir():
        train(made, data, folder)
    return folder / "model"


@torch.no_grad()
def embed_world(model, cache):
    "Points of the training scenes without repeats, and those of the validation scenes."
    from hypvl.evaluation.zero_shot import inference
    from hypvl.papers.clip_line import recipe

    made = recipe("phyclip", "mini")
    data = made.data.prepare(cache / "data", made.image_size, workers=1)
    found = {}
    with inference(model):
        for split, names in (
            ("train", ("image", "text", "box_image", "box_text")),
            ("val", ("image", "text")),
        ):
            loader = made.data.loader(data, model.tokenizer, made.image_size, 128, split=split)
            parts = []
            for _, batch in zip(range(150), loader):
                parts.append(torch.cat(list(model.embed(batch, names).values())))
            found[split] = torch.cat(parts)
    return found["train"].unique(dim=0), found["val"]


def make_trained(args):
    "The geometry, base points and queries."
    from hypvl.models import load_model

    folder = args.model or train_model(args.cache, args.steps)
    model = load_model(folder)
    geometry = model.geometry.requires_grad_(False)
    if args.embeddings and args.embeddings.is_file():
        held = np.load(args.embeddings)
        base, queries = torch.from_numpy(held["base"]), torch.from_numpy(held["queries"])
    else:
        base, queries = embed_world(model, args.cache)
        if args.embeddings:
            np.savez(args.embeddings, base=base.numpy(), queries=queries.numpy())
    return geometry, base, queries


@torch.no_grad()
def copies(geometry, base, count, noise, generator):
    "So many points: the base points again and again, moved a little."
    c = geometry.curvature
    logs = log0(geometry.split(base), c=c).flatten(1)
    some = logs[torch.randperm(len(logs), generator=generator)[:2000]].numpy()
    squares, _ = faiss.knn(some, logs.numpy(), 2)
    length = noise * float(np.median(np.sqrt(squares[:, 1].clip(0))))
    points = np.empty((count, geometry.dim), np.float32)
    for start in range(0, count, BLOCK):
        rows = torch.arange(start, min(start + BLOCK, count)) % len(logs)
        moved = torch.randn(len(rows), geometry.dim, generator=generator)
        moved = logs[rows] + moved * length / geometry.dim**0.5
        points[start : start + len(rows)] = exp0(geometry.split(moved), c=c).flatten(1).numpy()
    return points, length


def random_points(geometry, count, scale, generator):
    "Exponentials of normal tangent vectors."
    points = np.empty((count, geometry.dim), np.float32)
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        tangent = scale * torch.randn(rows, geometry.dim, generator=generator)
        lifted = exp0(geometry.split(tangent), c=geometry.curvature)
        points[start : start + rows] = lifted.flatten(1).numpy()
    return points


def in_turn(args, **calls):
    "Best seconds of each call, one after the other in each round, and the last results."
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    best, result = {}, {}
    for _ in range(args.repeats):
        for name, call in calls.items():
            start = clock()
            result[name] = call()
            best[name] = min(best.get(name, np.inf), clock() - start)
    return best, result


@torch.no_grad()
def every_score(geometry, queries, points, k):
    "The k best by scoring all points, block by block."
    scores = torch.empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(points), BLOCK):
        block = torch.from_numpy(points[start : start + BLOCK])
        value, place = geometry.score(queries, block).topk(min(k, len(block)), 1)
        scores, rows = torch.cat([scores, value], 1), torch.cat([rows, place + start], 1)
        scores, order = scores.topk(min(k, scores.shape[1]), 1)
        rows = rows.gather(1, order)
    return scores, rows


def recall(found, true):
    "Share of the true hits that score no worse than the last of them."
    least = true[:, -1:]
    slack = 4 * torch.finfo(torch.float32).eps * least.abs()
    return (found.float() >= least - slack).float().mean().item()


def row(*cells):
    "A line of a table."
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


@torch.no_grad()
def lorentz(args, generator):
    "Exact search by distance beside a flat inner product that knows no geometry."
    geometry = Lorentz(args.width).requires_grad_(False)
    points = random_points(geometry, args.points, args.radius / args.width**0.5, generator)
    index = build_index(geometry, points)
    flat = faiss.IndexFlatIP(args.width)
    flat.add(points)
    print(f"\n{index.describe()}; radius about {args.radius}\n")
    row(
        "queries at once", "faiss flat, ms a query", "hypvl, ms a query", "ratio", "scored", "exact"
    )
    row(*["---"] * 6)
    for count in args.queries:
        queries = torch.from_numpy(points[:: len(points) // count][:count] + np.float32(1e-3))
        best, result = in_turn(
            args,
            faiss=lambda: flat.search(queries.numpy(), 10),
            hypvl=lambda: index.search(queries, 10),
        )
        each = {name: 1000 * seconds / count for name, seconds in best.items()}
        hits = result["hypvl"]
        ratio = each["hypvl"] / each["faiss"]
        cells = f"{each['faiss']:.1f}", f"{each['hypvl']:.1f}", f"{ratio:.2f}"
        row(count, *cells, hits.scored // count, hits.exact)
    if "angles" not in args.parts:
        return
    print("\nAngles of the same points, 20 queries\n")
    row("direction", "every angle, ms a query", "hypvl, ms a query", "times", "scored")
    row(*["---"] * 5)
    queries = torch.from_numpy(points[:20] * np.float32(0.5))
    for direction in ("children", "parents"):
        best, result = in_turn(
            args,
            every=lambda: every_angle(geometry, queries[:4], points, direction),
            hypvl=lambda: index.search(queries, 10, by="angle", direction=direction),
        )
        every, ours = 1000 * best["every"] / 4, 1000 * best["hypvl"] / len(queries)
        hits = result["hypvl"]
        assert torch.allclose(hits.scores[:4], result["every"].float(), atol=1e-5)
        scored = hits.scored // len(queries)
        row(direction, f"{every:.0f}", f"{ours:.0f}", f"{every / ours:.1f}", scored)


def every_angle(geometry, queries, points, direction):
    "Ten best scores by measuring all angles."
    found = []
    for start in range(0, len(points), BLOCK):
        angles = geometry.angles(queries, torch.from_numpy(points[start : start + BLOCK]))
        found.append(torch.pi - angles if direction == "children" else angles)
    return torch.cat(found, 1).topk(10).values


@torch.no_grad()
def product(args, name, geometry, points, queries):
    "Candidates and exact scores beside all scores."
    row("points", "way", "all scores, ms", "hypvl, ms", "times", "recall@10", "certain", "scored")
    row(*["---"] * 8)
    for method, candidates in args.ways:
        how = dict(method=method, candidates=candidates)
        index = build_index(geometry, points, **how)
        best, result = in_turn(
            args,
            every=lambda: every_score(geometry, queries, points, 10),
            hypvl=lambda: index.search(queries, 10),
        )
        each = {key: 1000 * seconds / len(queries) for key, seconds in best.items()}
        hits, true = result["hypvl"], result["every"][0]
        cells = f"{each['every']:.0f}", f"{each['hypvl']:.1f}"
        cells += (f"{each['every'] / each['hypvl']:.0f}", f"{recall(hits.scores, true):.4f}")
        certain = f"{hits.certain.float().mean():.2f}"
        row(name, f"{method}, {candidates}", *cells, certain, hits.scored // len(queries))


def clustered(args, radius):
    "Points whose tangent vectors are normal around cluster centres."
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(args.database // 40, 16))
    tangent = centres[rng.integers(0, len(centres), args.database)]
    tangent = tangent + 0.3 * rng.normal(size=tangent.shape)
    tangent *= radius / np.linalg.norm(tangent, axis=1).mean()
    return exp0(torch.from_numpy(tangent), c=torch.tensor(1.0)).float()


def near_ids(keys, queries, count, metric=faiss.METRIC_L2):
    "Ids of the nearest by an HNSW graph."
    graph = faiss.IndexHNSWFlat(keys.shape[1], 32, metric)
    graph.hnsw.efConstruction = 200
    graph.add(np.ascontiguousarray(keys))
    effort = faiss.SearchParametersHNSW(efSearch=400)
    return graph.search(np.ascontiguousarray(queries), count, params=effort)[1]


@torch.no_grad()
def database(args):
    "Recall@10 of three ways to store hyperbolic points in a vector database."
    row("mean radius", "norms", "bound vectors, 200", "200 per band of norms", "search vectors")
    row(*["---"] * 5)
    geometry = Lorentz(16).requires_grad_(False)
    for radius in (0.5, 1, 2, 4, 6, 8):
        points = clustered(args, radius)
        wide, rows = points.double(), database_rows(geometry, points)
        exact = torch.stack([geometry.dist(one.expand_as(wide), wide) for one in wide[:100]])
        true = exact.argsort(1)[:, :10].numpy()
        stored, norms, bands = np.stack(rows["vector"]), rows["norm"], rows["band"].to_numpy()
        parts = []
        for band in np.unique(bands):
            ids = np.flatnonzero(bands == band)
            found = near_ids(stored[ids], stored[:100], min(200, len(ids)))
            parts.append(np.where(found < 0, -1, ids[found]))
        keys, queries = (geometry.search_vectors(points, side).numpy() for side in ("key", "query"))
        shares = []
        for candidates in (near_ids(stored, stored[:100], 200), np.concatenate(parts, 1)):
            hits = []
            for i, ids in enumerate(candidates):
                ids = ids[ids >= 0]
                best = ids[rerank_distances(stored[i], stored[ids], 1.0).argsort()[:10]]
                hits.append(len({*best} & {*true[i]}) / 10)
            shares.append(np.mean(hits))
        found = near_ids(keys, queries[:100], 10, faiss.METRIC_INNER_PRODUCT)
        shares.append(np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, true)]))
        row(radius, f"{norms.min():.1f}–{norms.max():.1f}", *(f"{share:.3f}" for share in shares))


def parse_way(text):
    "'flat:1000' → method and candidates."
    method, candidates = text.split(":")
    return method, int(candidates)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--radius", type=float, default=3.0, help="of the points of one space")
    parser.add_argument("--queries", type=int, nargs="+", default=[64, 8, 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=700, help="of the model, if none is given")
    parser.add_argument("--model", type=Path, help="folder of a trained product model")
    parser.add_argument("--embeddings", type=Path, help=".npz to keep or to take embeddings")
    parser.add_argument("--cache", type=Path, default=Path("runs/search"))
    parser.add_argument("--ways", type=parse_way, nargs="+", default=[("flat", 500)])
    parser.add_argument("--parts", nargs="+", default=["lorentz", "angles", "trained", "random"])
    parser.add_argument("--database", type=int, default=20_000, help="points of part database")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    args = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or os.cpu_count()
    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    print(f"{threads} threads, {args.clock} time, load {os.getloadavg()[0]:.1f} at the start")
    generator = torch.Generator().manual_seed(0)
    if "database" in args.parts:
        database(args)
    if "lorentz" in args.parts:
        lorentz(args, generator)
    if "trained" in args.parts:
        geometry, base, queries = make_trained(args)
        points, length = copies(geometry, base, args.points, args.noise, generator)
        queries = queries[torch.randperm(len(queries), generator=generator)[: args.queries[0]]]
        print(f"\n{len(base):,} base points, moved by {length:.3f}; {geometry.describe()}\n")
        product(args, "trained", geometry, points, queries)
        del points
    if "random" in args.parts:
        geometry = Product(args.width // 8, 8).requires_grad_(False)
        points = random_points(geometry, args.points, 0.35, generator)
        queries = random_points(geometry, args.queries[0], 0.35, generator)
        print("\nNormal tangent vectors, about 1 long in each factor\n")
        product(args, "random", geometry, points, torch.from_numpy(queries))
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
