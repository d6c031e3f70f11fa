"""Preset `photographs` of visual hierarchies, from a small store to tables and claims."""

import numpy as np
import pandas as pd
import pytest
import torch
from new_process import in_new_process, run_notebook
from PIL import Image
from torch import nn

from hypvl.data.photographs import Photograph
from hypvl.features import Encoder, extract
from hypvl.papers import feature_recipes
from hypvl.papers.claims import read_claims

COUNT = 160  # photographs: twenty in each fold
COLOURS = {"person": 40, "hat": 80, "child": 120, "ball": 160, "dog": 200, "bird": 240}
SHORT = {"steps": 4, "batch_size": 16}


def photograph(number):
    "Three boxes, each with the colour of its class; the second lies in the first."
    kinds = [*(("person", "hat"), ("child", "ball"))[number % 2], ("dog", "bird")[number // 2 % 2]]
    corners = [(0, 0, 0.5, 0.5), (0, 0, 0.5, 0.25), (0.5, 0.5, 1, 1)]
    picture = Image.new("L", (8, 8))
    for kind, (x1, y1, x2, y2) in zip(kinds, corners):
        picture.paste(COLOURS[kind], (int(8 * x1), int(8 * y1), int(8 * x2), int(8 * y2)))
    phrases = [f"a small {kind}" for kind in kinds]
    text = f"{phrases[0]} with {phrases[1]} and {phrases[2]} {number}"
    return Photograph(f"{number:03d}.jpg", picture, "train", [text], corners, phrases, (0,) * 3)


def shares(picture):
    "The share of each colour in a picture."
    grey = np.asarray(picture.convert("L"))
    found = [(grey == colour).mean() for colour in COLOURS.values()]
    return torch.tensor(found).float().view(6, 1, 1)


def lengths(texts):
    return torch.tensor([[len(text), text.count("a")] for text in texts]).float()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    image = Encoder("shares", nn.Flatten(), preprocess=shares)
    text = Encoder("lengths", text=nn.Identity(), tokenize=lengths)
    found, out = map(photograph, range(COUNT)), tmp_path_factory.mktemp("store")
    return extract([*found], image, text, out, workers=0, progress=False, device="cpu")


def shortened(notebook, out, parameters):
    "The notebook with four steps per run."
    feature_recipes._TRAINING |= SHORT
    return run_notebook(notebook, out, parameters)


def test_small_store_to_tables_and_claims(store, tmp_path):
    settings = {"preset": "photographs", "data_root": str(store.folder), "out": str(tmp_path)}
    settings |= {"seeds": "0", "sections": "main,controls"}
    job = shortened, "visual_hierarchies.ipynb", tmp_path, settings
    code, output = in_new_process(*job, log=tmp_path / "log.txt")
    assert not code, output[-6000:]
    results = pd.read_csv(tmp_path / "results.csv", low_memory=False)
    own = results[results["score"].eq("paper") & results["dataset"].eq("Flickr30kEntities")]
    assert own.groupby("section")["model"].nunique()["main"] > 5
    value = own[own["metric"].eq("parent_to_child_recall@45%")].groupby("model")["value"].mean()
    assert value["chance"] < value["frozen"] == value["oracle"]  # features are the classes
    claims = pd.read_csv(tmp_path / "tables" / "claims.csv").set_index("id")
    assert list(claims.index) == read_claims("visual_hierarchies", "photographs")["id"].tolist()
    assert claims["effect"].notna().all(), claims["note"]
    metrics = [f"parent_to_child_recall@{share}%" for share in (45, 61, 76)]
    recall = own[own["metric"].isin(metrics) & own["section"].eq("main")]
    recall = recall.groupby("model")["value"].mean()
    effect = claims.at["clip-hierarchical_recall", "effect"]
    assert effect == pytest.approx(100 * (recall["hyperbolic"] - recall["Euclidean"]))
    effect = claims.at["tuned-clip-hyp-hierarchical_recall", "effect"]
    assert effect == pytest.approx(100 * (recall["hyperbolic"] - recall["frozen"]))
    shown = pd.read_csv(tmp_path / "tables" / "table2.csv")
    ours = shown[shown["source"].eq("this run") & shown["value"].notna()]
    assert {"frozen", "Euclidean", "hyperbolic, one image", "chance"} <= {*ours["row"]}
    assert (tmp_path / "figures" / "figure5_curves.png").is_file()
