"""The site's pages: none is forgotten, links lead to them, comments of signatures are read."""

import json
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import yaml

import hypvl
from hypvl.arguments import paper_packages

sys.path.append(str(Path(__file__).resolve().parents[2] / "website"))
import pages
import where


def places(entries):
    "Pages that a navigation names, in its order."
    for entry in entries:
        (place,) = entry.values()
        if isinstance(place, str):
            yield place
        else:
            yield from places(place)


def test_navigation_names_every_notebook_module_and_study(root):
    sources = [path for path in pages.repository_files(root) if path.endswith((".ipynb", ".md"))]
    markdown = {pages.page_of(path): "# title" for path in sources + pages.modules(root)}
    named = list(places(pages.navigation(markdown, root)))
    assert len(named) == len(set(named)) and set(named) <= set(markdown)
    notebooks = [pages.page_of(path) for path in sources if path.endswith(".ipynb")]
    assert {"README.md", *notebooks, *map(pages.page_of, pages.modules(root))} <= set(named)


def test_api_is_in_reading_order_and_its_first_page_has_the_public_names(root):
    markdown = {pages.page_of(path): "# title" for path in pages.modules(root)}
    markdown |= {page: "# title" for _, found in pages.sidebar(root) for page in found}
    (api,) = [part["API"] for part in pages.navigation(markdown, root) if "API" in part]
    packages = [name for entry in api for name, below in entry.items() if isinstance(below, list)]
    assert packages[:4] == ["geometry", "losses", "models", "features"]
    shown = re.findall(
        r"^- \[`hypvl\.(\w+)`\]\(\S+\.py\): \w", pages.module_page("hypvl/__init__.py", root), re.M
    )
    assert sorted(shown) == sorted(hypvl.NAMES)


@pytest.mark.parametrize(
    "page, link, leads_to",
    [
        ("nbs/index.md", "geometry/100_a.ipynb#Time%2C-and", "geometry/100_a.md#Time%2C-and"),
        ("README.md", "results", "results/README.md"),
        ("results/README.md", "mini/", "mini/index.md"),
        ("README.md", "Makefile", "https://host/Makefile"),
        ("README.md", "gone.ipynb", "gone.ipynb"),
        ("README.md", "https://elsewhere/a.ipynb", "https://elsewhere/a.ipynb"),
        ("nbs/geometry/100_a.md", "results/README.md#x", "../../results/README.md#x"),
    ],
)
def test_links_lead_to_pages(tmp_path, page, link, leads_to):
    known = {"README.md", "nbs/geometry/100_a.md", "results/README.md", "results/mini/index.md"}
    (tmp_path / "Makefile").touch()
    output = pages.with_links_to_pages(f"[x]({link})", page, known, "https://host", tmp_path)
    assert output == f"[x]({leads_to.replace('%2C', ',')})"


def test_the_configuration_of_the_site_can_be_read(root):
    config = yaml.safe_load((root / "website" / "mkdocs.yml").read_text())
    assert config["site_name"] == "hypvl" and config["docs_dir"] == "assets"


def prose(path):
    "Text of a page, or of the Markdown cells of a notebook."
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def test_links_between_notebooks_lead_somewhere(root):
    written = (*pages.ALONE, "papers_repro/WHERE.md", "benchmarks/RESULTS.md")
    for place in pages.repository_files(root):
        if place.endswith(".ipynb") or place in written:
            ending = "" if place in written else r"\.ipynb"
            for link in re.findall(rf"\]\((?!\w+:)([^)#\s]+{ending})", prose(root / place)):
                assert ((root / place).parent / unquote(link)).exists(), f"{place}: {link}"


@cache
def anchors(path):
    "Names of the headings of a Markdown file or notebook, as links use them."
    text = prose(path)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    name = pages.jupyter_anchor if path.suffix == ".ipynb" else pages.github_anchor
    named = {name(pages.plain_heading(heading)) for heading in headings}
    return named | {*re.findall(r'<a id="([^"]+)">', text)}


