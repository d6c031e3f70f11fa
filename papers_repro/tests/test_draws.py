"""Each seed of a study on the synthetic dataset has test items of its own.

Training data are the same for all seeds and made once; the hash of the test data differs, which is
how the claims table knows that seeds share no items.
"""

from hashlib import sha256
from importlib import import_module
from pathlib import Path

import pytest

from hypvl.config import config_hash
from hypvl.data.world.captions import caption
from hypvl.data.world.negatives import checklist_pair, hard_negative
from hypvl.data.world.scenes import World
from hypvl.papers.h2em.composition_source import CzslSource
from hypvl.papers.runs import prepare_data
from hypvl.papers.visual_hierarchies.box_source import BoxSource
from hypvl.papers.visual_hierarchies.box_table import load_boxes

RECIPES = [
    ("phyclip", "main"),
    ("syntax", "main"),
    ("visual_hierarchies", "main"),
    ("visual_hierarchies", "others"),
    ("h2em", "main"),
    ("agr", "main"),
    ("agr", "towers"),
    ("ideas", "main"),
    ("ideas", "states"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory, smoke_data):
    "A folder with the data of all papers; some share theirs."
    folder = tmp_path_factory.mktemp("draws")
    (folder / "data").symlink_to(smoke_data)
    return folder


def pictures(source, paths):
    "Hash of the bytes of every test picture."
    if isinstance(source, BoxSource):
        tables = [load_boxes(paths.suite / split) for split in ("test", "lvis")]
        files = [Path(table.root, name) for table in tables for name in table.images]
    elif isinstance(source, CzslSource):
        data = source.compositions(paths)
        files = [data.root / "images" / name for name in data.phase("test").image]
    else:
        files = sorted(paths.suite.rglob("*.jpg"))
    return [sha256(file.read_bytes()).hexdigest() for file in files]


def times(train, measured):
    "When each file was written: of training, and of what is measured."
    kinds = (".tar", ".jpg", ".parquet", ".arrow", ".safetensors")
    folders = [train, *(paths.suite for _, paths in measured)]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in kinds]
    return {file: file.stat().st_mtime_ns for file in files}


def measured(recipe, out):
    "(source, paths) of all that the probes of a recipe measure."
    _, *tested = prepare_data(recipe, out, progress=False, workers=1)
    return list(zip(recipe.sources[1:], tested, strict=True))


@pytest.mark.parametrize("paper, section", RECIPES)
def test_seeds_share_training_data_and_no_test_item(paper, section, out):
    section_recipes = import_module(f"hypvl.papers.{paper}.recipes").section_recipes
    found = {seed: section_recipes(section, "smoke", seed) for seed in (0, 1)}
    for first, second in zip(found[0], found[1], strict=True):
        assert first.hash != second.hash  # of frozen models, too
        for source, fresh in zip(first.sources[1:], second.sources[1:], strict=True):
            assert config_hash(source) != config_hash(fresh)

    recipe, other = found[0][-1], found[1][-1]
    train = prepare_data(recipe, out, progress=False, workers=1)[0].train
    mine = measured(recipe, out)
    kept = times(train, mine)
    assert kept
    assert prepare_data(other, out, progress=False, workers=1)[0].train == train
    theirs = measured(other, out)
    assert kept.items() <= times(train, mine).items()  # nothing is made twice
    for (source, paths), (fresh, drawn) in zip(mine, theirs, strict=True):
        assert paths.train == drawn.train and paths.suite != drawn.suite
        assert paths.content_hash != drawn.content_hash
        one, two = pictures(source, paths), pictures(fresh, drawn)
        assert len(one) == len(two) > 0 and not {*one} & {*two}
        assert len({*one}) == len(one) and len({*two}) == len(two)


def test_the_first_draw_is_what_it_was():
    "Texts of scenes as committed rows have measured them; pixels depend on the JPEG encoder."
    world = World()
    captions = {
        split: caption(world, world.scene(split, 7)).text for split in ("val", "seen", "unseen")
    }
    assert captions == {
        "val": "a small snare drum is above a boot",
        "seen": "a fruit",
        "unseen": "a photo of a broken thing and a broken red crib bed",
    }
    assert hard_negative(world, "swap_att", 3).false.text == "an orange food and a broken red plant"
    assert checklist_pair(world, "attribute_color", 3).false.text == "a yellow lemon"
    assert World().with_draw(0).scene("unseen", 7) == world.scene("unseen", 7)
    fresh = world.with_draw(1)
    assert [caption(fresh, fresh.scene(split, 7)).text for split in captions] != [
        *captions.values()
    ]
