#!/usr/bin/env python
"""Settings of H²EM's recipe in the world, one changed at a time, by the validation pairs alone.

    OMP_NUM_THREADS=1 python benchmarks/h2em_recipe.py --out runs/h2em_recipe --updates 156
    OMP_NUM_THREADS=1 python benchmarks/h2em_recipe.py --out runs/h2em_recipe --only default

A row is a setting after so many updates: the closed-world area on validation in % for each way to
fuse the scores, and the share of states and of objects that p(s)p(o) names right. Update 0 is the
model as it begins; the area of CLIP as it is stands beside them. The test pictures are not read.
"""

import argparse
import itertools
import time
from pathlib import Path

import pandas as pd
import torch

from hypvl.evaluation.bias_sweep import sweep
from hypvl.models.compositional import FUSIONS
from hypvl.models.registry import create_model
from hypvl.papers.h2em.compositions import (
    Phases,
    Setting,
    own_candidates,
    plain_candidates,
    sweep_settings,
)
from hypvl.papers.h2em.recipes import composition_recipe
from hypvl.training.kept_tokens import KeptTokens
from hypvl.training.optim import make_optimizer, set_lr
from hypvl.training.update import Step

SETTINGS = {
    "clip": {"family": "clip"},
    "csp": {"family": "csp"},
    "troika": {"family": "troika"},
    "default": {},
    "own views, rate 1e-3": {"model.disentangler_layers": 1, "train.lr": 1e-3},
    "own views, rate 2e-4": {"model.disentangler_layers": 1, "train.lr": 2e-4},
    "mean length 1": {"model.scale_init": None},
    "mean length 1, rate 1e-3": {"model.scale_init": None, "train.lr": 1e-3},
    "mean length 1, own views, rate 1e-3": {
        "model.scale_init": None,
        "model.disentangler_layers": 1,
        "train.lr": 1e-3,
    },
}


class Trial:
    "One setting, its validation pairs, and a plain training."

    def __init__(self, overrides, out):
        self.recipe = composition_recipe(**overrides)
        self.data = self.recipe.data.prepare(out / "data", progress=False)
        self.phases = Phases(self.recipe, self.data)
        self.known = self.recipe.data.compositions(self.data)
        torch.manual_seed(0)
        self.model = create_model(self.recipe.model, seed=0)
        self.say = plain_candidates if overrides.get("family") == "clip" else own_candidates

    def measure(self):
        "Areas by fusion, and accuracies of the primitives, in %."
        self.model.eval()
        setting = Setting("closed", "val", self.known.split)
        candidates = self.say(self.model, self.known.split.pairs("open"))
        settings = {("closed", way): setting for way in FUSIONS}
        given = self.phases.batches("val"), candidates, settings, self.known.pairs("val")
        streams = sweep_settings(self.model, *given)
        found = {way: sweep(streams["closed", way].best()) for way in FUSIONS}
        row = {way: 100 * scores.auc for way, scores in found.items()}
        alone = found["product"]
        row |= {"state": 100 * alone.state_accuracy, "object": 100 * alone.object_accuracy}
        return {name: round(value, 1) for name, value in row.items()}

    def rows(self, updates, every):
        "A row at the start, and after each so many updates."
        model, config = self.model, self.recipe.train
        batches = self.recipe.data.loader(self.data, None, self.recipe.image_size, 64, seed=0)
        model.train()
        with torch.no_grad():  # sets the scales
            batch = next(iter(batches))
            model.embed(batch, ("image", "pair_texts"), {"image": "image"})
        yield {"update": 0, "seconds": 0.0, **self.measure()}
        if not config.steps:
            return
        batches.batches = 0
        loader = KeptTokens(batches, model.tokens)
        step = Step(model, self.recipe.objective.make(), loader.kinds)
        optimizer = make_optimizer(
            model, config.lr, config.betas, weight_decay=config.weight_decay, name="adam"
        )
        start = time.process_time()
        model.train()
        for update, batch in enumerate(itertools.islice(loader, updates), 1):
            set_lr(optimizer, config.lr * (1 if update <= updates / 2 else 0.5))
            loss, _, _ = step(batch, update)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.geometry.clamp_parameters()
            if update % every == 0:
                spent = round(time.process_time() - start, 1)
                yield {"update": update, "seconds": spent, **self.measure()}
                model.train()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of data and recipe.csv")
    parser.add_argument("--updates", type=int, default=156, help="of each setting; 0: as it begins")
    parser.add_argument("--every", type=int, default=26, help="updates between two rows")
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), help="names of settings")
    args = parser.parse_args()
    rows = []
    for name in args.only:
        for row in Trial(SETTINGS[name], args.out).rows(args.updates, args.every):
            rows.append({"setting": name, **row})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(args.out / "recipe.csv", index=False)


if __name__ == "__main__":
    main()
