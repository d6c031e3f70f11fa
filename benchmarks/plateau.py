"""How hyperbolic contrast leaves its plateau, and what keeps it there.

Trains PHyCLIP on the embedded world in several settings that differ in one thing each and writes every logged value:

    python benchmarks/plateau.py --steps 150 --out papers_repro/results/plateau

Takes about a minute a setting on two cores. The curves are drawn in nbs/training/507_plateau.ipynb.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch

from hypvl.data.grit.loader import GritConfig, GritLoader
from hypvl.evaluation.retrieval import recall_at_k
from hypvl.evaluation.zero_shot import inference
from hypvl.models.registry import load_model
from hypvl.papers.phyclip.recipes import recipe
from hypvl.papers.runs import prepare_data, train

NOW = {"objective.delay": 0, "objective.ramp": 0}
SETTINGS = {  # name -> family and what differs from the recipe
    "recipe": ("phyclip", {}),
    "cones from step 0": ("phyclip", NOW),
    "cones ramped from step 0": ("phyclip", {"objective.delay": 0, "objective.ramp": 150}),
    "box queries against whole": ("phyclip", {"objective.box_contrast": "full"}),
    "both, as published": ("phyclip", {**NOW, "objective.box_contrast": "full"}),
    "group norm": ("phyclip", {"model.vision.norm": "group"}),
    "HyCoCLIP, recipe": ("hycoclip", {}),
    "CLIP, recipe": ("clip", {}),
}


@torch.no_grad()
def recall(folder: Path, data) -> float:
    "Text to image R@5 of the validation scenes."
    model = load_model(folder / "model")
    loader = GritLoader(
        data.val, model.tokenizer, GritConfig(size=48, batch_size=100, mode="epoch")
    )
    with inference(model):
        batches = [model.embed(batch, ("image", "text")) for batch in loader]
        image, text = (torch.cat([b[s] for b in batches]) for s in ("image", "text"))
        return recall_at_k(
            model.score(image, text).T, torch.eye(len(text), dtype=torch.bool), (5,)
        )[5]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("papers_repro/results/plateau"))
    parser.add_argument("--cache", type=Path, default=Path("runs/plateau"))
    parser.add_argument("--only", nargs="*", help="names of settings")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    frames, rows = [], []
    for name in args.only or SETTINGS:
        family, changes = SETTINGS[name]
        r = recipe(
            family, "mini", **{"train.steps": args.steps, "train.schedule": "constant", **changes}
        )
        data = prepare_data(r.data, 48, args.cache / "data", workers=2)
        history = train(r, data, args.cache / "runs" / r.hash)
        frames.append(history.assign(setting=name, run=r.hash))
        rows.append(
            {"setting": name, "val R@5": recall(args.cache / "runs" / r.hash, data), "run": r.hash}
        )
        print(pd.DataFrame(rows).to_string(index=False), flush=True)
        pd.concat(frames).to_csv(args.out / "curves.csv", index=False)
        pd.DataFrame(rows).to_csv(args.out / "recall.csv", index=False)


if __name__ == "__main__":
    main()
