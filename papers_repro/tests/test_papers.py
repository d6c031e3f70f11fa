"""A paper is one folder, and what all papers share knows none of them."""

import json
import re
from pathlib import Path

import pytest
from conftest import plan

from hypvl.papers.study import find_paper

SHARED = ("runs", "tables", "claims", "report", "parameters", "reference", "parallel_runs")
ALL = sorted(path.stem for path in Path(__file__).parents[1].glob("*.ipynb"))
PAPERS = [name for name in ALL if name != "curvature"]  # a study without a `Paper`
NAMES = re.compile("phyclip|syntax|PHyCLIP|meru", re.IGNORECASE)


def exported(notebook):
    "Code cells that become the module."
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("#| export"):
            yield source


def test_shared_modules_hold_no_papers_name(root):
    for name in (*SHARED, "study", "recipes", "figures", "provenance"):
        (notebook,) = (root / "nbs" / "papers").glob(f"8??_{name}.ipynb")
        for source in exported(notebook):
            named = [line for line in source.splitlines() if NAMES.search(line)]
            assert not named, f"{notebook.name}: {named[0].strip()}"


def test_each_paper_is_a_folder_of_recipes_tables_and_figures(root):
    folders = [p for p in (root / "hypvl" / "papers").iterdir() if (p / "__init__.py").is_file()]
    assert {"phyclip", "syntax"} <= {folder.name for folder in folders}
    for folder in folders:
        modules = {path.stem for path in folder.glob("*.py")}
        wanted = {"recipes", "tables", "figures", "paper"}
        if not find_paper(folder.name).reference.tables:  # a study of our own
            wanted = {"recipes", "paper"}
        assert wanted <= modules, folder.name


def test_there_are_six_reproduction_notebooks():
    assert {"phyclip", "syntax", "visual_hierarchies", "h2em", "agr", "ideas"} == {*PAPERS}


@pytest.mark.parametrize("name", PAPERS)
def test_reproduction_notebook_defines_nothing(root, name):
    notebook = json.loads((root / "papers_repro" / f"{name}.ipynb").read_text())
    sources = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert not [s for s in sources if re.search(r"^(def|class) |lambda", s, re.M)]
    assert sum(len(source.splitlines()) for source in sources) < 60


def test_every_paper_trains_other_budgets():
    for name in PAPERS:
        trained_longer = "longer" if name == "ideas" else "budget"  # which has one budget
        assert trained_longer in find_paper(name).sections, name


@pytest.mark.parametrize("name", PAPERS)
def test_no_two_columns_of_a_table_share_a_heading(name):
    "One would be written over the other."
    for number, layout in find_paper(name).tables.items():
        headings = {(column.group, column.label) for column in layout.columns}
        assert len(headings) == len({*layout.columns}), number


@pytest.mark.parametrize("name", PAPERS)
def test_every_figure_and_table_has_a_caption(name):
    paper = find_paper(name)
    for kind, parts in (("figure", paper.figures), ("table", paper.tables)):
        for number, part in parts.items():
            assert len(part.caption.split()) >= 4, f"{name}: {kind} {number}"


_VERB = "names|reaches|scores|gains|loses|leads|falls|rises|is|are|was|were|by|to"
OUTCOME = re.compile(  # a share that defines something ("at least 80 % within it") is none
    rf"\b(?:{_VERB})\s+(?:about\s+|only\s+)?[+−-]?\d[\d.]*\s*(?:%|points)"
    r"|[+−-]\d[\d.]*\s*(?:%|points)|\[[+−-]?\d[\d.]*, [+−-]?\d[\d.]*\]"
    r"|R@5 of .* is|does not support|inconclusive"
)


@pytest.mark.parametrize("name", ALL)
def test_no_outcome_is_typed_into_a_reproduction_notebook(root, name):
    notebook = json.loads((root / "papers_repro" / f"{name}.ipynb").read_text())
    for cell in notebook["cells"]:
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        assert not OUTCOME.search(text), text[:80]


@pytest.mark.parametrize(
    "text",
    [
        "PHyCLIP names 43 % of the species",
        "it leads by 3.5 points",
        "an effect of −4.3 points",
        "gains 2 [−1.0, 3.5]",
        "R@5 of MERU is higher",
    ],
)
def test_an_outcome_is_noticed(text):
    assert OUTCOME.search(text) and not OUTCOME.search("a part of which 80 % lies within it")


@pytest.mark.parametrize(
    "name, wrong, message",
    [
        ("phyclip", {"sedes": 1}, "unknown parameter 'sedes'"),
        ("phyclip", {"preset": "tiny"}, "preset='tiny' is none of"),
        ("phyclip", {"data_root": "no/such/folder"}, "data_root: 'no/such/folder' is no folder"),
        ("phyclip", {"data_root": "."}, "no prepared shards"),
        ("phyclip", {"backbone": "clip_world"}, "backbone: 'clip_world' has no place in PHyCLIP"),
        ("h2em", {"backbone": "clip_state"}, "no folder 'clip_state'"),
        ("agr", {"backbone": "open_clip:ViT-B-16"}, "open_clip:NAME:PRETRAINED or the folder of"),
        ("agr", {"backbone": "clip_wrld"}, "no folder 'clip_wrld'"),
        ("syntax", {"sections": "ablation"}, "sections='ablation' is none of all, main, budget"),
        ("agr", {"sections": "boxes"}, "sections='boxes' is none of all, main, study"),
        ("h2em", {"sections": "factorials"}, "sections='factorials' is none of all, main"),
        ("visual_hierarchies", {"sections": "moko"}, "sections='moko' is none of all, main, budg"),
    ],
)
def test_a_wrong_parameter_is_an_error_before_anything_is_trained(
    root, tmp_path, monkeypatch, name, wrong, message
):
    monkeypatch.chdir(root)
    with pytest.raises((ValueError, KeyError, OSError), match=re.escape(message)):
        plan(name, **{"preset": "smoke", "out": str(tmp_path), **wrong}).run()
    assert not list(tmp_path.glob("runs/*/metrics.csv"))
