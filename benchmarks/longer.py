#!/usr/bin/env python
"""How much the models of PHyCLIP's main section would still learn with more steps than `mini` has.

    python benchmarks/longer.py --models HyCoCLIP PHyCLIP --budgets 1 4

A row of longer.csv is a model after a multiple of `mini`'s steps: how many names of single things
it knows, and text → image recall among test scenes of pairs that training does not show, in %. Four
times the steps take a model about a quarter of an hour on one core, and it has a run of its own on
each. Finished runs are not made again, nor those of the study with `--runs runs/phyclip-mini`.
"""

import argparse
import json
from pathlib import Path

import pandas as pd

from hypvl.papers.parallel_runs import run_all
from hypvl.papers.phyclip.recipes import section_recipes
from hypvl.papers.recipes import at_budget
from hypvl.papers.runs import Run

MEASURES = {  # dataset and metric of a run's results -> column
    ("species", "accuracy"): "species",
    ("genus", "accuracy"): "genus",
    ("family", "accuracy"): "family",
    ("unseen", "t2i_R@5"): "recall@5, unseen pairs",
}


def row_of(run: Run) -> dict:
    "What a run knows, in %."
    found = run.frames()["results"].query("model == @run.recipe.name and score == 'paper'")
    values = found.set_index(["dataset", "metric"])["value"]
    origin = found.iloc[0]
    made = json.loads((run.folder / "provenance.json").read_text())
    return {
        **origin[["model", "seed", "budget"]].to_dict(),
        "steps": run.recipe.train.steps,
        **{column: round(100 * float(values[key]), 2) for key, column in MEASURES.items()},
        **origin[["run", "commit", "data"]].to_dict(),
        "device": made["machine"]["device"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", type=float, nargs="+", default=[1, 4])
    parser.add_argument(
        "--models", nargs="+", help="names as in the tables; all where none is given"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--runs", type=Path, default=Path("runs/longer"), help="data and models")
    parser.add_argument("--out", type=Path, default=Path("papers_repro/results/longer"))
    given = parser.parse_args()
    recipes = [
        at_budget(made, budget)
        for seed in given.seeds
        for made in section_recipes("main", seed=seed)
        if given.models is None or made.name in given.models
        for budget in given.budgets
    ]
    if not recipes:
        parser.error(f"--models: no model of the section has one of the names {given.models}")
    rows = [row_of(run) for run in run_all(recipes, given.runs, device=given.device).values()]
    table = pd.DataFrame(rows).sort_values(["budget", "model", "seed"])
    given.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out / "longer.csv", index=False)
    print(table.drop(columns=["run", "commit", "data", "device"]).to_string(index=False))


if __name__ == "__main__":
    main()
