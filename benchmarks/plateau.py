#!/usr/bin/env python
"""How hyperbolic contrast leaves its plateau, and what keeps it there.

Trains PHyCLIP on the synthetic dataset in several settings that differ in one thing each and
writes one row per setting, seed and logged step:

    python benchmarks/plateau.py --seeds 0 1 2 --out papers_repro/trials/plateau.csv

Takes about a minute a setting and seed on one core; finished runs are not made again. The curves
are drawn in nbs/training/507_plateau.ipynb.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch

from hypvl.evaluation.retrieval import recall_at_k
from hypvl.evaluation.zero_shot import inference
from hypvl.models import load_model
from hypvl.papers.clip_line import recipe
from hypvl.papers.provenance import git_state, short_commit
from hypvl.papers.recipes import ADAMW
from hypvl.papers.runs import train

AT_ONCE = {"objective.delay": 0, "objective.ramp": 0}
RAMPED = {"objective.delay": 0, "objective.ramp": 150}
WHOLE = {"objective.box_contrast": "full"}
WITH_ADAMW = {f"train.{key}": value for key, value in ADAMW.items()}
SETTINGS = {  # name -> family and what differs from the recipe
    "recipe": ("phyclip", {}),
    "cones from step 0": ("phyclip", AT_ONCE),
    "cones ramped from step 0": ("phyclip", RAMPED),
    "box queries against whole": ("phyclip", WHOLE),
    "both, as published": ("phyclip", {**AT_ONCE, **WHOLE}),
    "batch norm": ("phyclip", {"model.vision.norm": "batch"}),
    "AdamW": ("phyclip", WITH_ADAMW),
    "AdamW, cones from step 0": ("phyclip", {**WITH_ADAMW, **AT_ONCE}),
    "HyCoCLIP, recipe": ("hycoclip", {}),
    "CLIP, recipe": ("clip", {}),
}


@torch.no_grad()
def recall(folder: Path, made, data) -> float:
    "Text to image R@5 of the validation scenes."
    model = load_model(folder)
    loader = made.data.loader(data, model.tokenizer, made.image_size, 100, split="val")
    images, texts = [], []
    with inference(model):
        for batch in loader:
            points = model.embed(batch, ("image", "text"))
            images.append(points["image"])
            texts.append(points["text"])
        scores = model.geometry.score(torch.cat(texts), torch.cat(images), "text")
    return recall_at_k(scores, torch.eye(len(scores), dtype=torch.bool), (5,))[5]


COLUMNS = ["step", "chance", "spread/image", "weight/entailment"]  # of metrics.csv


def trained(name: str, seed: int, args: argparse.Namespace) -> pd.DataFrame:
    "Curve of one setting and seed; the row of the last step has the recall."
    family, changes = SETTINGS[name]
    changes = {"train.steps": args.steps, "train.schedule": "constant", **changes}
    made = recipe(family, args.preset, **changes, seed=seed)
    data = made.data.prepare(args.cache / "data", made.image_size, workers=2)
    folder = args.cache / "runs" / made.hash
    history = train(made, data, folder, "cpu")
    origin = {"setting": name, "seed": seed, "run": made.hash, "commit": short_commit(git_state())}
    last = history["step"].eq(history["step"].max())
    found = recall(folder / "model", made, data)
    curve = history.reindex(columns=COLUMNS).round(4)
    return curve.assign(**origin, **{"val R@5": last.map({True: found})})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--preset", default="mini", help="scale of the data and the batches")
    parser.add_argument("--out", type=Path, default=Path("papers_repro/trials/plateau.csv"))
    parser.add_argument("--cache", type=Path, default=Path("runs/plateau"))
    parser.add_argument("--only", nargs="*", choices=SETTINGS, help="names of settings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    curves = []
    for seed in args.seeds:
        for name in args.only or SETTINGS:
            curves.append(trained(name, seed, args))
            print(curves[-1].tail(1).to_string(index=False), flush=True)
            pd.concat(curves).to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
