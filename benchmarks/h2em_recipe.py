#!/usr/bin/env python
"""Scales and rates of H²EM and its rivals in the world, by the validation pairs alone.

    OMP_NUM_THREADS=1 python benchmarks/h2em_recipe.py --out runs/h2em_recipe --updates 156
    OMP_NUM_THREADS=1 python benchmarks/h2em_recipe.py --out runs/h2em_recipe --every 52 \\
        --updates 312 624 1248 --only "csp, rate 0.001" "troika, rate 0.0003" \\
        "euclid_linear, rate 0.001" "h2em, scale .03, rate 0.001"
    OMP_NUM_THREADS=1 python benchmarks/h2em_recipe.py --out runs/h2em_recipe --every 52 \\
        --updates 312 --seeds 0 1 2 --only "h2em, words 0.3, decay 0.001"  # and so on

A row is a setting after so many updates of a run of so many in all (`of`; its rates halve in the
middle): the closed-world area on validation in % for each way to fuse the scores, and the share of
states and of objects that p(s)p(o) names right; the loss over pairs at the first and at the last
update, and the share of cones that are half-spaces at the last. CLIP as it is has no updates. The
test pictures are not read. Rows are added to recipe.csv; settings that are there with runs as long
are not run again.

Models of all families choose by one rule. Rate and scale: the setting with the largest area in
their own fusion at any look; of settings within a point of it the one with the fewest half-spaces,
then the larger rate. Dropout of words and decay of weights, three seeds each: the setting with the
largest mean of the best look; of settings within a point of it the published ones, .1 and 1e-5.
CSP and CLIP fuse by `none`, Troika by `logit`, the others by `prob`. The length of a run is one for
all: the shortest after which twice the updates add less than a point to the mean over the four
families of their best look. It gave 312; `mini` has had 624 since the study of 312 showed claims
whose sign turned at twice the steps. Dropout and decay were tried in runs of 312.
"""

import argparse
import itertools
import time
from pathlib import Path

import torch
from trials import Trials

from hypvl.evaluation.bias_sweep import sweep
from hypvl.models import load_model
from hypvl.papers.h2em.compositional_model import FUSIONS
from hypvl.papers.h2em.compositions import (
    Phases,
    Setting,
    own_candidates,
    plain_candidates,
    sweep_settings,
)
from hypvl.papers.h2em.recipes import composition_recipe
from hypvl.papers.provenance import git_state, short_commit
from hypvl.papers.runs import train

RATES = (3e-4, 1e-3)
WORDS = (0.1, 0.3, 0.5)  # dropout of the soft words
DECAYS = (1e-5, 1e-3)  # of weights
SCALES = {"scale .03": 0.03, "scale .1": 0.1, "scale .3": 0.3, "mean length 1": None}


def settings() -> dict[str, dict]:
    """Name → arguments of `composition_recipe`.

    Scales and rates of H²EM and the rates of its rivals; then, at the rates and the scale that were
    chosen, what keeps models from knowing the training pairs by heart.
    """
    found = {"clip": {"family": "clip"}}
    for rate in RATES:
        for family in ("csp", "troika", "euclid_linear"):
            found[f"{family}, rate {rate:g}"] = {"family": family, "train.lr": rate}
        for name, scale in SCALES.items():
            own = {"model.scale_init": scale, "train.lr": rate}
            found[f"h2em, {name}, rate {rate:g}"] = own
    for family in ("csp", "troika", "euclid_linear", "h2em"):
        for words, decay in itertools.product(WORDS, DECAYS):
            found[f"{family}, words {words:g}, decay {decay:g}"] = {
                "family": family,
                "model.word_dropout": words,
                "train.weight_decay": decay,
            }
    return found


SETTINGS = settings()


def areas(model, data, recipe) -> dict[str, float]:
    "A monitor: areas by fusion and accuracies of the primitives, in %."
    phases = Phases(recipe, data)
    known = phases.source.compositions(data)
    say = plain_candidates if recipe.family == "clip" else own_candidates
    candidates = say(model, known.split.pairs("open"))
    settings = {("closed", way): Setting("closed", "val", known.split) for way in FUSIONS}
    inputs = sweep_settings(model, phases.batches("val"), candidates, settings, known.pairs("val"))
    found = {way: sweep(inputs["closed", way].best()) for way in FUSIONS}
    row = {way: 100 * scores.auc for way, scores in found.items()}
    alone = found["product"]
    row |= {"state": 100 * alone.state_accuracy, "object": 100 * alone.object_accuracy}
    return {f"val/{name}": round(value, 1) for name, value in row.items()}


COLUMNS = [f"val/{name}" for name in (*FUSIONS, "state", "object")]
LOGGED = {"pair loss": "contrast/pair", "half-spaces": "entailment/taxonomy/half_space"}


def trial(setting: str, updates: int, every: int, seed: int, out: Path) -> list[dict]:
    "One model: trained, with a row at each look at the validation pairs."
    changes = {"seed": seed, **SETTINGS[setting]}
    looked = {"train.checkpoint_every": 0, "train.validate_every": every, "train.steps": updates}
    looked |= {"train.log_every": every}
    if changes.get("family") == "clip":
        looked = {}
    made = composition_recipe(**changes, **looked)
    if looked:
        made = composition_recipe(
            **changes, **looked, monitor="h2em_recipe:areas", **{"train.best": "val/prob"}
        )
    data = made.data.prepare(out / "data", made.image_size, progress=False)
    start = time.process_time()
    history = train(made, data, out / made.hash, "cpu", progress=False, resume=False)
    seconds = round(time.process_time() - start, 1)
    if made.train.steps:
        seen = history.dropna(subset=COLUMNS).to_dict("records")
        first = history["contrast/pair"].iloc[0]
    else:
        model = load_model(out / made.hash / "model")
        model.eval()
        seen, first = [{"step": 0, **areas(model, data, made)}], float("nan")
    origin = {"first pair loss": round(float(first), 3), "CPU seconds": seconds}
    origin |= {"seed": made.train.seed, "run": made.hash, "commit": short_commit(git_state())}
    rows = []
    for row in seen:
        values = {name.removeprefix("val/"): row[name] for name in COLUMNS}
        values |= {name: round(row[of], 3) for name, of in LOGGED.items() if of in row}
        place = {"setting": setting, "update": int(row["step"]), "of": updates}
        rows.append({**place, **values, **origin})
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of data and recipe.csv")
    parser.add_argument(
        "--updates", type=int, nargs="+", default=[156], help="of each setting; several: of each"
    )
    parser.add_argument("--every", type=int, default=26, help="updates between two rows")
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), help="names of settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a run of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = Trials(arguments.out / "recipe.csv")
    several = itertools.product(arguments.only, arguments.updates, arguments.seeds)
    for setting, updates, seed in several:
        length = 0 if setting == "clip" else updates
        if not trials.has(setting=setting, of=length, seed=seed):
            trials.add(trial(setting, length, arguments.every, seed, arguments.out))


if __name__ == "__main__":
    main()
