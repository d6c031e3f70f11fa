"""The syntax notebook as a user runs it."""

import pandas as pd
from new_process import reproduce

from hypvl.data.benchmarks.checklist import CHECKLIST
from hypvl.papers.claims import COLUMNS, JUDGED


def test_smoke_renders_every_table_figure_and_claim(tmp_path, smoke_data):
    reproduce("syntax.ipynb", tmp_path, smoke_data)
    for number in (1, 2, 3):
        table = pd.read_csv(tmp_path / "tables" / f"table{number}.csv")
        assert {"this run", "paper (ViT-S/16, GRIT)"} == set(table["source"])
        ours = table[table["source"].eq("this run") & table["value"].notna()]
        assert {"MERU", "MERU + syntax"} <= set(ours["row"]), number
        if number == 3:
            assert set(ours["dataset"]) == set(CHECKLIST)  # the world fills all thirteen columns
    for name in ("figure1_terms", "figure2_loss", "recovery", "claims"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv").set_index("id")
    assert ["id", *claims] == [*COLUMNS, *JUDGED]
    assert claims.loc["falls-edge", ["kind", "seeds"]].tolist() == ["by construction", 2]
    assert claims.loc["falls-edge", "effect"] > 0  # trained, the edge term ends lower
    assert claims.loc["product", "note"] == "no run of model == 'PHyCLIP + syntax'"
    assert set(claims["outcome"].dropna()) == {"not run"}  # two seeds
    assert claims.loc[["checklist", "retrieval"], "note"].tolist() == ["2 of 8 seeds"] * 2
    assert pd.notna(claims.loc["parse", "effect"])
    loss = pd.read_csv(tmp_path / "figures" / "figure2_loss.csv").query(
        "panel.str.startswith('syntax')"
    )
    last = loss[loss["step"] == loss["step"].max()].pivot(
        index="seed", columns="model", values="value"
    )
    assert (last["MERU"] != last["MERU + syntax"]).all()  # the rows acted
