"""Every block of README and of the page *Coming from another library* as it is printed.

A block without a comment is run, in the shell that README describes. A comment above a block says
what it needs, `<!-- minutes: ... -->` or `<!-- data: ... -->`; such a block is read by whatever
would read it: make, the command's parser, the notebook's parameters, the signature of a function.
One with `<!-- full: ... -->` is read likewise, and run where pytest has `--full`.
"""

import ast
import builtins
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from nbdev.test import nbdev_test
from PIL import Image

from hypvl.cli import main, make_parser
from hypvl.data.benchmarks.registry import BENCHMARKS
from hypvl.data.benchmarks.webdatasets import write_wds
from hypvl.models import create_model, export_official
from hypvl.models.published import find_published, published_place
from hypvl.papers.parameters import read_parameters
from hypvl.papers.study import find_paper

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
COMING_FROM = ROOT / "nbs" / "compat" / "361_coming_from.ipynb"
BLOCK = re.compile(r"(?:^<!-- (\w+): [^\n]*-->\n)?^```(\w*)\n(.*?)^```$", re.S | re.M)
NEEDS = ("", "full", "minutes", "data")


@dataclass(frozen=True)
class Block:
    "Code of a page, and what it needs beyond seconds and the checkout."

    needs: str
    language: str
    code: str

    @property
    def lines(self):
        "Commands, without remarks."
        found = [line.split(" #")[0].strip() for line in self.code.splitlines()]
        return [line for line in found if line]


def notebook_text(path):
    "The cells of a notebook as one text, code between fences."
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts)


def blocks(text):
    return [Block(*match.groups(default="")) for match in BLOCK.finditer(text)]


COMING_FROM_TEXT = notebook_text(COMING_FROM)
TEXTS = (README.read_text(), COMING_FROM_TEXT)
ALL = [block for text in TEXTS for block in blocks(text)]
INLINE = [command for text in TEXTS for command in re.findall(r"`(hypvl [^`…]+)`", text)]
ALL += [Block("data", "sh", command) for command in INLINE]
RUN = [block for block in ALL if not block.needs]
RUN += [pytest.param(b, marks=pytest.mark.full) for b in ALL if b.needs == "full"]
READ = [block for block in ALL if block.needs]


def first_line(block):
    return block.lines[0][:40]


def test_the_commands_are_run_too_where_there_is_time():
    timed = [block.lines for block in ALL if block.needs == "full"]
    assert any("hypvl train" in line for lines in timed for line in lines)


@pytest.fixture
def shell(root, tmp_path):
    "Runs a program in a fresh folder that holds the checkout, its environment active."
    for entry in subprocess.check_output(["git", "ls-files"], cwd=root, text=True).splitlines():
        place = tmp_path / Path(entry).parts[0]
        if not place.exists():
            place.symlink_to(root / Path(entry).parts[0])
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    activate.write_text(f"PATH={shlex.quote(path)}\n")
    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}

    def run(program, *arguments):
        command = [program, *arguments]
        where = {"cwd": tmp_path, "env": env, "timeout": 900}
        return subprocess.run(command, capture_output=True, text=True, **where)

    return run


def test_every_block_has_a_language_and_a_need_that_is_known():
    printed = sum(text.count("\n```") for text in TEXTS) // 2
    assert printed == len([block for block in ALL if block.code.endswith("\n")])
    assert {block.language for block in ALL} <= {"sh", "python"}
    assert {block.needs for block in ALL} <= set(NEEDS)
    assert len(RUN) >= 2 and len(READ) >= 5


@pytest.mark.parametrize("block", RUN, ids=first_line)
def test_runs_as_printed(block, shell):
    if block.language == "python":
        done = shell(sys.executable, "-c", block.code)
        assert done.returncode == 0, done.stderr[-3000:]
        for message in re.findall(r"# prints (.+)", block.code):
            assert message in done.stdout
        return
    before = "" if "activate" in block.code else "source .venv/bin/activate\n"
    done = shell("bash", "-e", "-o", "pipefail", "-c", before + block.code)
    assert done.returncode == 0, done.stderr[-3000:]


