"""Real photographs through the whole path; needs HYPVL_DATA=folder of the data pack."""

import os
from pathlib import Path

import numpy as np
import pytest

from hypvl.data.grit.prepare import PrepareConfig, prepare
from hypvl.papers.phyclip.recipes import recipe
from hypvl.papers.runs import prepare_data, train


@pytest.mark.data
def test_grit_shaped_photographs_train(tmp_path):
    "COCO photographs with captions and phrase boxes in GRIT's fields: preparation, reader, a short training."
    shard = Path(os.environ["HYPVL_DATA"]) / "coco" / "grit_shaped_00000.tar"
    counts = prepare([str(shard)], tmp_path / "grit", PrepareConfig(size=64), progress=False)
    assert counts["samples: raw"] == 273 and counts["samples: kept"] > 250
    r = recipe(
        "phyclip",
        "smoke",
        **{
            "data.root": str(tmp_path),
            "train.steps": 25,
            "train.progress": False,
            "train.tensorboard": False,
        },
    )
    data = prepare_data(r.data, 48, tmp_path / "none")
    history = train(r, data, tmp_path / "run", progress=False)
    assert (
        np.isfinite(history["loss"]).all()
        and history["contrast"].iloc[-1] < history["contrast"].iloc[0]
    )
