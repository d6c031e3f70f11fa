#!/usr/bin/env python
"""What the recipe of visual hierarchies was chosen by: one model a setting, on validation scenes.

CLIP-hyp of preset `mini` with one setting of its recipe changed at a time, all at a third of its
steps, beside CLIP as it was and the head without training. Rows are appended to a CSV, which
papers_repro/visual_hierarchies.ipynb shows from papers_repro/trials/visual_hierarchies.csv:

    python benchmarks/hierarchies.py --out runs/hierarchies_recipe

A setting takes about two minutes on one core. Finished settings are not run again.
"""

import argparse
import time
from pathlib import Path

import torch
from trials import Trials

from hypvl.evaluation.statistics import summarise
from hypvl.models import load_model
from hypvl.papers.provenance import git_state, short_commit
from hypvl.papers.runs import train
from hypvl.papers.visual_hierarchies.instances import (
    embed_set,
    retrieval_items,
    validation_set,
)
from hypvl.papers.visual_hierarchies.recipes import hierarchy_recipe

THIRD = {"budget": 1 / 3}
_VIEWS = "data.pairs.augmentation"
_TURNS = {f"{_VIEWS}.hflip": 0.2, f"{_VIEWS}.vflip": 0.2, f"{_VIEWS}.rotation": 15.0}
SETTINGS: dict[str, dict] = {
    "CLIP as it was": {"family": "frozen"},
    "untrained head": {"budget": 0},
    "recipe": THIRD,
    "all steps": {},
    "flat space": THIRD | {"family": "euc"},
    "points begin near the root (gain 1)": THIRD | {"model.gain": 1.0},
    "points begin far out (gain 20)": THIRD | {"model.gain": 20.0},
    "linear head": THIRD | {"model.hidden": 0},
    "learning rate .001": THIRD | {"train.lr": 1e-3},
    "tower at the rate of the head": THIRD | {"train.groups": ()},
    "flips and rotation of the paper": THIRD | _TURNS,
    "batches of 64, as many steps": THIRD | {"train.batch_size": 64},
}
SHOWN = {
    "child_to_parent_same_class@10": "scenes of a box",
    "parent_to_child_same_class@10": "boxes of a scene",
    "parent_to_child_recall@45%": "recall at 45 %",
}


def measured(model, made, data) -> dict[str, float]:
    "The scores of a model on validation scenes, by what ranks at its test."
    found = validation_set(data, made.data)
    embedded = embed_set(model, found, made.image_size, ordered=1)
    model.geometry.cpu()
    by = "" if made.columns["dist_func"] == "angle" else made.columns["dist_func"]
    results = summarise(retrieval_items(embedded, model.geometry, by), 0)
    own = results[results["score"].eq("paper") & results["model"].isna()]
    values = own.set_index("metric")["value"]
    return {title: float(values[name]) for name, title in SHOWN.items()}


def trial(setting: str, changes: dict, preset: str, out: Path) -> dict:
    "One model: trained, and measured on validation scenes."
    made = hierarchy_recipe(preset=preset, **{"train.checkpoint_every": 0, **changes})
    data = made.data.prepare(out / "data", made.image_size, progress=False)
    start = time.process_time()
    history = train(made, data, out / made.hash, "cpu", progress=False, resume=False)
    seconds = time.process_time() - start
    scores = measured(load_model(out / made.hash / "model"), made, data)
    return {
        "setting": setting,
        "model": made.label,
        "steps": made.train.steps,
        "learning rate": made.train.lr if made.train.steps else float("nan"),
        **scores,
        "loss": history["loss"].tail(10).mean() if len(history) else float("nan"),
        "CPU seconds": round(seconds),
        "seed": made.train.seed,
        "preset": preset,
        "run": made.hash,
        "commit": short_commit(git_state()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--out", type=Path, default=Path("runs/hierarchies_recipe"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = Trials(arguments.out / "recipe.csv")
    for setting, changes in SETTINGS.items():
        if not trials.has(setting=setting):
            trials.add([trial(setting, changes, arguments.preset, arguments.out)])


if __name__ == "__main__":
    main()
