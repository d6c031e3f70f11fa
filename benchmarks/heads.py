#!/usr/bin/env python
"""A training step of heads on frozen features, of each family beside CLIP's.

    OMP_NUM_THREADS=1 python benchmarks/heads.py

Heads as in the studies on photographs (a hidden layer of 512 with dropout .3, on features of width
1,280 and 384) and linear ones; with contrast of image and text, and with boxes and entailment
where the family has them. A step is a forward and a backward pass and an update of AdamW on random
features. CPU time of one thread in ms, the least of `--repeats` in turns.
"""

import argparse
import time

import torch

from hypvl.losses.terms import Context
from hypvl.models.head import HyperbolicHead
from hypvl.papers.clip_line import recipe

WIDTHS = {"image": 1280, "text": 384}
KINDS = {"image": "image_features", "box_image": "image_features"}
KINDS |= {"text": "text_features", "box_text": "text_features"}


def make_step(family, boxes, hidden, batch):
    "A function that makes one update."
    made = recipe(family, "paper", boxes=boxes)
    torch.manual_seed(0)
    model = HyperbolicHead(WIDTHS, made.model.geometry, hidden=hidden, dropout=0.3 if hidden else 0)
    objective, context = made.objective.make(), Context(step=10**6, kinds=KINDS)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    inputs = [name for name in KINDS if boxes or not name.startswith("box")]
    features = {name: torch.randn(batch, WIDTHS[name.removeprefix("box_")]) for name in inputs}

    def step():
        points = model.embed(features, inputs, KINDS)
        loss, _ = objective(points, model.geometry, 10**6, context=context)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| heads | inputs | clip | meru | hycoclip | phyclip | phyclip over clip |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for hidden in (512, 0):
        for boxes in (False, True):
            families = ["clip", "meru", *(["hycoclip"] if boxes else []), "phyclip"]
            steps = {name: make_step(name, boxes, hidden, options.batch) for name in families}
            least = dict.fromkeys(families, float("inf"))
            for _ in range(options.repeats + 1):
                for name, step in steps.items():
                    start = time.process_time()
                    step()
                    least[name] = min(least[name], time.process_time() - start)
            cells = [f"{1e3 * least[n]:.0f}" if n in least else "–" for n in ("clip", "meru")]
            cells += [f"{1e3 * least['hycoclip']:.0f}" if boxes else "–"]
            cells += [f"{1e3 * least['phyclip']:.0f}", f"{least['phyclip'] / least['clip']:.1f}"]
            kind = "hidden layer" if hidden else "linear"
            print(f"| {kind} | {'with boxes' if boxes else 'pairs'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
