"""House rules that a reader relies on, measured on the tree."""

import ast
import configparser
import json
import re
from collections import Counter


def notebooks(root):
    found = [
        p for folder in ("nbs", "papers_repro") for p in sorted((root / folder).rglob("*.ipynb"))
    ]
    return [
        p
        for p in found
        if not any(part.startswith((".", "_")) for part in p.relative_to(root).parts)
        and "results" not in p.parts
    ]


def code_cells(notebook):
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_notebooks_are_short(root):
    for path in notebooks(root):
        notebook = json.loads(path.read_text())
        assert len(notebook["cells"]) <= 60, path
        assert path.stat().st_size <= 300_000, path
        assert notebook["metadata"]["kernelspec"]["name"] == "python3", path


def test_every_module_has_one_notebook(root):
    names = Counter(
        m[1]
        for p in notebooks(root)
        for m in re.finditer(
            r"#\| ?default_exp (\S+)", "\n".join(code_cells(json.loads(p.read_text())))
        )
    )
    assert max(names.values()) == 1, names
    modules = {
        ".".join(p.relative_to(root / "hypvl").with_suffix("").parts)
        for p in (root / "hypvl").rglob("*.py")
    }
    handmade = {m for m in modules if m.split(".")[-1] in ("__init__", "_modidx")}
    assert modules - handmade == set(names) - handmade


def test_sidebar_lists_the_notebooks_in_reading_order(root):
    listed = re.findall(r"- (\S+\.ipynb)", (root / "nbs" / "sidebar.yml").read_text())
    here = [
        p.relative_to(root / "nbs") for p in notebooks(root) if "nbs" in p.relative_to(root).parts
    ]
    assert listed == [
        "index.ipynb",
        *(p.as_posix() for p in sorted(here, key=lambda p: p.name) if p.name != "index.ipynb"),
    ]


def test_exporting_notebooks_assert_something(root):
    for path in notebooks(root):
        cells = code_cells(json.loads(path.read_text()))
        if any(re.search(r"^#\| ?export", s, re.M) for s in cells):
            assert any(re.search(r"\bassert\b|\btest_\w+\(|raises\(|allclose", s) for s in cells), (
                path
            )


def test_no_machine_paths_or_warnings_in_outputs(root):
    for path in notebooks(root):
        text = json.dumps([c.get("outputs", []) for c in json.loads(path.read_text())["cells"]])
        assert not re.search(r"/(home|root|tmp|Users|work)/|TqdmWarning|UserWarning", text), path


def test_reproduction_notebooks_have_parameters(root):
    for path in (root / "papers_repro").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert [c for c in cells if "parameters" in c["metadata"].get("tags", [])], path


def test_arrows_point_one_way(root):
    "Nothing imports papers; only papers imports evaluation."
    allowed = {
        "config": set(),
        "streams": {"config"},
        "geometry": {"config"},
        "data": {"config", "streams"},
        "losses": {"config", "streams", "geometry"},
        "models": {"config", "streams", "geometry"},
        "training": {"config", "streams", "losses", "models", "data", "geometry"},
        "evaluation": {"config", "streams", "geometry", "data", "models"},
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
            yield from (a.name.removeprefix("hypvl.") for a in node.names if "hypvl." in a.name)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield ".".join([*place[: -node.level], *filter(None, [node.module])])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hypvl"):
            yield node.module.removeprefix("hypvl").lstrip(".")


def test_requirements_are_locked(root):
    ini = configparser.ConfigParser(delimiters=["="])
    ini.read(root / "settings.ini")
    wanted = " ".join(ini["DEFAULT"][k] for k in ("requirements", "dev_requirements")).split()
    normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
    locked = {
        normal(line.split("==")[0])
        for line in (root / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert {normal(re.split(r"[<=>]", w)[0]) for w in wanted} <= locked


def test_readme_names_what_exists(root):
    text = (root / "README.md").read_text()
    for target in re.findall(r"`?make ([a-z]+)", text):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.M), target
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (root / path).exists(), path
