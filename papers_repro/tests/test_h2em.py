"""The notebook on H²EM as a user runs it."""

import pandas as pd
import pytest
from new_process import reproduce

from hypvl.papers.claims import COLUMNS, JUDGED

MODELS = {"CLIP", "CSP", "Troika", "Euclid, linear attention", "H2EM"}
FIGURES = "4_answers S2_answers 5a_lengths S3a_lengths 5b_disk S3b_disk"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, smoke_data):
    out = tmp_path_factory.mktemp("h2em")
    reproduce("h2em.ipynb", out, smoke_data)
    return out


def test_smoke_renders_every_table_figure_and_claim(smoke):
    for number in (1, 2, 3, 4, "S1", "S2", "S3", "S4", "S5", "factorial"):
        table = pd.read_csv(smoke / "tables" / f"table{number}.csv")
        assert table["source"].eq("this run").any(), number
        if number in (1, 2):
            ours = table[table["source"].eq("this run") & table["value"].notna()]
            bars = {"majority class", "chance", "upper bound"}
            assert MODELS | bars == set(ours["row"]), number
            assert table["row"].eq("LOGICZSL").any()  # theirs
    for name in (*(f"figure{name}" for name in FIGURES.split()), "curves", "training", "claims"):
        assert (smoke / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(smoke / "tables" / "claims.csv").set_index("id")
    assert ["id", *claims] == [*COLUMNS, *JUDGED]
    primary = claims[claims["kind"].eq("primary")]
    assert set(primary["outcome"]) == {"not run"} and set(primary["note"]) == {"1 of 8 seeds"}
    assert claims.loc[claims["kind"].ne("primary"), "outcome"].isna().all()
    assert claims.loc["H8", "kind"] == "by construction" and pd.notna(claims.loc["H8", "effect"])
    assert pd.isna(claims.loc["curvature", "effect"])
    assert claims.loc["curvature", "note"].startswith("no run of model in ['flat'")


def test_rows_hold_what_the_protocol_promises(smoke):
    results = pd.read_csv(smoke / "results.csv")
    wide = results[results["suite"].isin(["closed", "open"]) & results["score"].eq("paper")]
    wide = wide.pivot_table(index=["suite", "model"], columns="metric", values="value")
    assert (wide["auc"] <= wide["seen"] * wide["unseen"] + 1e-9).all()
    assert (wide["harmonic_mean"] <= wide[["seen", "unseen"]].max(axis=1) + 1e-9).all()
    assert (wide.loc["closed"].loc["oracle", ["seen", "unseen", "auc"]] == 1).all()
    assert wide.loc[("closed", "majority"), "auc"] < 0.01
    clip = results[results["model"].eq("CLIP") & results["suite"].eq("closed")]
    assert clip["run"].nunique() == 1


def test_every_run_leaves_per_item_values(smoke):
    results, items = pd.read_csv(smoke / "results.csv"), pd.read_parquet(smoke / "items.parquet")
    trained = results[results["model"].isin(MODELS) & results["suite"].eq("closed")]
    assert set(items["suite"]) == {"closed", "open"} and set(items["metric"]) == {"accuracy"}
    assert set(trained["run"]) <= set(items["run"])
    per_run = items.groupby(["run", "suite"], observed=True)["value"].agg(["size", "nunique"])
    assert set(per_run["size"]) == set(trained["n"].dropna()) and set(per_run["nunique"]) == {2}
    pairs = items.groupby("item", observed=True)["cluster"].nunique()
    assert (pairs == 1).all() and items["cluster"].nunique() > 30


def test_measures_are_rows_of_the_results_and_judged_as_their_claims_say(smoke):
    results = pd.read_csv(smoke / "results.csv")
    rows = results[results["suite"].eq("measure")].set_index(["dataset", "model"])["value"]
    claims = pd.read_csv(smoke / "tables" / "claims.csv").set_index("id")
    gap = rows["text_order", "H2EM"] - rows["text_order", "hyperbolic + L_DA"]
    assert abs(claims.loc["H8-by-loss", "effect"] - 100 * gap) < 1e-6
    assert (rows["text_order", "permuted"] == 0.5).all()
    lead = rows["text_order", "hyperbolic + L_DA"] - 0.5
    assert abs(claims.loc["H8-without", "effect"] - 100 * lead) < 1e-6
    fewer = 100 * (21_726_720 / 21_751_303 - 1)
    assert abs(claims.loc["H10-parameters", "effect"] - fewer) < 1e-6
    steps = rows["steps_of_shared_errors", "Troika"] - rows["steps_of_shared_errors", "H2EM"]
    assert abs(claims.loc["H11", "effect"] - steps) < 1e-6


def test_gain_over_troika_is_asked_in_one_fusion_too(smoke):
    results = pd.read_csv(smoke / "results.csv")
    rows = results[results["suite"].eq("closed") & results["metric"].eq("harmonic_mean")]
    rows = rows[rows["model"].isin(["hyperbolic", "Troika"])]
    own = rows["score"].where(rows["score"].ne("paper"), rows["fusion"])
    value = rows.assign(score=own).set_index(["score", "model"])["value"]
    claims = pd.read_csv(smoke / "tables" / "claims.csv").set_index("id")
    for fusion in ("prob", "logit"):
        gain = 100 * (value[fusion, "hyperbolic"] - value[fusion, "Troika"])
        assert abs(claims.loc[f"H1-{fusion}", "effect"] - gain) < 1e-6
    own_fusions = 100 * (value["prob", "hyperbolic"] - value["logit", "Troika"])
    assert abs(claims.loc["H1", "effect"] - own_fusions) < 1e-6
