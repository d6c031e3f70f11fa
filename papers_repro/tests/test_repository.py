"""Rules of the repository that a reader relies on, measured on the tree."""

import ast
import base64
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import yaml

from hypvl import __version__ as VERSION
from hypvl.extras import EXTRAS
from hypvl.models.shipped import SHIPPED
from hypvl.papers.runs import paper_packages


def notebooks(root):
    "Notebooks that belong to the repository: none of checkpoints, results or hidden folders."
    found = []
    for folder in ("nbs", "papers_repro"):
        for path in sorted((root / folder).rglob("*.ipynb")):
            parts = path.relative_to(root).parts
            hidden = any(part.startswith((".", "_")) for part in parts)
            if not hidden and "results" not in parts:
                found.append(path)
    return found


def code_cells(notebook):
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_results_name_no_place_of_a_machine(root):
    places = re.compile(r"""["'` ](/(?:work|home|root|tmp|mnt|data|Users)/[\w./-]+)""")
    for path in sorted((root / "papers_repro" / "results").rglob("*")):
        if path.suffix in (".ipynb", ".md", ".json", ".csv", ".html"):
            found = places.search(path.read_text().replace('\\"', '"'))
            assert not found, f"{path}: {found[1]}"


def test_notebooks_are_short(root):
    for path in notebooks(root):
        notebook = json.loads(path.read_text())
        assert len(notebook["cells"]) <= 60, path
        assert path.stat().st_size <= 300_000, path
        assert notebook["metadata"]["kernelspec"]["name"] == "python3", path


def test_every_module_has_one_notebook(root):
    names = Counter()
    for path in notebooks(root):
        code = "\n".join(code_cells(json.loads(path.read_text())))
        names.update(re.findall(r"#\| ?default_exp (\S+)", code))
    assert max(names.values()) == 1, names
    modules = set()
    for path in (root / "hypvl").rglob("*.py"):
        modules.add(".".join(path.relative_to(root / "hypvl").with_suffix("").parts))
    handmade = {name for name in modules if name.split(".")[-1] in ("__init__", "_modidx")}
    assert modules - handmade == set(names) - handmade


def test_sidebar_lists_the_notebooks_in_reading_order(root):
    sidebar = yaml.safe_load((root / "nbs" / "sidebar.yml").read_text())
    first, *sections = sidebar["website"]["sidebar"]["contents"]
    listed = [first]
    for section in sections:
        assert section["contents"] == sorted(section["contents"]), section["section"]
        listed += section["contents"]
    here = [path for path in notebooks(root) if "nbs" in path.relative_to(root).parts]
    assert Counter(listed) == Counter(p.relative_to(root / "nbs").as_posix() for p in here)
    names = [section["section"] for section in sections]
    assert names[:3] == ["geometry", "losses", "models"] and names[-1].startswith("command line")


def test_exporting_notebooks_assert_something(root):
    for path in notebooks(root):
        code = "\n".join(code_cells(json.loads(path.read_text())))
        if re.search(r"^#\| ?export", code, re.M):
            assert re.search(r"\bassert\b|\btest_\w+\(|raises\(|allclose", code), path


def test_no_machine_paths_warnings_or_widgets_in_outputs(root):
    unwanted = re.compile(r"/(home|root|tmp|Users|work)/|TqdmWarning|UserWarning")
    for path in notebooks(root):
        cells = json.loads(path.read_text())["cells"]
        outputs = json.dumps([cell.get("outputs", []) for cell in cells])
        assert not unwanted.search(outputs), path
        assert "jupyter.widget-view" not in outputs, path  # shows nothing without its kernel


def test_reproduction_notebooks_have_parameters(root):
    for path in (root / "papers_repro").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        tags = [tag for cell in cells for tag in cell["metadata"].get("tags", [])]
        assert "parameters" in tags, path


