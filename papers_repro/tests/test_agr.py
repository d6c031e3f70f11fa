"""The notebook of AGR as a user runs it."""

import pandas as pd
from conftest import papermill


def test_smoke_renders_every_table_figure_and_claim(tmp_path):
    done = papermill("agr.ipynb", tmp_path, preset="smoke")
    assert done.returncode == 0, done.stderr[-4000:]
    for number in range(2, 7):
        table = pd.read_csv(tmp_path / "tables" / f"table{number}.csv")
        assert {"this run", "paper (RedCaps)"} == set(table["source"]), number
        ours = table[table["source"].eq("this run") & table["value"].notna()]
        assert "AGR" in set(ours["row"]), number
        if number == 2:
            assert {"CLIP head", "MERU head", "late fusion", "wide sphere"} <= set(ours["row"])
        if number == 3:
            variants = {
                f"AGR ({v})" for v in ("E only", "H only", "E+H", "best constant", "one gate")
            }
            assert variants <= set(ours["row"])
    figures = ("figure3_phases", "figure4_dynamics", "figure5_failures", "study", "gates")
    for name in (*figures, "constants"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv").set_index("id")
    assert claims.loc["t2i-meru", "seeds"] in ("0", 0)
    assert claims.loc[["no-gating", "phyclip"], "verdict"].tolist() == ["not run"] * 2
    assert not set(claims["verdict"]) & {"supports", "contradicts"}  # one seed
    notebook = (tmp_path / "agr.ipynb").read_text()
    for said in (
        "Norms of the gradients that reach the heads. AGR: E zero up to step ",
        "E first: ",
    ):
        assert said in notebook, said
    assert "By level of their names gates are lowest for " in notebook
    results = pd.read_csv(tmp_path / "results.csv")
    shares = results[~results["metric"].isin(("tie", "lca", "lca_max"))]  # the others count edges
    assert shares["value"].between(0, 1).all() and results["run"].nunique() == 8


def test_wrong_section_is_an_error(tmp_path):
    done = papermill("agr.ipynb", tmp_path, preset="smoke", sections="boxes")
    said = done.stderr + done.stdout
    assert done.returncode != 0 and "sections='boxes' is none of all, main, study" in said
