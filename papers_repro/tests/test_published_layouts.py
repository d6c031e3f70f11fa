"""A paper's notebook on a folder of real data in the published layouts, as small as they get.

The files are written by the package's own writers, without the truth that the synthetic dataset
has. What needs that truth says so in its cell; everything else is trained, measured and drawn.
"""

import shutil

import pandas as pd
import pytest
from conftest import papermill

from hypvl.data.sources import WorldSource
from hypvl.data.world.captions import caption
from hypvl.data.world.published import write_data_root
from hypvl.data.world.scenes import World
from hypvl.data.world.states import StatesConfig
from hypvl.data.world.writers import SuiteConfig
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


def parsed_grit(root):
    "Shards of GRIT with the parses of a small spaCy pipeline beside them."
    grit(root)
    world = World()
    gold = [caption(world, world.scene("train", i)).read()[0] for i in range(40)]
    parser = train_parser(gold, root.parent / "parser")
    for folder in (root / "grit", root / "val"):
        parse_shards(folder, str(parser), progress=False)


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


@pytest.mark.full
@pytest.mark.parametrize("paper", LAYOUTS)
def test_a_notebook_runs_through_on_published_layouts(paper, tmp_path):
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    LAYOUTS[paper](root)
    done = papermill(f"{paper}.ipynb", out, 1_200, preset="smoke", data_root=root)
    assert done.returncode == 0, done.stderr[-4000:]
    results = pd.read_csv(out / "results.csv")
    assert results["value"].notna().any() and (out / "tables" / "claims.csv").exists()
