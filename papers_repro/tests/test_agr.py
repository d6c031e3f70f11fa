"""The notebook of AGR as a user runs it."""

import pandas as pd
from new_process import reproduce

from hypvl.papers.claims import COLUMNS, JUDGED


def test_smoke_renders_every_table_figure_and_claim(tmp_path, smoke_data):
    reproduce("agr.ipynb", tmp_path, smoke_data)
    for number in range(2, 7):
        table = pd.read_csv(tmp_path / "tables" / f"table{number}.csv")
        assert {"this run", "paper (RedCaps)"} == set(table["source"]), number
        ours = table[table["source"].eq("this run") & table["value"].notna()]
        assert "AGR" in set(ours["row"]), number
        if number == 2:
            rivals = {"CLIP", "MERU", "late fusion, learned temperature", "wide sphere"}
            assert rivals <= set(ours["row"])
        if number == 3:
            variants = {
                f"AGR ({v})" for v in ("E only", "H only", "E+H", "best constant", "one gate")
            }
            assert variants <= set(ours["row"])
    figures = ("figure3_phases", "figure4_dynamics", "study", "gates")
    for name in (*figures, "constants"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv", keep_default_na=False)
    assert list(claims) == [*COLUMNS, *JUDGED]
    claims = claims.set_index("id")
    assert claims.loc["t2i-meru", "seeds"] == 1 and claims.loc["t2i-meru", "effect"] != ""
    assert claims.loc["no-gating", "note"] == "no run of model == 'AGR, no gating'"
    assert claims.loc["phyclip", ["seeds", "effect"]].tolist() == [0, ""]
    assert set(claims["outcome"]) == {"not run", ""}  # one seed
    assert claims.loc["single", "note"] == "1 of 8 seeds"
    for id in ("gate-default", "gate-species", "gate-attribute", "t2i-clip", "gate-abstract"):
        assert claims.loc[id, "seeds"] == 1 and claims.loc[id, "effect"] != "", id
    notebook = (tmp_path / "agr.ipynb").read_text()
    for heading in ("E falls", "of row", "E over H", "captions of", "partial_r", "left out"):
        assert heading in notebook, heading
    results = pd.read_csv(tmp_path / "results.csv")
    no_share = results["metric"].isin(("tie", "lca", "lca_max"))  # they count edges
    no_share |= results["dataset"].isin(("curvature_kept", "rate_ratio"))  # logarithms
    assert results.loc[~no_share, "value"].between(0, 1).all() and results["run"].nunique() == 12
    measures = results[results["suite"].eq("measure")]
    assert {"default_share", "gate_order_species", "curvature_kept"} <= set(measures["dataset"])
    known = measures["dataset"].isin(("gate_order_species", "default_share"))
    permuted = measures[known & measures["model"].eq("permuted")]
    assert len(permuted) == 2 * 5 and permuted["value"].eq(0.5).all()  # five models with gates
