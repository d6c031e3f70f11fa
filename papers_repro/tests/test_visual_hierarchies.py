"""The notebook on visual hierarchies as a user runs it."""

import pandas as pd
from new_process import reproduce

from hypvl.papers.claims import COLUMNS, JUDGED

MODELS = {"CLIP", "CLIP-euc", "CLIP-hyp"}


def test_smoke_renders_every_table_figure_and_claim(tmp_path, smoke_data):
    reproduce("visual_hierarchies.ipynb", tmp_path, smoke_data)
    for number in range(1, 8):
        table = pd.read_csv(tmp_path / "tables" / f"table{number}.csv")
        ours = table[table["source"].eq("this run")]
        assert len(table["source"].unique()) == 2, number  # theirs too
        measured = set(ours.loc[ours["value"].notna(), "row"])
        if number == 5:
            assert measured == {"queries", "candidates"}
            continue
        assert MODELS <= measured, number
        baselines = {"chance", "majority class" if number == 4 else "label frequency"}
        assert baselines <= measured, number
        if number in (1, 2, 4):
            roots = {"nearest to the root, CLIP", "nearest to the root, CLIP-hyp"}
            assert roots <= measured  # the frozen tower's is the mean direction of training
        if number in (1, 2):
            gaps = ours[ours["row"].eq("MoCo-hyp")]
            assert gaps["value"].isna().all() and gaps["note"].str.contains("sections main").all()
    order = pd.read_csv(tmp_path / "tables" / "tableorder.csv")
    assert MODELS | {"chance", "scene known", "area of the crop"} <= set(order["row"])
    frozen = order[order["row"].eq("CLIP") & order["metric"].str.startswith("depth")]["value"]
    assert len(frozen) == 4 and frozen.ne(0).all()  # measured, no constant
    figures = "1_concept 2_pairs 3_angles 4_retrieval 5_curves 6_trees 7_classes 9_retrieval"
    for name in (*(f"figure{name}" for name in figures.split()), "order", "training", "claims"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000, name
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv").set_index("id")
    assert list(claims.reset_index().columns) == [*COLUMNS, *JUDGED]
    assert claims.loc["clip-transport", "seeds"] == 1
    assert claims.loc["clip-transport", ["outcome", "note"]].tolist() == ["not run", "1 of 8 seeds"]
    assert claims.loc["hcl-same", "note"] == "no run of model == 'HCL on pairs'"
    by_loss = claims.loc[["edges", "depth-clip", "edges-untrained"], "kind"]
    assert set(by_loss) == {"by construction"}
    assert set(claims["outcome"].dropna()) == {"not run"}  # one seed
    measured = claims.loc[["origin", "curves-cross"]]  # values of their own per run
    assert measured["effect"].notna().all() and measured["seeds"].eq(1).all()
    scores = pd.read_csv(tmp_path / "tables" / "scores.csv")
    assert {"baseline", "upper bound", *MODELS} <= set(scores["model"])
    results = pd.read_csv(tmp_path / "results.csv")
    chance = results.query("model == 'chance' and metric == 'parent_to_child_recall@45%'")
    assert (chance["value"] - 0.4545).abs().max() < 0.02
