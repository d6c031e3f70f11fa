#!/usr/bin/env python
"""What hyperbolic space adds to a training step of CLIP, at the published size.

    python benchmarks/overhead.py                       # ViT-S/16, batch 256, one thread
    python benchmarks/overhead.py --families clip phyclip --batch 768

The towers are the same in all families: forward and backward of `--part` random pictures and
captions are measured and counted as often as they fit into the batch, since their cost grows with
the batch alone and 256 pictures at once do not fit everywhere. What differs is measured at the
whole batch: from features to points, both contrasts and entailment, forward and backward. CPU
seconds of this process, best of `--repeats`.
"""

import argparse

import torch
from clock import least_cpu_seconds

from hypvl.losses.terms import Context
from hypvl.models.registry import create_model
from hypvl.papers.clip_line import recipe

KINDS = {"image": "image", "text": "text"}


def measure(family: str, options: argparse.Namespace) -> dict[str, float]:
    "CPU seconds of the towers and of what is behind them, for a whole batch."
    made = recipe(family, "paper", options.size, boxes=False)
    model = create_model(made.model, seed=0).train()
    generator = torch.Generator().manual_seed(0)
    shape = options.part, 3, made.image_size, made.image_size
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    texts = model.tokenizer([f"a photo of thing number {n}" for n in range(options.part)])

    def towers():
        (model.encode_image(images).sum() + model.encode_text(texts).sum()).backward()

    found = {"towers": least_cpu_seconds(towers, options.repeats) * options.batch / options.part}
    objective, geometry = made.objective.make(), model.geometry
    widths = [model.encode_image(images[:1]).shape[1], model.encode_text(texts[:1]).shape[1]]
    features = [torch.randn(options.batch, w, generator=generator) / w**0.5 for w in widths]
    context = Context(step=10**6, kinds=KINDS)

    def behind():
        leaves = [x.detach().requires_grad_() for x in features]
        points = {side: geometry.lift(x, side) for side, x in zip(KINDS, leaves)}
        loss, _ = objective(points, geometry, 10**6, context=context)
        loss.backward()

    behind()
    found["behind them"] = least_cpu_seconds(behind, 5 * options.repeats)
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=["clip", "meru", "phyclip"])
    parser.add_argument("--size", default="S")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--part", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {family: measure(family, options) for family in options.families}
    towers = min(row["towers"] for row in rows.values())
    first = towers + rows[options.families[0]]["behind them"]
    print(f"| family | towers, s | behind them, ms | a step over {options.families[0]}'s |")
    print("|---|---:|---:|---:|")
    for family, row in rows.items():
        times = (towers + row["behind them"]) / first
        print(f"| {family} | {row['towers']:.1f} | {1e3 * row['behind them']:.0f} | {times:.3f} |")


if __name__ == "__main__":
    main()
