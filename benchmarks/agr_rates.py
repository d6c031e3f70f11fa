#!/usr/bin/env python
"""Learning rates of AGR, CLIP and MERU on the same features, by validation posts alone.

    OMP_NUM_THREADS=1 python benchmarks/agr_rates.py --out runs/agr_rates

The three models try the same rates with three seeds that the study does not use. Prints and keeps
in `rates.csv` the text-to-image recall at 5 on validation posts in %. Runs that are finished are
not made again.
"""

import argparse
from pathlib import Path

import pandas as pd

from hypvl.papers.agr.recipes import agr_recipe
from hypvl.papers.parallel_runs import run_all

RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (8, 9, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/agr_rates"))
    parser.add_argument("--settings", nargs="+", default=["agr", "clip", "meru"])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--processes", type=int, default=None)
    args = parser.parse_args()

    recipes = {}
    for setting in args.settings:
        for rate in args.rates:
            for seed in SEEDS:
                schedule = {"train.lr": rate, "train.min_lr": rate / 100}
                more = {"probes": ("validation",)}
                made = agr_recipe(setting, args.preset, seed, **schedule, **more)
                recipes[setting, rate, seed] = made
    runs = run_all(list(recipes.values()), args.out, at_once=args.processes)
    rows = []
    for (setting, rate, seed), recipe in recipes.items():
        value = runs[recipe.hash].frames()["validation"]["value"].item()
        rows.append({"setting": setting, "rate": rate, "seed": seed, "t2i_R@5": 100 * value})
    table = pd.DataFrame(rows)
    table.to_csv(args.out / "rates.csv", index=False)
    means = table.pivot_table(index="setting", columns="rate", values="t2i_R@5", sort=False)
    print(means.round(1).to_string())


if __name__ == "__main__":
    main()
