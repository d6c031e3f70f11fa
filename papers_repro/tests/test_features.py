"""Recipes of pairs and of boxes on a feature store, and the command that fills one."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hypvl.cli import main
from hypvl.data.photographs import Photograph
from hypvl.features import Encoder, FeatureStore, extract
from hypvl.models.registry import load_model
from hypvl.papers.feature_recipes import on_features
from hypvl.papers.recipe_names import find_recipe
from hypvl.papers.runs import run, train

COLOURS = 16
FEW_STEPS = {"train.steps": 20, "train.lr": 3e-3, "train.checkpoint_every": 20}


class Pixels(nn.Module):
    def forward(self, pixels):
        return pixels.flatten(1)


def one_hot(number):
    return torch.nn.functional.one_hot(torch.tensor(number), COLOURS).float()


def encoders(scale=100.0):
    "Features of a picture and of a text that say its colour, of norm 100 and far from the origin."

    def pixels(picture):
        return (one_hot(picture.getpixel((0, 0))[0] // 10) + 2).view(1, 1, COLOURS) * scale

    def numbers(texts):
        return torch.stack(
            [one_hot(int(f"0{text.partition(' ')[0].strip('a')}")) for text in texts]
        )

    image = Encoder("colour", image=Pixels(), preprocess=pixels)
    return image, Encoder("number", text=Pixels(), tokenize=numbers)


def photograph(index):
    "A picture of one colour whose right half, a box, has the next one."
    colour, split = index % COLOURS, "val" if index % 4 == 3 else "train"
    picture = Image.new("RGB", (8, 4), (10 * colour, 0, 0))
    other = (colour + 1) % COLOURS
    picture.paste((10 * other, 0, 0), (4, 0, 8, 4))
    captions = [f"{colour} first", f"{colour} second"]
    return Photograph(
        str(index), picture, split, captions, [(0.5, 0, 1, 1)], [f"{other} phrase"], owners=[1]
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    photographs = [photograph(index) for index in range(COLOURS * 8)]
    return extract(photographs, *encoders(), folder, workers=0, progress=False, device="cpu")


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("family", ["clip", "meru", "hycoclip", "phyclip"])
def test_recipe_on_features(store, tmp_path, family, boxes):
    settings = FEW_STEPS | {"objective.boxes": boxes}
    recipe = find_recipe(f"phyclip:{family}", "smoke", overrides=settings)
    recipe = on_features(recipe, store.folder, hidden=32, dropout=0.0)
    assert recipe.data.boxes == boxes
    data = recipe.data.prepare(tmp_path, 0)
    losses = train(recipe, data, tmp_path / "run", "cpu", progress=False)["loss"]
    assert np.isfinite(losses).all() and losses.iloc[-1] < losses.iloc[0]
    head = load_model(tmp_path / "run" / "model")
    for side, (mean, deviation) in store.statistics.items():
        torch.testing.assert_close(head.readers[side].mean, mean)
        torch.testing.assert_close(head.readers[side].deviation, deviation)
        assert head.config.encoders[side].hash == store.encoders[side].hash


def test_shuffled_pairs_give_chance(tmp_path):
    rng = np.random.default_rng(0)
    hidden, images, texts = rng.normal(size=(400, 6)), *rng.normal(size=(2, 6, 16))
    shuffled = np.stack([np.arange(400), rng.permutation(400)], axis=1)
    settings = FEW_STEPS | {"train.steps": 80, "objective.boxes": False}
    found = {}
    for name, pairs in {"true": None, "shuffled": shuffled}.items():
        FeatureStore.from_arrays(tmp_path / name, hidden @ images, hidden @ texts, pairs)
        recipe = find_recipe("phyclip:phyclip", "smoke", overrides=settings)
        recipe = on_features(recipe, tmp_path / name, hidden=0)
        frames = run(recipe, tmp_path / "runs", device="cpu", progress=False).frames()
        found[name] = frames["validation"]["value"].iloc[0]
    chance = 5 / 40  # five of 40 validation images
    assert found["true"] > 3 * chance
    assert found["shuffled"] < 2.5 * chance


def test_command_trains_on_a_store(store, tmp_path, capsys):
    settings = FEW_STEPS | {"objective.boxes": False}
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = ["train", "phyclip:meru", "--preset", "smoke", "--data", str(store.folder)]
    arguments += [*given, "--out", str(tmp_path), "--quiet"]
    assert main([*arguments, "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "MERU, preset smoke, seed 0: 20 steps" in output
    assert main([*arguments, "--device", "cpu"]) == 0  # the finished run
    assert len([*tmp_path.glob("runs/*/frames/validation*")]) == 1


def test_a_store_that_has_changed_gives_no_earlier_run(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "store"
    settings = FEW_STEPS | {"train.steps": 2, "train.warmup": 0, "objective.boxes": False}
    for again in (False, True):
        shutil.rmtree(folder, ignore_errors=True)
        FeatureStore.from_arrays(folder, *rng.normal(size=(2, 100, 16)))
        recipe = on_features(find_recipe("phyclip:meru", "smoke", overrides=settings), folder)
        if again:
            with pytest.raises(ValueError, match="the feature store of MERU has changed since"):
                run(recipe, tmp_path / "runs", device="cpu", progress=False)
        else:
            run(recipe, tmp_path / "runs", device="cpu", progress=False)


def pictures(folder):
    "Six pictures with captions in files beside them, and a broken one."
    folder.mkdir()
    for number in range(6):
        Image.new("RGB", (40, 30), (40 * number, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"a bird {'and a dog ' * (number % 2)}\na fish")
    (folder / "6.png").write_bytes((folder / "5.png").read_bytes()[:50])
    (folder / "6.txt").write_text("a fish")
    return folder


def test_command_extracts(tmp_path, capsys):
    names = ["--image", "shipped:clip_world", "--text", "shipped:clip_world"]
    arguments = ["features", "extract", "--data", str(pictures(tmp_path / "data")), *names]
    arguments += ["--out", str(tmp_path / "F"), "--device", "cpu", "--quiet"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "6 images, 0 boxes, 12 captions, 0 phrases" in output
    assert "left out: 1 x broken picture, the first is 6.png" in output
    store = FeatureStore(tmp_path / "F")
    assert store.encoders["image"].name == "shipped:clip_world"
    before = (tmp_path / "F" / "store.json").read_bytes()
    assert main(arguments) == 0
    assert (tmp_path / "F" / "store.json").read_bytes() == before


@pytest.mark.parametrize(
    "change, message",
    [
        ({"--image": "tim:resnet50"}, "Did you mean 'timm'?"),
        ({"--image": "timm:resnet50/none.pth"}, "no file 'none.pth'"),
        ({"--data": "nowhere"}, "data: no file or folder 'nowhere'"),
    ],
)
def test_command_says_what_is_wrong(tmp_path, capsys, change, message):
    given = {"--data": str(pictures(tmp_path / "data")), "--image": "shipped:clip_world"}
    given |= {
        "--text": "shipped:clip_world",
        "--out": str(tmp_path / "F"),
        "--device": "cpu",
    } | change
    arguments = [part for pair in given.items() for part in pair]
    assert main(["features", "extract", *arguments]) == 2
    assert message in capsys.readouterr().err