def test_links_to_headings_find_them(root):
    found = [path for path in pages.repository_files(root) if path.endswith(".md")]
    seen = 0
    for page in found:
        for path, anchor in re.findall(
            r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", (root / page).read_text("utf-8")
        ):
            target = (root / page).parent / unquote(path) if path else root / page
            if target.suffix in (".md", ".ipynb"):
                assert unquote(anchor) in anchors(target), f"{page}: {path}#{anchor}"
                seen += 1
    assert seen > 100


def test_an_executed_notebook_has_the_links_of_its_original(tmp_path):
    known = {"papers_repro/a.md", "papers_repro/results/world/a/a.md", "nbs/b.md"}
    page = "papers_repro/results/world/a/a.md"
    for link in ("../nbs/b.ipynb", "../../../../nbs/b.ipynb"):
        output = pages.with_links_to_pages(f"[x]({link})", page, known, "", tmp_path)
        assert output == "[x](../../../../nbs/b.md)"


def test_a_notebook_is_shown_without_what_nbdev_hides(tmp_path):
    cells = [
        nbformat.v4.new_markdown_cell("# Title\n> About"),
        nbformat.v4.new_code_cell("#| default_exp a"),
        nbformat.v4.new_code_cell("#| export\nshown = 1"),
        nbformat.v4.new_code_cell("#| hide\nhidden = 2"),
        nbformat.v4.new_code_cell("print('<b>')"),
    ]
    cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="\x1b[1m<b>\x1b[0m")]
    (tmp_path / "hypvl").mkdir()
    (tmp_path / "hypvl" / "a.py").touch()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    page, pictures = pages.notebook_page("a.ipynb", pages.notebook_exporter(), tmp_path)
    links = "[API of `hypvl.a`](hypvl/a.py) · [Notebook](https://github.com/hypvl/hypvl/blob/main/a"
    assert page.startswith(f"# Title\n> About\n\n{links}.ipynb)\n")
    assert "shown = 1" in page and "{ .text }\n<b>\n" in page and not pictures
    assert "hidden" not in page and "#|" not in page


def test_displayed_formulas_become_paragraphs():
    output = pages.displays_apart("It is,\n$$x = \\$1,\ny$$\nwhere `$$a$$` stands.\n\n$$z$$")
    assert output == "It is,\n\n$$x = \\$1,\ny$$\n\nwhere `$$a$$` stands.\n\n$$z$$\n\n"
    assert pages.displays_apart("$a$ and $b$") == "$a$ and $b$"


FUNCTION = """def far(
    x: list[int],  # points, # 1 too
    *,
    c: float = 1.0,  # curvature, > 0
    name=None,
) -> float:  # in radians
    "How far."
    if c <= 0:  # never
        raise ValueError(f"c must be positive, got {c!r}")
    raise KeyError("x")
"""


def test_comments_of_a_signature_and_errors_are_read():
    pytest.importorskip("griffe", reason="comes with the extra site")
    from comments import described

    parameters, returned, errors = described(FUNCTION)
    assert parameters == {"x": "points, # 1 too", "c": "curvature, > 0", "name": ""}
    assert described('def near(self, x, y=0):\n    "How near."\n')[0] == {}
    assert returned == "in radians"
    assert errors == [("ValueError", "c must be positive, got {c}"), ("KeyError", "x")]


def test_stars_of_shapes_are_no_emphasis():
    pytest.importorskip("griffe", reason="comes with the extra site")
    from comments import shapes_kept

    output = shapes_kept("`x` [*B, N] and `y[*B]`, *other* **Bold** words")
    assert output == r"`x` [\*B, N] and `y[*B]`, *other* **Bold** words"


def test_dead_links_are_found_in_outputs_too():
    pytest.importorskip("latex2mathml", reason="comes with the extra site")
    from hooks import dead_links

    links = (
        '<a class="x" href="../a.html#b"></a><img src="no.png"><a href="#c"></a><a href="d%20e">'
    )
    known = {"a.html", "nbs/d e"}
    assert dead_links(links + '<a href="https://a">', "nbs/p.html", known) == ["no.png"]


