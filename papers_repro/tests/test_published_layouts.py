"""A paper's notebook on a folder of real data in the published layouts, as small as they get.

The files are written by the package's own writers, without the truth that the synthetic dataset
has. What needs that truth says so in its cell; everything else is trained, measured and drawn.
The tests with data copy published files instead, byte for byte.
"""

import json
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import papermill, plan

from hypvl.data.grit.prepare import PrepareConfig, prepare
from hypvl.data.sources import WorldSource
from hypvl.data.world.captions import caption
from hypvl.data.world.published import write_data_root
from hypvl.data.world.scenes import World
from hypvl.data.world.states import StatesConfig
from hypvl.data.world.writers import SuiteConfig
from hypvl.models.registry import create_model
from hypvl.models.shipped import shipped_config
from hypvl.papers.agr.synthetic_posts import RedcapsWorldConfig, write_redcaps_world
from hypvl.papers.h2em.composition_source import write_state_world
from hypvl.papers.syntax.parsed_captions import train_parser
from hypvl.papers.syntax.parsers import parse_shards
from hypvl.papers.visual_hierarchies.box_files import BoxWorldConfig, write_box_world

_BENCHMARKS = SuiteConfig(2, 2, 3, 1, retrieval=24, captions=5, checklist=4, crepe=4, factors=20)


def grit(root):
    "Prepared shards of GRIT beside the benchmarks."
    write_data_root(World(), root, config=_BENCHMARKS)
    few = WorldSource(train=200, val=64, suite=SuiteConfig(1, 1, 1, 1, retrieval=4))
    made = few.prepare(root.parent / "made", 48, progress=False)
    shutil.copytree(made.train, root / "grit")
    shutil.copytree(made.val, root / "val")


def redcaps(root):
    "RedCaps beside the benchmarks."
    write_data_root(World(), root, config=_BENCHMARKS)
    write_redcaps_world(root / "redcaps", RedcapsWorldConfig(posts=400), progress=False)


def parse(root):
    "Parses of a small spaCy pipeline beside the shards of GRIT."
    world = World()
    gold = [caption(world, world.scene("train", i)).read()[0] for i in range(40)]
    parser = train_parser(gold, root.parent / "parser")
    for folder in (root / "grit", root / "val"):
        parse_shards(folder, str(parser), progress=False)


def parsed_grit(root):
    "Shards of GRIT with parses."
    grit(root)
    parse(root)


def open_images(root):
    "Open Images and LVIS beside the benchmarks."
    write_data_root(World(), root, config=_BENCHMARKS)
    few = BoxWorldConfig(train=100, validation=10, test=30, lvis=24)
    shutil.copytree(
        write_box_world(root.parent / "boxes", few, progress=False), root, dirs_exist_ok=True
    )


def compositions(root):
    "States and objects under the name of UT-Zappos' folder layout."
    few = StatesConfig(train_images=8, test_images=6)
    shutil.copytree(
        write_state_world(root.parent / "states", few, progress=False), root, dirs_exist_ok=True
    )


LAYOUTS = {
    "phyclip": grit,
    "agr": redcaps,
    "syntax": parsed_grit,
    "visual_hierarchies": open_images,
    "h2em": compositions,
}


def unpack(name, folder):
    "An archive of the data pack."
    with tarfile.open(Path(os.environ["HYPVL_DATA"]) / name) as archive:
        archive.extractall(folder, filter="data")


def photographs(root):
    "COCO with captions, SugarCrepe and CIFAR-10."
    pack, captions = Path(os.environ["HYPVL_DATA"]), root / "coco/annotations/captions_val2017.json"
    unpack("coco/images.tar", root / "coco")
    unpack("coco/images.tar", root / "coco/val2017")  # captions.json names val2017/FILE
    captions.parent.mkdir()
    shutil.copy(pack / "coco/captions.json", captions)
    shutil.copy(pack / "coco/dataset_coco_subset.json", root / "coco/dataset_coco.json")
    shutil.copytree(pack / "sugarcrepe", root / "sugarcrepe")
    unpack("cifar10/cifar10.tar", root / "cifar-10-batches-py")


