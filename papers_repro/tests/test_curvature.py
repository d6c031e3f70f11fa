"""The notebook of the curvature study on made-up features."""

import json

import numpy as np
import pandas as pd
from conftest import papermill

from hypvl.features import FeatureStore


def made_store(folder):
    "Pairs of 64 images and texts that share eight directions."
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(64, 8))
    images, texts = shared @ rng.normal(size=(8, 12)), shared @ rng.normal(size=(8, 6))
    return FeatureStore.from_arrays(folder, images, texts)


def test_study_renders_contrasts_and_figure(tmp_path):
    made_store(tmp_path / "store")
    parameters = {"features": str(tmp_path / "store"), "groups": "contrast", "seeds": "0,1"}
    done = papermill("curvature.ipynb", tmp_path, **parameters, steps=3, processes=1)
    assert done.returncode == 0, done.stderr[-4000:]
    results = pd.read_csv(tmp_path / "results.csv")
    assert len(results) == 8 * 2 and results["commit"].nunique() == 1
    judged = pd.read_csv(tmp_path / "tables" / "contrasts.csv")
    assert set(judged["outcome"]) == {"not run: fewer than 8 seeds"}
    by_cell = results.pivot(index="seed", columns="cell", values="R@5")
    effect = 100 * (by_cell["hyperbolic, ρ = 4"] - by_cell["Euclidean, mapped"]).mean()
    assert abs(judged["effect"].iloc[-1] - effect) < 1e-9
    outcomes = pd.read_csv(tmp_path / "tables" / "outcomes.csv")
    assert not outcomes["cell"].str.contains("sphere").any()
    assert (tmp_path / "figures" / "curvature.png").stat().st_size > 5_000
    assert json.loads((tmp_path / "tables" / "provenance.json").read_text())["features"]


def test_study_asks_for_features_and_known_groups(tmp_path):
    done = papermill("curvature.ipynb", tmp_path)
    assert "features: the folder of a feature store" in done.stderr
    made_store(tmp_path / "store")
    done = papermill("curvature.ipynb", tmp_path, features=str(tmp_path / "store"), groups="flat")
    assert "groups='flat': unknown, contrast, cones, dimensions, aperture" in done.stderr
