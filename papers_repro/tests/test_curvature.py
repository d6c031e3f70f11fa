"""The notebook of the curvature study on made-up features."""

import json

import numpy as np
import pandas as pd
from new_process import in_new_process, run_notebook

from hypvl.features import FeatureStore


def made_store(folder):
    "Pairs of 64 images and texts that share eight directions."
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(64, 8))
    images, texts = shared @ rng.normal(size=(8, 12)), shared @ rng.normal(size=(8, 6))
    return FeatureStore.from_arrays(folder, images, texts)


def reproduce(out, code=0, **parameters):
    "What the notebook prints when it ends with an exit code."
    settings = {"out": str(out), "processes": 1} | parameters
    job = run_notebook, "curvature.ipynb", out, settings
    found, output = in_new_process(*job, log=out / "log.txt")
    assert (found or 0) == code, output[-4000:]
    return output


def test_study_renders_contrasts_and_figure(tmp_path):
    made_store(tmp_path / "store")
    how = {"features": str(tmp_path / "store"), "seeds": "0,1", "steps": 3}
    (tmp_path / "first").mkdir()
    reproduce(tmp_path / "first", groups="primary_contrast", **how)
    reproduce(tmp_path, groups="contrast", earlier=str(tmp_path / "first"), **how)
    results = pd.read_csv(tmp_path / "results.csv")
    assert len(results) == 10 * 2 and results["commit"].nunique() == 1
    before = pd.read_csv(tmp_path / "first" / "results.csv")
    assert results["R@5"].tolist()[:12] == before["R@5"].tolist()
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
    assert "features: the folder of a feature store" in reproduce(tmp_path, code=1)
    made_store(tmp_path / "store")
    output = reproduce(tmp_path, code=1, features=str(tmp_path / "store"), groups="flat")
    known = "primary, primary_contrast, primary_cones, radii, contrast, cones"
    assert f"groups='flat': unknown, {known}" in output
