"""Three papers to come, as toys on the vocabulary: twenty steps each through the real trainer.

A router over two geometries whose weights two rows and a regulariser share, candidates that
depend on the image, and two towers of pictures without any text. Each is a geometry, a row or a
model of its own; nothing of the package is changed for it.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hypvl.geometry.spaces import Euclidean, Geometry, Lorentz, Sphere
from hypvl.inputs import Kind
from hypvl.losses.entailment import Entail
from hypvl.losses.label_contrast import CandidateContrast, LabelContrast
from hypvl.losses.objective import Objective, Schedule
from hypvl.losses.terms import LossTerm, read_input
from hypvl.training.config import TrainConfig
from hypvl.training.loop import Trainer

WIDTH, SAMPLES = 12, 64
CONFIG = TrainConfig(
    steps=20, batch_size=16, lr=1e-2, log_every=1, progress=False, tensorboard=False
)


class Views(torch.utils.data.Dataset):
    "Two views of a latent vector in one of four classes, as pictures of one row."

    def __init__(self, names):
        generator = torch.Generator().manual_seed(0)
        self.label = torch.arange(SAMPLES) % 4
        centre = torch.randn(4, WIDTH, generator=generator)[self.label]
        draws = torch.randn(2, SAMPLES, WIDTH, generator=generator)
        self.views = dict(zip(names, centre + 0.3 * draws))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        pixels = {n: v[i].view(3, 1, WIDTH // 3) for n, v in self.views.items()}
        return pixels | {"label": self.label[i]}


def train(model, rows, names, kinds, out, schedules=None):
    "Twenty steps; the metrics."
    torch.manual_seed(0)
    loader = DataLoader(Views(names), batch_size=16, shuffle=True, drop_last=True)
    objective = Objective(rows, schedules)
    with pytest.warns(UserWarning, match="state_dict"):
        trainer = Trainer(model, objective, loader, CONFIG, out, kinds=kinds)
        return trainer.fit()


def tower(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, width))


class TwoViews(nn.Module):
    "One tower for two inputs of pictures."

    def __init__(self, geometry):
        super().__init__()
        self.geometry, self.tower = geometry, tower(geometry.feature_dim)

    def embed(self, batch, inputs, kinds=None):
        found = {s: batch[s] for s in inputs if kinds[s] == "labels"}
        pictures = [s for s in inputs if kinds[s] == "image"]
        points = self.geometry.lift(self.tower(torch.cat([batch[s] for s in pictures])))
        return found | dict(zip(pictures, points.chunk(len(pictures))))


@pytest.mark.parametrize("space", [Lorentz, Euclidean])
def test_pictures_without_text(space, tmp_path):
    "Visual hierarchies: angles in both directions, several positives, no text anywhere."
    torch.manual_seed(0)
    rows = [
        LabelContrast("parent", "child", "label", "label", similarity="angle_to_specific"),
        LabelContrast("child", "parent", "label", "label", similarity="angle_to_general"),
    ]
    kinds = {"parent": "image", "child": "image", "label": "labels"}
    model = TwoViews(space(8, modalities=("image",)))
    unused = {n for n, _ in model.named_parameters() if "text" in n}
    metrics = train(model, rows, ("parent", "child"), kinds, tmp_path)
    assert not unused
    assert metrics["loss"].iloc[-1] < 0.7 * metrics["loss"].iloc[0]


class WithCandidates(nn.Module):
    "Texts of classes that each picture refines: the keys of a query are its own [B, T, D]."

    def __init__(self, geometry):
        super().__init__()
        self.geometry, self.tower = geometry, tower(geometry.feature_dim)
        self.classes = nn.Parameter(torch.randn(4, geometry.feature_dim))
        self.refine = nn.Linear(geometry.feature_dim, geometry.feature_dim)

    def embed(self, batch, inputs, kinds=None):
        features = self.tower(batch["image"])
        refined = self.classes + 0.1 * self.refine(features)[:, None]
        points = {
            "image": self.geometry.lift(features, "image"),
            "candidates": self.geometry.lift(refined, "text"),
            "root_class": self.geometry.lift(self.classes.mean(0).expand_as(features), "text"),
            "label": batch["label"],
        }
        return {s: points[s] for s in inputs}


def test_candidates_that_depend_on_the_image(tmp_path):
    "H2EM: cross-entropy over a picture's own candidates, and entailment by a taxonomy."
    own = Kind("own_candidates", "points [B, T, D]", "text", one_per_sample=False)
    torch.manual_seed(0)
    kinds = {"candidates": own, "root_class": "text", "label": "labels"}
    rows = [
        CandidateContrast("image", "candidates", "label"),
        Entail("root_class", "image", weight=0.1),
    ]
    metrics = train(WithCandidates(Lorentz(8)), rows, ("image", "text"), kinds, tmp_path)
    contrast = metrics["contrast/image_candidates"]
    assert contrast.iloc[-1] < 0.3 * contrast.iloc[0]


class Routed(Geometry):
    "A sphere and a hyperboloid side by side; a small network weighs them for each pair."

    symmetric = False

    def __init__(self, width):
        super().__init__(2 * width)
        self.width, self.sphere, self.hyperbolic = width, Sphere(width), Lorentz(width)
        self.router = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 1))
        self.throttle, self.routed = 0.0, 0

    @property
    def heads(self):
        return {"sphere": self.width, "hyperbolic": self.width}

    def begin_step(self, step):
        self.throttle = min(1.0, step / 10)

    def lift(self, features, side="image"):
        first, second = features.split(self.width, -1)
        return torch.cat([self.sphere.lift(first, side), self.hyperbolic.lift(second, side)], -1)

    def weights(self, images, texts):
        "Routed scores and the weight of the sphere [I, T]."
        self.routed += 1
        (a, x), (b, y) = (t.split(self.width, -1) for t in (images, texts))
        scores = torch.stack([self.sphere.score(a, b), self.hyperbolic.score(x, y)], -1)
        weight = self.router(scores.detach())[..., 0].sigmoid()
        mixed = scores[..., 1] + self.throttle * weight * (scores[..., 0] - scores[..., 1])
        return mixed, weight

    def score(self, queries, keys, side="image", *, kind="paper"):
        if side == "image":
            return self.weights(queries, keys)[0]
        return self.weights(keys, queries)[0].mT


@dataclass(frozen=True)
class RoutedLoss(LossTerm, kind="toy_routed"):
    "Both directions, and the squared distance of the mean weight from one half."

    balance: float = 0.1
    anneal: Schedule = Schedule()
    weight: float = 1.0
    name: str = "routed/loss"
    group: str = "routed"
    inputs = ("image", "text")

    def __call__(self, embeddings, geometry, context):
        images = read_input(embeddings, "image")
        texts, offset = context.gathered(embeddings, "text")
        scores, weight = geometry.weights(images, texts)
        logits, pair = geometry.logit_scale.exp() * scores, torch.arange(len(images)) + offset
        both = [nn.functional.cross_entropy(x, pair) for x in (logits, logits.mT)]
        factor = self.anneal.factor(context.step)
        context.report("router/weight", weight.mean())
        context.report("weight/router", factor)
        return sum(both) / 2 + factor * self.balance * (weight.mean() - 0.5).square()


class TwoTowers(nn.Module):
    "A tower for each side and a projection for each head."

    def __init__(self, geometry):
        super().__init__()
        self.geometry = geometry
        self.towers = nn.ModuleDict({side: tower(16) for side in ("image", "text")})
        self.heads = nn.ModuleDict()
        for side in ("image", "text"):
            heads = {n: geometry.make_head(n, 16, side) for n in geometry.heads}
            self.heads[side] = nn.ModuleDict(heads)

    def embed(self, batch, inputs, kinds=None):
        points = {}
        for side in inputs:
            features = self.towers[side](batch[side])
            parts = [head(features) for head in self.heads[side].values()]
            points[side] = self.geometry.lift(torch.cat(parts, -1), side)
        return points


def test_a_router_is_evaluated_once_per_step(tmp_path):
    "Adaptive routing: one term, one router pass a step; a curriculum; a schedule that falls."
    torch.manual_seed(0)
    geometry = Routed(8)
    rows = [RoutedLoss(anneal=Schedule(hold=0, fall=10))]
    model = TwoTowers(geometry)
    kinds = {"image": "image", "text": "image", "label": "labels"}
    kinds_of_sides = kinds | {"text": "text"}
    metrics = train(model, rows, ("image", "text"), kinds_of_sides, tmp_path)
    assert metrics["loss"].iloc[-1] < 0.8 * metrics["loss"].iloc[0]
    assert geometry.throttle == 1.0
    assert metrics["weight/router"].iloc[[0, 5, -1]].tolist() == [1.0, 0.5, 0.0]
    assert metrics["router/weight"].between(0, 1).all()
    looks = CONFIG.steps // CONFIG.guard.every  # the guard asks each term for its own gradient
    assert geometry.routed <= CONFIG.steps + looks
