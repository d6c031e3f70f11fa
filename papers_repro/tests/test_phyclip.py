"""The PHyCLIP notebook as a user runs it."""

import json

import pandas as pd
from conftest import plan
from new_process import in_new_process, run_notebook

from hypvl.papers.claims import COLUMNS, JUDGED


def test_smoke_renders_every_table_figure_and_claim(smoke):
    for number in (1, 2, 3):
        table = pd.read_csv(smoke / "tables" / f"table{number}.csv")
        assert {"this run", "paper"} <= {s.split(" (")[0] for s in table["source"]}, table[
            "source"
        ].unique()
    for name in (
        "figure3_norms",
        "figure4a_factors",
        "figure4b_disks",
        "figure7_retrieval",
        "training",
        "claims",
    ):
        assert (smoke / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(smoke / "tables" / "claims.csv", keep_default_na=False)
    assert list(claims) == [*COLUMNS, *JUDGED] and len(claims) > 60
    # one seed: no primary claim has an outcome, and no other claim ever has one
    primary = claims[claims["kind"].eq("primary")]
    assert set(primary["outcome"]) == {"not run"} and set(primary["note"]) == {"1 of 8 seeds"}
    assert set(claims.loc[claims["kind"].ne("primary"), "outcome"]) == {""}
    enforced = claims.loc[claims["kind"].eq("by construction"), "id"]
    assert set(enforced.str[:5]) == {"norm-"}
    structural = claims.set_index("id").loc[["families", "hierarchy-inside", "near-max", "lists"]]
    assert structural[["effect", "baseline", "upper"]].ne("").all(axis=None)
    scores = (smoke / "tables" / "scores.md").read_text()
    for name in ("PHyCLIP", "CLIP + boxes", "baseline", "upper bound"):
        assert f"| {name} " in scores, scores
    assert "best in" in (smoke / "tables" / "table1.md").read_text()
    assert json.loads((smoke / "tables" / "provenance.json").read_text())["preset"] == "smoke"


def test_rows_can_be_traced(smoke):
    results = pd.read_csv(smoke / "results.csv")
    assert set(results["family"]) == {"clip", "meru", "hycoclip", "phyclip"}
    for column in ("seed", "preset", "commit", "data", "run"):
        assert results[column].notna().all(), column


def test_log_is_short_and_names_each_model(smoke, root):
    # as `make phyclip` prints it
    makefile = (root / "Makefile").read_text()
    assert "--no-progress-bar --log-level WARNING --stdout-file - --stderr-file -" in makefile
    lines = (smoke / "log.txt").read_text().splitlines()  # a bar is many lines here, by its \\r
    output = [line.strip() for line in lines if "%|" not in line]
    for name in ("CLIP + boxes", "MERU + boxes", "HyCoCLIP", "PHyCLIP"):
        ended = [line for line in output if line.startswith(f"{name}, seed 0: 12 steps")]
        assert len(ended) == 1, output
    assert len(output) < 60, output
    assert not any("<table" in line or "Executing Cell" in line for line in output)


def test_second_run_trains_nothing(smoke):
    stamps = {p: p.stat().st_mtime_ns for p in smoke.glob("runs/*/finished.json")}
    assert len(stamps) == 4
    plan("phyclip", preset="smoke", out=str(smoke)).run()
    assert stamps == {p: p.stat().st_mtime_ns for p in smoke.glob("runs/*/finished.json")}


def test_a_wrong_parameter_stops_the_notebook(tmp_path):
    "`test_papers` asks for more of them, in this process."
    parameters = {"preset": "smoke", "out": str(tmp_path), "sedes": "1"}
    log = tmp_path / "log.txt"
    code, output = in_new_process(run_notebook, "phyclip.ipynb", tmp_path, parameters, log=log)
    assert code != 0 and "unknown parameter 'sedes'" in output
    assert not list(tmp_path.glob("runs/*/metrics.csv"))