def published_grit(root):
    "Photographs of COCO in GRIT's raw layout, prepared, beside benchmarks."
    photographs(root)
    raw = Path(os.environ["HYPVL_DATA"]) / "coco/grit_shaped_00000.tar"
    prepare([str(raw)], root / "grit", PrepareConfig(size=64), progress=False)
    shutil.copytree(root / "grit", root / "val")


def published_parsed_grit(root):
    "The same with parses."
    published_grit(root)
    parse(root)


def published_compositions(root):
    "Products by colour and article in the layout of MIT-States."
    unpack("fashion/fashion.tar", root)


def published_posts(root):
    "Photographs of COCO with their first caption as posts of RedCaps, beside benchmarks."
    photographs(root)
    listed = json.loads((root / "coco/annotations/captions_val2017.json").read_text())
    captions = {one["image_id"]: one["caption"] for one in reversed(listed["annotations"])}
    posts, images = [], root / "redcaps/images"
    images.mkdir(parents=True)
    for image in listed["images"]:
        name = str(image["id"])
        shutil.copy(root / "coco" / image["file_name"], images / f"{name}.jpg")
        post = {"image_id": name, "subreddit": "pics", "caption": captions[image["id"]]}
        posts.append(post)
    (root / "redcaps/annotations").mkdir()
    file = root / "redcaps/annotations/pics_2017.json"
    file.write_text(json.dumps({"info": {}, "annotations": posts}))


PUBLISHED = {  # Open Images has no rows there
    "phyclip": published_grit,
    "syntax": published_parsed_grit,
    "h2em": published_compositions,
    "agr": published_posts,
}
_ENCODERS = {"h2em": "clip_states", "agr": "clip_world"}  # of the presets, which have few words


def save_encoder(paper, folder):
    "A model of the shape of the preset's frozen encoder with a row for every piece, untrained."
    known = shipped_config(_ENCODERS[paper])
    every_piece = replace(known, text=replace(known.text, vocabulary=()))
    create_model(every_piece, seed=0).save_pretrained(folder)
    return folder


def runs_through(paper, write, folder, timeout, **parameters):
    "Write a data root, and run the notebook of a paper on it."
    root, out = folder / "root", folder / "out"
    root.mkdir()
    write(root)
    done = papermill(f"{paper}.ipynb", out, timeout, preset="smoke", data_root=root, **parameters)
    assert done.returncode == 0, done.stderr[-4000:]
    results = pd.read_csv(out / "results.csv")
    assert results["value"].notna().any() and (out / "tables" / "claims.csv").exists()


@pytest.mark.full
@pytest.mark.parametrize("paper", LAYOUTS)
def test_a_notebook_runs_through_on_published_layouts(paper, tmp_path):
    runs_through(paper, LAYOUTS[paper], tmp_path, 1_200)


@pytest.mark.full
@pytest.mark.data
@pytest.mark.parametrize("paper", PUBLISHED)
def test_a_notebook_runs_through_on_published_files(paper, tmp_path):
    own = {}
    if paper in _ENCODERS:
        own = {"backbone": save_encoder(paper, tmp_path / "encoder")}
    runs_through(paper, PUBLISHED[paper], tmp_path, 3_600, **own)


@pytest.mark.parametrize("paper", _ENCODERS)
def test_every_model_of_a_notebook_takes_the_backbone_that_is_named(paper, tmp_path):
    encoder = str(save_encoder(paper, tmp_path / "encoder"))
    named = plan(paper, preset="smoke", sections="all", backbone=encoder, out=str(tmp_path))
    usual = plan(paper, preset="smoke", sections="all", out=str(tmp_path))
    for section, recipes in named.recipes.items():
        key = "backbone" if paper == "h2em" else "weights"
        assert {getattr(recipe.model, key) for recipe in recipes} <= {encoder}
        for recipe, other in zip(recipes, usual.recipes[section], strict=True):
            assert recipe.hash != other.hash and recipe.model.geometry == other.model.geometry
    if paper == "agr":
        encoders = {getattr(recipe.data, "encoder", "") for recipe in named.recipes["main"]}
        assert encoders == {f"towers:{encoder}"}
