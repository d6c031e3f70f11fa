"""Heads on given features that train in a second: tied, compiled, frozen, and slow to start."""

import math
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from hypvl.geometry.spaces import ProductConfig, SphereConfig
from hypvl.losses.contrast import Contrast
from hypvl.losses.entailment import Entail
from hypvl.losses.objective import Objective, Schedule
from hypvl.models.head import HyperbolicHead
from hypvl.training.checkpoint import load_weights
from hypvl.training.config import TrainConfig
from hypvl.training.guard import GuardConfig, TrainingDiverged
from hypvl.training.loop import Trainer
from hypvl.training.metrics import read_metrics
from hypvl.training.optim import Group


class Pairs:
    "Batches of paired features that are nearly the same."

    def __init__(self, batch=16):
        generator = torch.Generator().manual_seed(0)
        self.batches = []
        for _ in range(4):
            x = torch.randn(batch, 6, generator=generator)
            self.batches.append(
                {"image": x, "text": x + 0.01 * torch.randn(x.shape, generator=generator)}
            )

    def __iter__(self):
        return iter(self.batches)


def head(geometry=ProductConfig(k=2, d=3), tie=False):
    torch.manual_seed(0)
    made = HyperbolicHead(6, geometry)
    if tie:
        made.projections["text"] = made.projections["image"]
    return made


def fit(model, out, steps=4, objective=None, **settings):
    "A trained trainer."
    shown = dict(progress=False, tensorboard=False, log_every=1, checkpoint_every=2)
    config = TrainConfig(steps=steps, batch_size=16, **shown | settings)
    objective = objective or Objective([Contrast("image", "text")])
    trainer = Trainer(model, objective, Pairs(), config, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit()
    return trainer


def test_tied_weights_are_saved_loaded_and_resumed(tmp_path):
    trained = fit(head(tie=True), tmp_path, ema=0.9).model
    weight = trained.projections["image"].weight
    found = HyperbolicHead.from_pretrained(tmp_path)
    assert torch.equal(found.projections["image"].weight, weight)
    assert torch.equal(found.projections["text"].weight, weight)
    again = head(tie=True)
    load_weights(again, tmp_path)
    assert torch.equal(again.projections["text"].weight, weight)
    resumed = fit(head(tie=True), tmp_path, ema=0.9).model  # nothing is left to train
    assert torch.equal(resumed.projections["text"].weight, weight)


@pytest.mark.parametrize("part", ["whole", "a layer"])
def test_compiled_models_and_plain_ones_read_each_other(tmp_path, part):
    def compiled():
        model = head()
        if part == "whole":
            return torch.compile(model, backend="eager")
        model.projections["image"] = torch.compile(model.projections["image"], backend="eager")
        return model

    settings = dict(ema=0.9, groups=(Group("projections.text", lr=0.5),))
    whole = fit(head(), tmp_path / "plain", **settings).model.state_dict()
    fit(compiled(), tmp_path / "mixed", **settings)
    names = load_file(tmp_path / "mixed/checkpoints/latest/model.safetensors").keys()
    assert names == whole.keys()
    shutil.rmtree(tmp_path / "mixed/checkpoints/step_0000004")
    for continued in (head(), compiled()):  # resumed at step 2 by a plain one, then at the end
        for name, tensor in (
            fit(continued, tmp_path / "mixed", **settings).model.state_dict().items()
        ):
            torch.testing.assert_close(tensor, whole[name.replace("_orig_mod.", "")])
    HyperbolicHead.from_pretrained(tmp_path / "mixed")


def test_values_of_a_checkpoint_are_looked_at(tmp_path):
    fit(head(), tmp_path)
    path = tmp_path / "model/model.safetensors"
    weights = load_file(path)
    broken = weights["projections.image.weight"].clone()
    broken[0, 0] = torch.nan
    save_file(weights | {"projections.image.weight": broken}, path)
    message = (
        "model.safetensors': tensor 'projections.image.weight' has 1 values that are no finite"
    )
    with pytest.raises(ValueError, match=message):
        HyperbolicHead.from_pretrained(tmp_path)
    save_file(weights | {"geometry.logit_scale": torch.tensor(3)}, path)
    message = "'geometry.logit_scale' must hold floating-point numbers, got torch.int64"
    with pytest.raises(ValueError, match=message):
        HyperbolicHead.from_pretrained(tmp_path)


def test_parameters_move_only_if_they_train(tmp_path):
    def outside():
        "A model whose scalars lie outside of the ranges of a training."
        model = head()
        with torch.no_grad():
            model.geometry.log_curvature.fill_(math.log(20))
            model.geometry.logit_scale.fill_(math.log(117))
        return model

    untouched = fit(outside(), tmp_path / "none", steps=0).model.geometry
    assert math.isclose(untouched.logit_scale.exp().item(), 117, rel_tol=1e-5)
    frozen = outside()
    frozen.geometry.requires_grad_(False)
    kept = fit(frozen, tmp_path / "frozen").model.geometry
    assert torch.allclose(kept.curvature, torch.tensor(20.0))
    assert math.isclose(kept.logit_scale.exp().item(), 117, rel_tol=1e-5)
    trained = fit(outside(), tmp_path / "trained").model.geometry
    assert trained.curvature.max() <= 10.001 and trained.logit_scale.exp() <= 100.001


def test_entailment_that_starts_after_contrast_has_converged_is_no_explosion(tmp_path):
    terms = [Contrast("image", "text"), Entail("image", "text")]
    objective = Objective(terms, {"entailment": Schedule(delay=15)})
    model = head(ProductConfig(k=1, d=6, temperature=0.15))
    with torch.no_grad():
        for layer in model.projections.values():
            layer.weight.copy_(torch.eye(6))
    trainer = fit(model, tmp_path, 30, objective, lr=1e-6)
    loss = read_metrics(tmp_path)["loss"]
    assert trainer.step == 30 and loss[:15].max() < 0.03 and loss[16:].min() > 10 * loss[:15].max()


def test_a_run_that_explodes_is_stopped_unless_the_guard_is_off(tmp_path):
    def spoil(trainer, row):
        if row["step"] == 14:
            with torch.no_grad():
                trainer.model.geometry.logit_scale.fill_(12)
                trainer.model.projections["text"].weight.copy_(torch.randn(6, 6))

    def run(out, **guard):
        config = TrainConfig(
            steps=16,
            batch_size=16,
            log_every=1,
            progress=False,
            tensorboard=False,
            guard=GuardConfig(**guard),
        )
        model = head(SphereConfig(6))
        trainer = Trainer(
            model, Objective([Contrast("image", "text")]), Pairs(), config, out, None, [spoil]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit()

    with pytest.raises(
        TrainingDiverged,
        match=r"is above its limit [\d.e+]+ \(explode=10\) in loss term 'symmetric/image_t",
    ):
        run(tmp_path / "on")
    for name, off in (("every", dict(every=0)), ("explode", dict(explode=0))):
        run(tmp_path / name, **off)