def as_small(row):
    "A row of published checkpoints for a file of the family's small model."
    return replace(row, architecture=f"{row.family}_tiny_vit")


@pytest.fixture
def published(tmp_path, monkeypatch):
    "A folder with small files of the layouts that the blocks name."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    architectures = "hypvl.models.registry.find_published"
    monkeypatch.setattr(architectures, lambda *of: as_small(find_published(*of)))
    names = [("meru_vit_b", "redcaps", "meru"), ("hycoclip_vit_s", "grit", "hycoclip")]
    for name, tag, family in names:
        place = published_place(find_published(name, tag))
        place.parent.mkdir(parents=True)
        export_official(create_model(f"{family}_tiny_vit", seed=0), place)
    Path("checkpoints").mkdir()
    export_official(create_model("meru_tiny_vit", seed=0), "checkpoints/meru_vit_l.pth")
    pictures = []
    for i, colour in enumerate(("red", "green", "blue")):
        pictures.append(tmp_path / f"{i}.jpg")
        Image.new("RGB", (50, 40), colour).save(pictures[-1])
    shutil.copy(pictures[0], "image.jpg")
    lists = dict(classes=["cat", "dog", "sea"], templates=["a photo of a {}."])
    write_wds(Path("wds_cifar100"), pictures, range(3), **lists)
    texts = [["a cat", "a red cat"], ["a dog"], ["the sea"]]
    write_wds(Path("wds_flickr30k"), pictures, texts, "retrieval")
    Path("models.txt").write_text("meru_vit_b/redcaps\ncheckpoints/meru_vit_l.pth\n")
    Path("sets.txt").write_text("wds_cifar100\nwds_flickr30k\n")
    names = BENCHMARKS["Country211"].classes
    countries = [Path("datasets/country211/test", name) for name in names]
    for folder in countries:
        folder.mkdir(parents=True)
    for folder, picture in zip(countries, pictures):
        shutil.copy(picture, folder)
    Path("shards").mkdir()
    with tarfile.open("shards/00000.tar", "w") as tar:
        for i, picture in enumerate(pictures):
            Path(f"{i}.txt").write_text(texts[i][0])
            tar.add(picture, f"{i:09}.jpg")
            tar.add(f"{i}.txt", f"{i:09}.txt")


@pytest.mark.parametrize(
    "block", [block for block in blocks(COMING_FROM_TEXT) if block.needs], ids=first_line
)
def test_users_of_other_tools_find_their_command(block, published, capsys):
    names = {}
    if block.language == "python":
        exec(block.code, names)
        if "loader" in names:
            assert next(iter(names["loader"]))["image"].shape == (2, 3, 48, 48)
        else:
            assert names["points"].shape == (1, 64) and names["first"].shape == (1,)
        return
    for line in block.lines:
        arguments = [*shlex.split(line)[1:], "--workers", "0", "--device", "cpu", "--quiet"]
        only_a_part = "--data_root" in arguments
        assert main(arguments) == (3 if only_a_part else 0), capsys.readouterr().err
        out = Path(arguments[arguments.index("--out") + 1])
        rows = pd.read_csv(out / "results.csv")
        assert rows["value"].notna().any() and str(out) in capsys.readouterr().out


def test_the_tools_are_named_by_their_own_commands():
    known = ("import open_clip", "clip_benchmark eval", "python scripts/evaluate.py")
    known += ("SentenceTransformer(", "hyper_models.load(", "img2dataset", "index.search(")
    assert not [line for line in known if line not in COMING_FROM_TEXT]


