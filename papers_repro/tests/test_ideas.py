"""The notebook that compares the ideas of all papers, as a user runs it."""

from shutil import copytree

import pandas as pd
import pytest
from new_process import in_new_process, reproduce, run_notebook

from hypvl.papers.claims import COLUMNS, JUDGED
from hypvl.papers.ideas.paper import ABILITIES, ASKED, IDEAS
from hypvl.papers.ideas.recipes import MAIN


def test_committed_tables_follow_from_committed_rows(root, tmp_path):
    "The whole notebook, without training."
    committed, out = root / "papers_repro" / "results" / "world" / "ideas", tmp_path / "ideas"
    copytree(committed, out)
    made = [f"tables/{name}.csv" for name in ("table1", "table2", "scores", "claims")]
    for name in (*made, "figures/ideas.csv", "figures/ideas.png", "figures/trades.png"):
        (out / name).unlink()
    parameters = {"launch": "none", "sections": "all", "out": str(out)}
    log = tmp_path / "log.txt"
    code, output = in_new_process(run_notebook, "ideas.ipynb", out, parameters, log=log)
    assert code == 0 and not (out / "runs").exists(), output[-4000:]
    for name in (*made, "figures/ideas.csv"):
        pd.testing.assert_frame_equal(pd.read_csv(out / name), pd.read_csv(committed / name))
    for name in ("ideas", "trades"):
        assert (out / "figures" / f"{name}.png").stat().st_size > 5_000


@pytest.mark.full
def test_smoke_measures_every_ability_of_every_model(tmp_path, smoke_data):
    reproduce("ideas.ipynb", tmp_path, smoke_data)
    table = pd.read_csv(tmp_path / "tables" / "table1.csv")
    ours = table[table["value"].notna() & ~table["baseline"]]
    assert set(ours["row"]) == set(MAIN)
    for name, ability in ABILITIES.items():
        asked = {column.dataset for column in ability.columns}
        measured = ours[ours["dataset"].isin(asked)].groupby("row").size()
        assert len(measured) == 8, name
    gains = pd.read_csv(tmp_path / "figures" / "ideas.csv")
    assert set(gains["ability"]) == {*ASKED} and gains["effect"].notna().any()
    parses = gains[gains["ability"].eq("syntax")]
    assert len(parses) == 5 and parses["effect"].notna().all()  # of two models with cones
    assert len(gains) == len(IDEAS) * len(ABILITIES) + len(parses)
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv").set_index("id")
    assert ["id", *claims] == [*COLUMNS, *JUDGED]
    assert claims.loc["states/product", "note"] == "no results on closed::auc"
    assert claims["outcome"].isna().all()  # all are secondary
    assert pd.notna(claims.loc["parses/PHyCLIP + syntax", "effect"])
    assert (tmp_path / "figures" / "trades.png").stat().st_size > 5_000
