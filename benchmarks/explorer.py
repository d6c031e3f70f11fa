"""Time to first results on many pictures: random points in clusters, thumbnails of noise.

python benchmarks/explorer.py --pictures 100000
"""

import argparse
import io
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hypvl.models import create_model
from hypvl.search.explorer_queries import Query, Searcher, View, find
from hypvl.search.explorer_views import cards, counted
from hypvl.search.gallery import WHOLE, Picture, Region, Store, digest, open_gallery


class NoiseSource:
    "Pictures that are only thumbnails, of the size that photographs have."

    title = "noise"

    def __init__(self, count):
        self.count = count

    def scan(self, store, progress):
        pictures, rows = [], []
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((256, 192)).save(buffer, "JPEG", quality=85)
        for i in range(self.count):
            key = digest(str(i))
            region = Region("scene", f"label {i % 200}", WHOLE)
            pictures.append(Picture(key, f"{i}.jpg", (region,)))
            rows.append((key, buffer.getvalue(), ""))
        store.put("pictures", rows)
        return pictures, []


def random_points(geometry, count, clusters=200):
    "Features around cluster centres, lifted."
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, geometry.feature_dim, generator=generator)
    which = torch.randint(clusters, (count,), generator=generator)
    noise = torch.randn(count, geometry.feature_dim, generator=generator)
    with torch.no_grad():
        return geometry.lift(centres[which] + 0.5 * noise).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--models", default="clip_tiny_s,meru_tiny_s,phyclip_tiny_s")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "explorer.sqlite")
        gallery = open_gallery(NoiseSource(args.pictures), store)
        for name in args.models.split(","):
            model = create_model(name, seed=0).eval()
            points = random_points(model.geometry, args.pictures)
            start = time.perf_counter()
            searcher = Searcher(name, model, gallery, points).prepare()
            built = time.perf_counter() - start
            for score in searcher.scores:
                for mode in ("nearest", "threshold"):
                    times, work = [], []
                    for i in range(args.repeats + 1):
                        view = View(score=score, mode=mode, hide_image=True, hide_label=True)
                        query = Query(searcher.points[i], i, "")
                        start, before = time.perf_counter(), time.process_time()
                        if mode == "threshold":
                            near = find(searcher, replace(view, mode="nearest"), query.point, i)
                            view = replace(view, threshold=near.threshold)
                        found = find(searcher, view, query.point, query.row)
                        shown = counted(found, view) + cards(gallery, found.hits, score)
                        times.append(time.perf_counter() - start)
                        work.append(time.process_time() - before)
                    first, usual, busy = times[0], np.median(times[1:]), np.median(work[1:])
                    print(
                        f"{name:15} {score:9} {mode:9} first {first:6.2f} s, "
                        f"then {1000 * usual:5.0f} ms ({1000 * busy:.0f} ms of a core), "
                        f"{len(shown) / 1e3:.0f} kB; indices {built:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