def test_formulas_that_nobody_drew_are_found():
    pytest.importorskip("latex2mathml", reason="comes with the extra site")
    from hooks import undrawn_formulas, with_formulas

    drawn = with_formulas('<p>a <span class="arithmatex">\\(x^2\\)</span></p><code>$a$</code>')
    assert "<math" in drawn and undrawn_formulas(drawn) == []
    assert undrawn_formulas("<p>so\n$<b>x</b>$\nand</p>") == ["$x$"]
    unknown = with_formulas('<span class="arithmatex">\\(\\nocommand x\\)</span>')
    assert undrawn_formulas(unknown) == ["\\nocommand"]


def test_wide_pictures_and_long_cells_are_marked():
    pytest.importorskip("latex2mathml", reason="comes with the extra site")
    from hooks import wide_pictures_marked

    def header(width: int) -> bytes:
        return b"\x89PNG\r\n\x1a\n" + bytes(8) + width.to_bytes(4, "big")

    drawn = {"nbs/a_files/wide.png": header(1290), "nbs/a_files/small.png": header(384)}
    page = '<p><img alt="x" src="a_files/wide.png" /><img src="a_files/small.png" /></p>'
    marked = wide_pictures_marked(page, "nbs/a.html", drawn)
    assert marked == page.replace("<img alt", '<img class="wide" alt')

    sentence = "one claim, as it is written in the paper"
    output = pages.plain_html(f'<td>short</td><td class="data">{sentence}</td><td>{sentence}</td>')
    assert output == (
        f'<td>short</td><td class="long data">{sentence}</td><td class="long">{sentence}</td>'
    )


def test_where_is_current(root):
    "`make where` writes it, and `make export` with the rest."
    page = where.where_page(root)
    assert (root / "papers_repro" / "WHERE.md").read_text() == page
    contents = where.read_contents(root / "papers_repro" / "reference" / "contents.csv")
    assert {content.paper for content in contents} <= {*paper_packages()}
    assert page.count("](../") > len(contents)


def test_every_item_of_the_papers_has_a_cell_or_a_reason(root):
    contents = where.read_contents(root / "papers_repro" / "reference" / "contents.csv")
    assert where.check_places(where.find_places(root), contents) == []


def test_tagged_cells_are_found_and_compared_with_the_papers(tmp_path):
    tags = ["alpha/equation/3", "alpha/statement/Theorem-1", "parameters"]
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Lorentz"},
        {"cell_type": "markdown", "metadata": {"tags": tags[:1]}, "source": "## The map"},
        {"cell_type": "code", "metadata": {"tags": tags}, "source": "#| export\ndef f(): ..."},
    ]
    (tmp_path / "nbs").mkdir()
    (tmp_path / "nbs" / "100_lorentz.ipynb").write_text(json.dumps({"cells": cells}))
    found = where.find_places(tmp_path)
    assert set(found) == {("alpha", "equation", "3"), ("alpha", "statement", "Theorem 1")}
    of_equation = found["alpha", "equation", "3"]
    assert [place.exported for place in of_equation] == [False, True]
    link = "[100 lorentz · The map](../nbs/100_lorentz.ipynb#The-map)"
    assert of_equation[0].link() == link
    third = where.Content("alpha", "equation", "3", "the map", "")
    fourth = where.Content("alpha", "equation", "4", "the loss", "")
    wanted = ["nbs/100_lorentz.ipynb: the paper has no alpha statement Theorem 1"]
    assert where.check_places(found, [third]) == wanted
    wanted.append("neither a cell nor a reason: alpha equation 4")
    assert where.check_places(found, [third, fourth]) == wanted


def test_contents_list_an_item_once(tmp_path):
    (tmp_path / "twice.csv").write_text(
        "paper,kind,number,what,instead\na,table,1,x,\na,table,1,y,\n"
    )
    with pytest.raises(ValueError, match="listed twice: a table 1"):
        where.read_contents(tmp_path / "twice.csv")
