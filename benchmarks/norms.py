#!/usr/bin/env python
"""What a normalisation that is exact under micro-batches costs the small tower.

Trains one model of the embedded world at preset `mini` for each kind of normalisation and prints
the contrastive loss and the validation recall:

    python benchmarks/norms.py --family clip --steps 200 --norms weights batch group

Takes about a minute and a half a kind on one core.
"""

import argparse
import time
from pathlib import Path

from hypvl.models import load_model
from hypvl.papers.phyclip.recipes import recipe
from hypvl.papers.runs import train, validation_frames


def trained(family: str, norm: str, steps: int, out: Path) -> dict[str, float]:
    "Contrast and recall of one model after so many steps."
    changes = {"model.vision.norm": norm, "train.steps": steps, "train.checkpoint_every": 0}
    made = recipe(family, "mini", **changes)
    data = made.data.prepare(out / "data", made.image_size, progress=False)
    start = time.perf_counter()
    history = train(made, data, out / made.hash, "cpu", progress=False, resume=False)
    seconds = time.perf_counter() - start
    model = load_model(out / made.hash / "model")
    recall = validation_frames(model, data, made, out)["validation"]["value"].iloc[0]
    return {"contrast": history["contrast"].iloc[-1], "recall": recall, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="clip")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--norms", nargs="+", default=["weights", "batch", "group"])
    parser.add_argument("--out", type=Path, default=Path("runs/norms"))
    arguments = parser.parse_args()
    print("family    norm     steps  contrast  recall@5  seconds")
    for norm in arguments.norms:
        found = trained(arguments.family, norm, arguments.steps, arguments.out)
        print(
            f"{arguments.family:9} {norm:8} {arguments.steps:5}  {found['contrast']:8.2f}  "
            f"{100 * found['recall']:7.1f} %  {found['seconds']:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
