#!/usr/bin/env python
"""What the recipe of preset `mini` was chosen by: one model a setting, judged on validation scenes.

Every setting changes one thing of the recipe; all train for the same number of samples unless the
setting is about that. The last four turn the dials of the world, `object_scale` and `caption_detail`. Rows are
appended to a CSV, which papers_repro/phyclip.ipynb shows from papers_repro/trials/phyclip.csv:

    python benchmarks/recipe.py --family clip --samples 64000 --out runs/recipe

A setting takes about a minute and a half on one core. Finished settings are not run again.
"""

import argparse
import time
from pathlib import Path

import torch
from trials import Trials

from hypvl.models import load_model
from hypvl.papers.clip_line import recipe
from hypvl.papers.provenance import git_state, short_commit
from hypvl.papers.runs import train, validation_frames

SETTINGS = {  # what is changed, and how
    "recipe": {},
    "learning rate .003": {"train.lr": 3e-3},
    "learning rate .012": {"train.lr": 1.2e-2},
    "AdamW at .003": {"train.optimizer": "adamw", "train.lr": 3e-3},
    "AdamW at .006": {"train.optimizer": "adamw"},
    "batch 64": {"train.batch_size": 64},
    "batch 256": {"train.batch_size": 256},
    "text tower of two blocks": {"model.text.layers": 2},
    "filters not standardised, norm a picture": {"model.vision.norm": "group"},
    "batch normalisation": {"model.vision.norm": "batch"},
    "narrower image tower": {"size": "S"},
    "wider image tower": {"size": "L"},
    "half of the scenes": {"data.train": 12_000},
    "twice the samples": {"samples": 2},
    "object_scale .7": {"data.world.object_scale": 0.7},
    "object_scale 1.4": {"data.world.object_scale": 1.4},
    "caption_detail .5": {"data.world.caption_detail": 0.5},
    "caption_detail 1.5": {"data.world.caption_detail": 1.5},
}


def trained(family: str, setting: str, samples: int, out: Path) -> dict:
    "Contrast at the end and recall on validation scenes of one model."
    changes = dict(SETTINGS[setting])
    samples = int(samples * changes.pop("samples", 1))
    steps = samples // changes.get("train.batch_size", 128)
    changes |= {"train.steps": steps, "train.checkpoint_every": 0}
    made = recipe(family, "mini", **changes)
    data = made.data.prepare(out / "data", made.image_size, progress=False)
    start = time.process_time()
    history = train(made, data, out / made.hash, "cpu", progress=False, resume=False)
    seconds = time.process_time() - start
    model = load_model(out / made.hash / "model")
    recall = validation_frames(model, data, made, out)["validation"]["value"].iloc[0]
    return {
        "family": family,
        "setting": setting,
        "steps": steps,
        "samples": samples,
        "contrast": history["contrast"].iloc[-1],
        "recall@5": recall,
        "CPU seconds": seconds,
        "seed": made.train.seed,
        "run": made.hash,
        "commit": short_commit(git_state()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", default="clip")
    parser.add_argument("--samples", type=int, default=64_000, help="training samples of a model")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("runs/recipe"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = Trials(arguments.out / "recipe.csv")
    for setting in arguments.settings:
        samples = int(arguments.samples * SETTINGS[setting].get("samples", 1))
        if not trials.has(family=arguments.family, setting=setting, samples=samples):
            found = trained(arguments.family, setting, arguments.samples, arguments.out)
            trials.add([found])


if __name__ == "__main__":
    main()
