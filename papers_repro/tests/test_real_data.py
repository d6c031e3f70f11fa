"""Real photographs through the whole path; needs HYPVL_DATA=folder of the data pack."""

import os
from pathlib import Path

import numpy as np
import pytest

from hypvl.data.grit.prepare import PrepareConfig, prepare
from hypvl.data.sources import GritSource
from hypvl.losses.contrast import ContrastOneWay
from hypvl.losses.objective import Objective
from hypvl.models.registry import create_model
from hypvl.training.loop import TrainConfig, Trainer


@pytest.mark.data
def test_grit_shaped_photographs_train(tmp_path):
    "COCO photographs with captions and phrase boxes in GRIT's fields: made, read, trained on."
    shard = Path(os.environ["HYPVL_DATA"]) / "coco" / "grit_shaped_00000.tar"
    counts = prepare([str(shard)], tmp_path / "grit", PrepareConfig(size=64), progress=False)
    assert counts["samples: raw"] == 273 and counts["samples: kept"] > 250
    source, model = GritSource(str(tmp_path)), create_model("phyclip_tiny", seed=0)
    data = source.prepare()
    loader = source.loader(data, model.tokenizer, size=48, batch_size=32)
    pairs = [("image", "text"), ("text", "image"), ("image", "box_text"), ("box_image", "text")]
    objective = Objective(tuple(ContrastOneWay(query, key) for query, key in pairs))
    config = TrainConfig(
        steps=25,
        batch_size=32,
        lr=1.5e-3,
        warmup=4,
        clip_grad=1.0,
        log_every=1,
        checkpoint_every=0,
        progress=False,
        tensorboard=False,
    )
    losses = Trainer(model, objective, loader, config, tmp_path / "run").fit()["loss"]
    assert np.isfinite(losses).all() and losses.iloc[-5:].mean() < losses.iloc[:5].mean()