def test_arrows_point_one_way(root):
    "Nothing imports papers; only papers imports evaluation."
    allowed = {
        "paper_parts": set(),
        "config": {"paper_parts"},
        "extras": set(),
        "inputs": {"config"},
        "weights": set(),
        "indices": set(),
        "pictures": {"extras"},
        "geometry": {"config", "extras"},
        "data": {"config", "extras", "paper_parts", "inputs", "weights", "pictures"},
        "losses": {"config", "extras", "inputs", "geometry"},
        "models": {"config", "extras", "inputs", "weights", "pictures", "geometry", "paper_parts"},
        "features": {"config", "extras", "indices", "weights", "pictures", "data", "models"},
        "training": {
            "config",
            "extras",
            "inputs",
            "weights",
            "losses",
            "models",
            "data",
            "geometry",
        },
        "evaluation": {
            "config",
            "extras",
            "paper_parts",
            "inputs",
            "indices",
            "weights",
            "pictures",
            "geometry",
            "data",
            "models",
        },
    }
    for path in (root / "hypvl").rglob("*.py"):
        place = path.relative_to(root / "hypvl").with_suffix("").parts
        if place[0] not in allowed:
            continue
        for name in imported_modules(path, place):
            room = name.split(".")[0]
            assert room in {"", place[0]} | allowed[place[0]], f"{'/'.join(place)} imports {name}"


def imported_modules(path, place):
    "Modules of hypvl that a file imports, relative to the package; '' is the package itself."
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for imported in node.names:
                if "hypvl." in imported.name:
                    yield imported.name.removeprefix("hypvl.")
        elif isinstance(node, ast.ImportFrom) and node.level:
            folder = place[: -node.level]
            yield ".".join([*folder, node.module] if node.module else folder)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hypvl"):
            yield node.module.removeprefix("hypvl").lstrip(".")


