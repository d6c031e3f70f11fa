"""papers_repro/WHERE.md: where each equation, table and figure of each paper is defined or drawn.

A cell that defines, explains or draws an item of a paper carries a tag such as `agr/equation/14`,
`phyclip/table/2` or `phyclip/statement/Theorem-1`. The page is made from these tags and from the
list of items in papers_repro/reference/contents.csv. `make where` writes it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from hypvl.config import write_atomic
from hypvl.papers.study import find_paper

Item = tuple[str, str, str]  # paper, kind, number


_TAG = re.compile(r"(\w+)/(equation|table|figure|statement)/(.+)")


@dataclass(frozen=True)
class Place:
    "A cell: its notebook and the heading above it."

    notebook: str  # path from the root of the checkout
    heading: str
    exported: bool = False  # the cell is part of a module

    def link(self) -> str:
        "Markdown, from a page in `papers_repro/`."
        stem = Path(self.notebook).stem
        name = stem.replace("_", " ") if self.notebook.startswith("nbs") else f"repro {stem}"
        heading = self.heading.replace("|", "\\|").replace("[", "(").replace("]", ")")
        anchor = quote(self.heading.replace(" ", "-"), safe="")
        return f"[{name} · {heading}](../{self.notebook}#{anchor})"


def _tags(path: Path) -> Iterator[tuple[Item, str, bool]]:
    "Item, heading above it, and whether the cell is exported, of each tag of a notebook."
    heading = path.stem
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        titles = re.findall(r"^#{1,4} (.+)$", text, re.M)
        if cell["cell_type"] == "markdown" and titles:
            heading = titles[0].strip()
        for tag in cell["metadata"].get("tags", []):
            if found := _TAG.fullmatch(tag):
                paper, kind, number = found.groups()
                exported = text.startswith("#| export")
                yield (paper, kind, number.replace("-", " ")), heading, exported


def find_places(
    root: str | Path,  # of the checkout
) -> dict[Item, list[Place]]:
    "Tagged cells of each item, in reading order."
    root, found = Path(root), {}
    notebooks = sorted((root / "nbs").rglob("*.ipynb"))
    for path in [*notebooks, *sorted((root / "papers_repro").glob("*.ipynb"))]:
        name = path.relative_to(root).as_posix()
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        for item, heading, exported in _tags(path):
            found.setdefault(item, []).append(Place(name, heading, exported))
    return found


@dataclass(frozen=True)
class Content:
    "An equation, a statement, a table or a figure of a paper."

    paper: str
    kind: str
    number: str
    what: str
    instead: str  # why it has no cell; empty where it has one

    @property
    def item(self) -> Item:
        "What tags are looked up by."
        return self.paper, self.kind, self.number


def read_contents(
    file: str | Path,  # CSV with the fields of `Content`
) -> tuple[Content, ...]:
    "The contents of the papers, in their order."
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    found = tuple(Content(*row) for row in frame.itertuples(index=False, name=None))
    twice = frame[frame.duplicated(["paper", "kind", "number"])]
    if len(twice):
        raise ValueError(f"file: listed twice: {' '.join(twice.iloc[0, :3])}")
    return found


def check_places(
    places: Mapping[Item, Sequence[Place]],
    contents: Sequence[Content],
) -> list[str]:
    "Tags of items that no paper has, and items with neither a cell nor a reason; '' if none."
    listed = {content.item for content in contents}
    wrong = [
        f"{places[item][0].notebook}: the paper has no {' '.join(item)}"
        for item in set(places) - listed
    ]
    for content in contents:
        if content.item not in places and not content.instead:
            wrong.append(f"neither a cell nor a reason: {' '.join(content.item)}")
    return sorted(wrong)


def _links(item: Item, places: Mapping[Item, Sequence[Place]]) -> str:
    "Links to the cells of an item: what draws or exports it first, one per notebook."
    first: dict[str, Place] = {}
    for place in places.get(item, ()):
        kept = first.get(place.notebook)
        if kept is None or (place.exported and not kept.exported):
            first[place.notebook] = place
    drawn = item[1] in ("table", "figure")

    def order(place: Place) -> tuple:
        renders = place.notebook.startswith("papers_repro/")
        return (renders != drawn, not place.exported, place.notebook)

    return "; ".join(place.link() for place in sorted(first.values(), key=order))


def where_page(
    root: str | Path,  # of the checkout
) -> str:  # Markdown
    "Where each equation, table and figure of each paper is defined or drawn."
    root = Path(root)
    places = find_places(root)
    contents = read_contents(root / "papers_repro" / "reference" / "contents.csv")
    lines = ["# Where each equation, table and figure is", ""]
    lines += ["Made from the tags of the notebooks' cells by `make where`. Claims of each paper:"]
    lines += ["[claims](claims). Committed results: [results](results/README.md)."]
    for name in dict.fromkeys(content.paper for content in contents):
        lines += ["", f'<a id="{name}"></a>', "", f"## {find_paper(name).title}", ""]
        lines += [f"Reproduction: [{name}.ipynb]({name}.ipynb)", ""]
        lines += ["| in the paper | what | here |", "|---|---|---|"]
        for content in (one for one in contents if one.paper == name):
            number = content.number
            if content.kind != "statement":
                number = f"{content.kind.capitalize()} {number}"
            place = content.instead or _links(content.item, places)
            cells = [cell.replace("|", "\\|") for cell in (number, content.what)]
            lines.append(f"| {cells[0]} | {cells[1]} | {place} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[1]
    write_atomic(checkout / "papers_repro" / "WHERE.md", where_page(checkout))
