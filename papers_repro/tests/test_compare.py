"""`hypvl compare` from features in a folder to a head that other commands load."""

import numpy as np
import pandas as pd
import pytest
import torch

import hypvl
from hypvl.cli import main
from hypvl.models.registry import load_model


def write_features(folder, pairs, shared=6):
    "Two files of embeddings that share a few numbers per pair; images have a norm of some 200."
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((pairs, shared))
    for name, width, scale in (("image", 24, 40), ("text", 16, 1)):
        noise = 0.4 * rng.standard_normal((pairs, width))
        features = scale * (hidden @ rng.standard_normal((shared, width)) + noise)
        np.save(folder / f"{name}.npy", features.astype(np.float32))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    write_features(folder, 240)
    assert main(["compare", str(folder), "--steps", "24", "--dim", "8"]) == 0
    return folder


def test_the_command_writes_a_table_and_a_head_that_loads(compared):
    table = pd.read_csv(compared / "comparison" / "comparison.csv")
    assert len(table) == 9 and table["R@5"].is_monotonic_decreasing
    report = (compared / "comparison" / "report.txt").read_text()
    assert "Held out (24 test images)" in report and "Control, trained on shuffled pairs" in report
    head = load_model(compared / "comparison" / "best")
    features = torch.from_numpy(np.load(compared / "image.npy"))
    assert head.encode_image(features, normalize=True).shape == (240, head.geometry.dim)
    assert main(["info", str(compared / "comparison" / "best")]) == 0


def test_shuffled_pairs_give_chance_and_paired_ones_do_not(compared):
    image, text = (np.load(compared / f"{name}.npy") for name in ("image", "text"))
    mixed = text[np.random.default_rng(1).permutation(len(text))]
    settings = dict(steps=24, dim=8, rates=(3e-3,), say=lambda line: None)
    right, wrong = (hypvl.compare((image, side), **settings) for side in (text, mixed))
    lift = right.table["R@5"].min() - right.chance
    assert lift > 15
    assert wrong.table["R@5"].mean() - wrong.chance < lift / 4
    assert right.shuffled.low <= right.chance <= right.shuffled.high


def test_several_seeds_give_an_interval_over_seeds(compared, capsys):
    arguments = ["--steps", "6", "--dim", "8", "--seeds", "2", "--out", str(compared / "seeds")]
    assert main(["compare", str(compared), *arguments]) == 0
    printed = capsys.readouterr()
    output = printed.out + printed.err
    assert "2 seeds" in output and output.index("About ") < output.index("1/9 ")