def loaded_libraries(body):
    "Libraries outside hypvl that the statements import when the module is loaded."
    for node in body:
        if isinstance(node, ast.With):  # `with extra_named(...)`
            yield from loaded_libraries(node.body)
        elif isinstance(node, ast.Import):
            yield from (imported.name.split(".")[0] for imported in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


def test_the_extra_train_is_enough_to_import_all_but_page_and_sliders(root):
    known = {
        "hypvl",
        "torch",
        "numpy",
        "jaxtyping",
        "cattrs",
        *EXTRAS["models"],
        *EXTRAS["train"],
        *sys.stdlib_module_names,
    }
    known.add("mpmath")  # torch brings it
    more = {"search/explorer_page.py": "explore", "sliders.py": "notebooks"}
    for path in (root / "hypvl").rglob("*.py"):
        place = path.relative_to(root / "hypvl").as_posix()
        found = set(loaded_libraries(ast.parse(path.read_text()).body))
        found -= {*known, *EXTRAS.get(more.get(place, ""), ())}
        assert not found, f"{place} imports {found}, which 'hypvl[train]' does not bring"


def distribution(requirement):
    "Name of a distribution as pip compares it, without its version."
    name = re.split(r"[<=>]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_requirements_are_locked(root):
    ini = configparser.ConfigParser(delimiters=["="])
    ini.read(root / "settings.ini")
    wanted = []
    for key, value in ini["DEFAULT"].items():
        if key.endswith("requirements"):
            wanted += value.split()
    lines = (root / "constraints.txt").read_text().splitlines()
    locked = {distribution(line) for line in lines if "==" in line}
    assert {distribution(requirement) for requirement in wanted} <= locked


def test_the_citation_names_the_version_and_its_date(root):
    ini = configparser.ConfigParser(delimiters=["="])
    ini.read(root / "settings.ini")
    cited = yaml.safe_load((root / "CITATION.cff").read_text())
    preferred = cited["preferred-citation"]
    assert cited["version"] == preferred["version"] == ini["DEFAULT"]["version"]
    assert cited["date-released"].year == preferred["year"] and preferred["title"] == cited["title"]
    newest = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == f"{cited['version']} ({cited['date-released']})"


def test_readme_names_the_locked_version_of_torch(root):
    locked = (root / "constraints.txt").read_text().splitlines()
    command = re.search(
        r"pip install (torch==\S+) (torchvision==\S+)", (root / "README.md").read_text()
    )
    assert command and {*command.groups()} <= {*locked}


def test_readme_opens_with_install_picture_and_example(root):
    "The first screen: what it is, one command, one picture, a short example, what was found."
    opening = (root / "README.md").read_text().split("\n## ")[0]
    assert len(opening.split()) <= 350 and opening.count("![") == 1
    for part in ("```sh\nmake phyclip", "```python\n", "**What was found.**"):
        assert opening.count(part) == 1


CORE = """
import importlib, pkgutil, sys


class NotInstalled:
    "As if the libraries of all extras were not there."

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


import hypvl.extras

missing = {name for libraries in hypvl.extras.EXTRAS.values() for name in libraries}
missing.discard("mpmath")  # torch's compiler needs it
sys.meta_path.insert(0, NotInstalled())
import hypvl.geometry, hypvl.losses

for package in (hypvl.geometry, hypvl.losses):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
import torch

space = hypvl.ProductConfig(k=2, d=3).make()
points = {name: space.lift(torch.randn(4, 6), name) for name in ("image", "text")}
objective = hypvl.FamilyObjective("phyclip", boxes=False).make()
loss, log = objective(points, space, step=0)
loss.backward()
assert loss.isfinite() and not missing & set(sys.modules), missing & set(sys.modules)
for use in (
    lambda: hypvl.create_model,
    lambda: hypvl.Trainer,
    objective.table,
    lambda: importlib.import_module("hypvl.search"),
):
    try:
        use()
    except hypvl.extras.MissingExtra as error:
        print(error)
from hypvl.cli import main

assert main(["list", "recipes"]) == 2 and main(["list", "papers"]) == 0
assert main(["list", "models", "--contains", "clip_states"]) == 0
"""


def test_geometry_and_losses_need_torch_and_little_more(root):
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    output = done.stdout.splitlines()
    assert len(output) == 4 + len(paper_packages()) + 1, output
    assert all("which is not installed: pip install 'hypvl[" in line for line in output[:4]), output
    assert "hypvl list: error: hypvl.papers needs pandas, which is not installed" in done.stderr


MODELS = """
import sys

import hypvl.extras

for extra, names in hypvl.extras.EXTRAS.items():
    if extra != "models":
        sys.modules.update(dict.fromkeys({*names} - {"mpmath", "networkx"}))  # torch brings these
import hypvl

model = hypvl.create_model("clip_world", pretrained=True)
texts = model.encode(["a red car", "a dog"])
model.save_pretrained(sys.argv[1])
assert (hypvl.load_model(sys.argv[1]).encode(["a red car", "a dog"]) == texts).all()
head = hypvl.HyperbolicHead({"image": 6, "text": 4}, hypvl.ProductConfig(k=2, d=3))
import hypvl.models.export, hypvl.models.published
from hypvl.compat import open_clip

assert open_clip.list_models("meru_vit*", pretrained=True)
try:
    hypvl.Trainer
except hypvl.extras.MissingExtra as error:
    print(error)
"""


LIGHT = """
import sys

sys.modules["numba"] = None  # of the extra `fast`
import hypvl

for name in hypvl.NAMES:
    if hypvl.NAMES[name].partition(".")[0] in ("geometry", "losses", "models"):
        getattr(hypvl, name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
HEAVY = {
    "open_clip",
    "timm",
    "torchvision",
    "transformers",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
}


def test_geometries_losses_models_and_heads_import_no_large_library(root):
    "Beside torch; each of these takes half a second to three seconds."
    loaded = subprocess.check_output([sys.executable, "-c", LIGHT], text=True, cwd=root)
    assert not HEAVY & {*loaded.split()}, HEAVY & {*loaded.split()}


def test_the_extra_models_is_enough_for_models_and_heads(root, tmp_path):
    call = [sys.executable, "-c", MODELS, str(tmp_path / "saved")]
    done = subprocess.run(call, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("pip install 'hypvl[train]'"), done.stdout


def test_pip_finds_an_extra_of_what_is_installed(root):
    "The message for a missing extra holds before an index has the name."
    call = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "hypvl[models]"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=root.parent)
    assert "already satisfied: hypvl[models]" in done.stdout, done.stdout + done.stderr


def test_processes_that_write_the_synthetic_dataset_begin_without_torch(root):
    "A pool imports its function's module in each process; torch alone takes seconds."
    code = "import sys, hypvl.data.world.writers as _; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_readme_names_what_exists(root):
    text = (root / "README.md").read_text()
    for target in re.findall(r"`?make ([a-z0-9]+)", text):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.M), target
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (root / path).exists(), path


def test_lab_may_be_started_by_root(root):
    "As in a container; nobody else is given the option."
    command = ["make", "--dry-run", "--old-file=.venv/.installed", "lab"]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert ("--allow-root" in output) == (os.getuid() == 0)
    assert "jupyter lab" in output and "--ip" not in output


PACKED = ("hypvl", "papers_repro/reference", "papers_repro/claims", "papers_repro/audit")
PACKED += ("setup.py", "settings.ini", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")


def test_a_wheel_carries_what_users_need_and_no_more(root, tmp_path):
    listed = subprocess.check_output(["git", "ls-files", *PACKED], cwd=root, text=True)
    for name in listed.splitlines():
        place = tmp_path / "copy" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, place)
    call = [sys.executable, "-m", "pip", "wheel", "./copy", "--no-deps", "--no-index"]
    call += ["--no-build-isolation", "--wheel-dir", "dist"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next((tmp_path / "dist").glob("hypvl-*.whl"))) as wheel:
        carried = {Path(name) for name in wheel.namelist()}
        (facts,) = [wheel.read(str(n)).decode() for n in carried if n.name == "METADATA"]
    resources = Path("hypvl/resources")
    for name in SHIPPED:
        assert {resources / f"{name}.json", resources / f"{name}.safetensors"} <= carried
    for folder in ("reference", "claims", "audit"):
        beside = {path.name for path in (root / "papers_repro" / folder).glob("*.csv")}
        assert beside and {resources / folder / name for name in beside} <= carried
    modules = {Path(n) for n in listed.splitlines() if n.endswith(".py") and n != "setup.py"}
    assert modules - carried == {Path("hypvl/_modidx.py")}  # which only nbdev reads
    assert Path("hypvl/py.typed") in carried
    assert {path.parts[0] for path in carried} == {"hypvl", f"hypvl-{VERSION}.dist-info"}
    beside = {path.name for path in carried if path.parts[0] != "hypvl"}
    assert {"LICENSE", "NOTICE", "WORDNET-LICENSE"} <= beside
    needed = re.findall(r"^Requires-Dist: ([^;\n]+)$", facts, re.M)  # without an extra
    assert {distribution(one) for one in needed} == {"torch", "numpy", "jaxtyping", "cattrs"}
    assert {"models", "train", "fast"} <= set(re.findall(r"^Provides-Extra: (\S+)", facts, re.M))


def test_every_shipped_file_has_its_source_and_licence(root):
    table = (root / "hypvl" / "resources" / "README.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert all(len(row.strip("|").split("|")) == 4 for row in rows)
    listed = " ".join(row.split("|")[1] for row in rows)
    shipped = [path for path in (root / "hypvl" / "resources").iterdir() if path.is_file()]
    assert len(shipped) > 8
    for path in shipped:
        names = (path.name, path.stem) if path.stem in SHIPPED else (path.name,)
        assert path.name == "README.md" or any(f"`{name}`" in listed for name in names), path.name
    for folder in ("reference", "claims", "audit"):
        assert f"`{folder}/*.csv`" in listed
    printed = (root / "papers_repro" / "reference" / "README.md").read_text()
    for path in (root / "papers_repro" / "reference").glob("*.csv"):
        first = path.name.replace(re.search(r"(\d*)\.csv", path.name)[0], "")
        assert path.name in printed or first in printed, path.name


def test_workflows_name_their_actions_by_hash(root):
    files = sorted((root / ".github" / "workflows").glob("*.yml"))
    assert len(files) >= 4
    for path in files:
        content = yaml.safe_load(path.read_text())
        assert content["permissions"] == {"contents": "read"}, path.name
        used = re.findall(r"uses: (\S+)", path.read_text())
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used), path.name
        for run in re.findall(r"run: .*(?:\n {10,}.*)*", path.read_text()):
            assert "${{" not in run, f"{path.name}: pass inputs by environment"


USER = """
import hypvl
import torch
from hypvl.geometry.lorentz import dist, exp0

model = hypvl.create_model("phyclip_tiny")
model.encode(["a dog"])
space = hypvl.ProductConfig(k=8, d=8).make()
points = exp0(torch.randn(2, 3), c=1.0)
print(dist(points, points, c=1.0), space.dim)
dist(points, points)
hypvl.TrainConfig(steps="many")
hypvl.create_modle("phyclip_tiny")
"""


def test_a_type_checker_finds_the_three_mistakes_of_a_user(root, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    config = {"include": ["user.py"], "typeCheckingMode": "basic", "extraPaths": [str(root)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    checker = Path(sys.executable).parent / "basedpyright"
    call = [checker, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = USER.splitlines()
    wrong = [lines[one["range"]["start"]["line"]] for one in found if one["severity"] == "error"]
    assert wrong == lines[-3:], found
    assert (root / "hypvl" / "py.typed").is_file()


def prints(source):
    "Whether a cell calls `print` itself, not in a script or a function."
    try:
        lines = ast.parse(re.sub("^[%!].*", "pass", source, flags=re.M)).body
    except SyntaxError:
        return False
    return any(ast.unparse(line).startswith("print(") for line in lines)


def test_cells_that_print_show_what_they_print(root):
    for path in tracked(root, "nbs"):
        cells = json.loads(path.read_text())["cells"] if path.suffix == ".ipynb" else []
        for place, cell in enumerate(cells):
            source = "".join(cell["source"])
            flagged = re.search(r"^#\|\s*(slow|gpu|data|hide|eval)", source, re.M)
            if cell["cell_type"] == "code" and prints(source) and not flagged:
                assert cell["outputs"], f"run {path.name}: cell {place} prints"


def tracked(root, folder="."):
    "Files of a folder that git tracks."
    listed = subprocess.check_output(["git", "ls-files", "-z", folder], cwd=root, text=True)
    return [root / name for name in listed.split("\0") if name and (root / name).is_file()]


def test_the_tracked_files_take_less_than_50_megabytes(root):
    assert sum(path.stat().st_size for path in tracked(root)) < 50_000_000


def test_results_are_stored_once_and_small(root):
    "Rows above 200 kB as Parquet, tables as CSV and Markdown, each picture in one place."
    seen = {}
    for path in tracked(root, "papers_repro/results"):
        assert path.suffix not in (".html", ".svg"), f"do not commit {path}"
        if path.suffix == ".csv":
            assert path.stat().st_size <= 200_000, f"write {path} as Parquet"
        if path.suffix == ".ipynb":
            cells = json.loads(path.read_text())["cells"]
            data = [out.get("data", {}) for cell in cells for out in cell.get("outputs", [])]
            drawn = [base64.b64decode(one["image/png"]) for one in data if "image/png" in one]
        else:
            drawn = [path.read_bytes()] if path.suffix == ".png" else []
        for picture in drawn:
            assert seen.setdefault(picture, path) == path, f"{path} repeats one of {seen[picture]}"


def test_findings_quote_committed_numbers(root):
    "Each number in a finding of results' README stands in that study's tables."
    text = (root / "papers_repro" / "results" / "README.md").read_text()
    sections = re.findall(r"^## [^\n]*?\]\((\w+/\w+)/.*?\n(.*?)(?=^## )", text, re.S | re.M)
    assert len(sections) == 13
    for study, section in sections:
        tables = root / "papers_repro" / "results" / study / "tables"
        printed = " ".join(page.read_text() for page in tables.glob("*.md"))
        for finding in re.findall(r"^- (.*)$", section, re.M):
            for number in re.findall(r"[+-]?\d+\.\d", finding):
                assert number in printed, (study, number)