def test_sizes_and_recalls_of_shipped_models_are_those_of_their_files():
    rows = [line.split("|") for line in README.read_text().splitlines() if '_world"' in line]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) > 6]
    assert len(rows) == 2
    for row in rows:
        name = re.search(r'"(\w+)"', row[1]).group(1)
        facts = json.loads((ROOT / "hypvl" / "resources" / f"{name}.json").read_text())
        recall, megabytes = facts["validation"]["t2i_R@5"], facts["bytes"] / 1e6
        assert row[4:6] == [f"{recall:.1f} %", f"{megabytes:.1f} MB"]


@pytest.mark.parametrize("block", READ, ids=first_line)
def test_is_read_by_what_would_read_it(block, root):
    if block.language == "python":
        calls_fit(block.code)
    else:
        for line in block.lines:
            read_command(line, root)


def read_command(line, root):
    "Lets the program of a command say whether it understands it."
    words = shlex.split(line)
    while "=" in words[0]:
        words = words[1:]
    program, arguments = words[0], words[1:]
    if program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert targets and all(f"\n{target}:" in make_rules(root) for target in targets)
        variables = [word.split("=")[0] for word in arguments if "=" in word]
        assert all(f"\n{name} = " in make_rules(root) for name in variables)
    elif program == "hypvl":
        make_parser().parse_args(arguments)
    elif program == "papermill":
        read_papermill(arguments, root)
    elif program == "nbdev_test":
        options = [word[2:] for word in arguments if word.startswith("--")]
        assert set(options) <= set(inspect.signature(nbdev_test).parameters)
        flags = re.search(r"^tst_flags = (.*)$", (root / "settings.ini").read_text(), re.M)
        assert arguments[arguments.index("--flags") + 1] in flags.group(1).split()
    elif program == "python" and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1])
        options = [word for word in arguments[3:] if word.startswith("--")]
        known = (root / "papers_repro" / "tests" / "conftest.py").read_text()
        assert (root / arguments[2]).exists() and all(f'"{o}"' in known for o in options)
    elif program == "python":
        assert (root / arguments[0]).is_file(), line
    else:
        pytest.fail(f"nothing is known that reads {line!r}")


@cache
def make_rules(root):
    "What make knows, by its own account; no recipe is run (`--dry-run` runs those with $(MAKE))."
    command = ["make", "--print-data-base", "--question", "no-such-target"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout


def read_papermill(arguments, root):
    "The parameters of a notebook, by the code that the notebook reads them with."
    notebook = root / arguments[0]
    assert notebook.is_file() and arguments[1].endswith(".ipynb")
    places = [at for at, word in enumerate(arguments) if word == "-p"]
    given = {arguments[at + 1]: arguments[at + 2] for at in places}
    paper = find_paper(notebook.stem)
    read_parameters(given, paper.sections, paper.seeds)
    cells = json.loads(notebook.read_text())["cells"]
    (tagged,) = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    assert all(f"{name} =" in "".join(tagged["source"]) for name in given)


def calls_fit(code):
    "Imported names exist, and what is called by its name takes these arguments."
    names = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            names |= {alias.name: getattr(module, alias.name) for alias in node.names}
    assert names
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {word.arg: word.value for word in node.keywords}
            called = names.get(node.func.id) or getattr(builtins, node.func.id)
            inspect.signature(called).bind(*node.args, **named)


@pytest.mark.parametrize(
    "line",
    [
        "hypvl evaluate --chekpoint x",
        "make nothing",
        "papermill papers_repro/phyclip.ipynb out.ipynb -p presett mini",
        "papermill papers_repro/phyclip.ipynb out.ipynb -p preset tiny",
        "nbdev_test --flags fast",
        "python -m pytest papers_repro/tests --complete",
        "python benchmarks/nothing.py",
        "rm -rf runs",
    ],
)
def test_a_wrong_command_is_noticed(line, root):
    with pytest.raises((AssertionError, SystemExit, ValueError, KeyError, pytest.fail.Exception)):
        read_command(line, root)
