"""Claims are rows of a table, judged by tests that statsmodels repeats."""

import shutil

import numpy as np
import pandas as pd
import pytest
from new_process import ROOT
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from hypvl.papers.claims import SEEDS, claim_test, judge, outcomes, read_claims, t_interval
from hypvl.papers.runs import paper_packages
from hypvl.papers.study import find_paper, read_saved

ROWS = {"phyclip": 79, "syntax": 35, "visual_hierarchies": 76, "h2em": 51, "agr": 49}


@pytest.fixture
def effects():
    "Forty claims of eight seeds: none, small and large effects, small and large spread."
    rng = np.random.default_rng(0)
    means = rng.choice([0.0, 0.3, -1.5, 2.0], 40)
    spreads = rng.choice([0.1, 0.5, 1.5], 40)
    return means[:, None] + spreads[:, None] * rng.standard_normal((40, SEEDS))


def test_outcomes_are_those_of_statsmodels(effects):
    found, adjusted = outcomes([claim_test([one], 1.0) for one in effects])
    zero = np.zeros(SEEDS)
    ps = [DescrStatsW(one).ttest_mean(0)[1] for one in effects]
    wanted = multipletests(ps, method="holm")[1]
    np.testing.assert_allclose(adjusted, wanted, rtol=1e-9)
    within = [ttost_paired(one, zero, -1.0, 1.0)[0] for one in effects]
    within = multipletests(within, method="holm")[1]
    for word, effect, p, p_within in zip(found, effects.mean(1), wanted, within):
        if p < 0.05:
            assert word == ("supported" if effect > 0 else "refuted")
        else:
            assert word == ("no difference" if p_within < 0.05 else "inconclusive")
    assert {*found} == {"supported", "refuted", "no difference", "inconclusive"}


def test_not_worse_tests_the_effect_plus_the_bound(effects):
    for one in effects:
        shifted, asked = claim_test([one + 1.0], 1.0), claim_test([one], 1.0, "not worse")
        assert asked.p == pytest.approx(shifted.p, rel=1e-9)
        assert asked.positive == shifted.positive and asked.p_within == 1.0


def test_all_needs_every_comparison(effects):
    for first, second in zip(effects[::2], effects[1::2]):
        both = claim_test([first, second], 1.0)
        a, b = (claim_test([one], 1.0) for one in (first, second))
        assert both.positive == (a.positive and b.positive)
        assert both.p_within == max(a.p_within, b.p_within)
        if both.positive:
            assert both.p == max(a.p, b.p)
        else:
            inside = multipletests([a.p, b.p], method="holm")[1]
            below = [p for p, one in zip(inside, (a, b)) if not one.positive]
            assert both.p == pytest.approx(min(below), rel=1e-9)


def test_equal_effects_need_no_spread():
    ones, zeros = np.ones(SEEDS), np.zeros(SEEDS)
    found, _ = outcomes([claim_test([ones], 2.0), claim_test([zeros], 2.0)])
    assert found == ["supported", "no difference"]
    assert t_interval(ones) == (1.0, 1.0) and np.isnan(t_interval(ones[:1])).all()


@pytest.mark.parametrize("name", paper_packages())
def test_files_of_claims_are_complete(name):
    claims = read_claims(name)
    world = claims[claims["study"].eq("world")]
    assert len(world) >= ROWS.get(name, 100)
    tested = ~claims["tasks"].str.startswith("not run:")
    assert claims.loc[tested, ["model", "rivals"]].ne("").all(axis=None)
    assert not claims["tasks"].str.contains("TODO|<<").any()
    primary = claims[claims["kind"].eq("primary")]
    if find_paper(name).reference.tables:  # not a study of our own
        assert primary["headline"].eq("yes").sum() >= 1
        assert not primary["source"].eq("ours").any()
        of_world = set(primary.loc[primary["study"].eq("world"), "id"])
        assert set(primary.loc[primary["study"].eq("photographs"), "id"]) <= of_world


def committed(name, tmp_path):
    "The study of the committed rows."
    study = find_paper(name).plan({}, launch="none", out=str(tmp_path))
    study.run()
    return study


@pytest.mark.parametrize("name", paper_packages())
def test_committed_rows_are_judged_alike_twice(name, tmp_path):
    study = committed(name, tmp_path)
    first, second = study.judged(), study.judged()
    pd.testing.assert_frame_equal(first, second)
    assert {*first["outcome"]} <= {"", "not run"}  # their seeds share test items
    untested = first["tasks"].str.startswith("not run:")
    assert first.loc[untested, "effect"].isna().all()


def test_an_effect_of_the_committed_rows_by_hand(tmp_path):
    study = committed("phyclip", tmp_path)
    results = pd.concat([one["results"] for one in read_saved(study.saved).values()])
    rows = results[
        results["section"].eq("main")
        & results["suite"].eq("zero_shot")
        & results["dataset"].eq("species")
        & results["metric"].eq("accuracy")
        & results["score"].eq("paper")
    ]
    mean = rows.groupby(["model", "seed"])["value"].mean().unstack("seed")
    wanted = 100 * (mean.loc["PHyCLIP"] - mean.loc["CLIP + boxes"])
    claim = {"id": "species", "kind": "primary", "unit": "points", "equivalence": 1.0}
    claim |= {"model": "model == 'PHyCLIP' and section == 'main'", "combine": "mean"}
    claim |= {"rivals": "model == 'CLIP + boxes' and section == 'main'", "direction": "better"}
    claim |= {"tasks": "classification:species:accuracy"}
    judged = judge(pd.DataFrame([claim]), results).iloc[0]
    assert judged["effect"] == pytest.approx(wanted.mean(), abs=1e-9)
    assert [judged["low"], judged["high"]] == pytest.approx([wanted.min(), wanted.max()])
    assert judged["note"] == f"{len(wanted)} of {SEEDS} seeds"


@pytest.mark.parametrize("name", ("agr", "h2em", "phyclip", "syntax", "visual_hierarchies"))
def test_committed_photograph_rows_need_no_feature_store(name, tmp_path):
    "The preset is that of the rows; primary claims have the committed effects and outcomes."
    folder = ROOT / "papers_repro" / "results" / "photographs" / name
    shutil.copy(folder / "results.parquet", tmp_path)
    study = committed(name, tmp_path)
    assert study.name == "photographs" and not study.recipes
    found = study.judged().set_index("id")
    known = pd.read_csv(folder / "tables" / "claims.csv").set_index("id")
    primary = known.index[known["kind"].eq("primary")]
    assert len(primary) and (found.loc[primary, "outcome"] == known.loc[primary, "outcome"]).all()
    np.testing.assert_allclose(found.loc[primary, "effect"], known.loc[primary, "effect"], 1e-9)
