"""The repository as Markdown pages in reading order; `hooks.py` hands them to mkdocs.

Notebooks of `nbs/` in the order of its sidebar and those of `papers_repro/`, Markdown files, a
page of the API for each module. A page lies where its source lies, so that links between them hold.
"""

import ast
import configparser
import re
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename, dirname, join, normpath, relpath
from urllib.parse import unquote

import nbformat
import yaml
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor, Preprocessor

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("nbs", "papers_repro", "benchmarks")
ALONE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SHOWN_AS_THEY_ARE = (".png", ".jpg", ".svg", ".csv", ".json", ".html")
RESULTS = "papers_repro/results"
WIDGET = "application/vnd.jupyter.widget-view+json"  # needs a kernel
SLIDER = re.compile(r"^(?:\w+ = )?show_with_slider\(\s*\w+,\s*\"([^\"]+)\"", re.M)
STILL = "*A still picture. Where the notebook runs, a slider below it moves:* {}."
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
DISPLAY = re.compile(r"(```.*?```|`[^`\n]*`)|\s*(\$\$(?:\\.|[^\\$])+\$\$)\s*", re.S)  # or code


@dataclass(frozen=True)
class Pages:
    "What the site holds, by place below the root."

    markdown: dict[str, str]  # page → its Markdown
    pictures: dict[str, bytes]  # drawn by notebooks
    files: list[str]  # of the repository, as they are


def page_of(path: str) -> str:
    "Place of the page that a source is shown as."
    return re.sub(r"\.(ipynb|py)$", ".md", path)


def repository_files(root: Path = ROOT) -> list[str]:
    "All that is shown or linked to, without hidden folders and tests."
    found = list(ALONE)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            place = path.relative_to(root)
            hidden = any(part.startswith((".", "_")) or part == "tests" for part in place.parts)
            if path.suffix in (".ipynb", ".md", *SHOWN_AS_THEY_ARE) and not hidden:
                found.append(place.as_posix())
    return found


def jupyter_anchor(heading: str, separator: str = "-") -> str:
    "The name of a heading that links to notebooks use."
    return heading.strip().replace(" ", separator)


def github_anchor(heading: str, separator: str = "-") -> str:
    "The name of a heading that links to Markdown files use."
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def displays_apart(text: str) -> str:
    """A displayed formula becomes a paragraph of its own.

    Jupyter displays it between two lines of a paragraph, too; there Markdown would leave its
    dollars as text.
    """
    return DISPLAY.sub(lambda found: found[1] or f"\n\n{found[2]}\n\n", text)


class Directives(Preprocessor):
    "What nbdev hides stays hidden: its directives, helping cells, inputs."

    def preprocess(self, nb, resources):
        shown = []
        for cell in nb.cells:
            directives = re.findall(r"^#\| ?(.+?)\s*$", cell.source, re.M)
            if cell.cell_type == "markdown":
                folded = cell.source.replace("<details>", '<details markdown="1">')
                cell.source = displays_apart(folded)
            if cell.cell_type == "code":
                cell.source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M).strip()
                without_input = "hide_input" in directives or "echo: false" in directives
                cell.outputs = [out for out in cell.outputs if WIDGET not in out.get("data", ())]
                moved = SLIDER.search(cell.source)
                if moved and cell.outputs:
                    note = {"text/markdown": STILL.format(moved[1])}
                    cell.outputs.append(nbformat.v4.new_output("display_data", data=note))
                cell.transient = {"remove_source": without_input}
            if cell.source and "hide" not in directives:
                shown.append(cell)
        nb.cells = shown
        return nb, resources


def marked_long(cell: re.Match) -> str:
    "A cell of a table with a class that lets its text wrap."
    attributes, text = cell.groups()
    if 'class="' in attributes:
        attributes = attributes.replace('class="', 'class="long ', 1)
    else:
        attributes = f' class="long"{attributes}'
    return f"<td{attributes}>{text}</td>"


def plain_html(text: str) -> str:
    """HTML without styles of its own, and without the blank lines at which Markdown would end it.

    Sentences in cells wrap, so that the last column of a claims table is visible.
    """
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<td\b([^>]*)>([^<]{30,})</td>", marked_long, text)
    return re.sub(r"\n\s*\n", "\n", text).strip()


def notebook_exporter() -> MarkdownExporter:
    "Notebooks to Markdown by `notebook.md.j2`."
    exporter = MarkdownExporter(
        template_file="notebook.md.j2",
        extra_template_paths=[str(Path(__file__).parent)],
        filters={"plain_html": plain_html},
    )
    exporter.register_preprocessor(Directives(), enabled=True)
    exporter.register_preprocessor(CoalesceStreamsPreprocessor(), enabled=True)
    return exporter


def module_file(notebook) -> str | None:
    "Place of the module that a notebook exports to."
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    found = re.search(r"^#\| ?default_exp (\S+)", code, re.M)
    return f"hypvl/{found[1].replace('.', '/')}.py" if found else None


def notebook_page(
    path: str,  # of the notebook
    exporter: MarkdownExporter,
    root: Path = ROOT,
) -> tuple[str, dict[str, bytes]]:
    "Markdown of a notebook with a link to its module's page below the title; pictures by place."
    notebook = nbformat.read(root / path, as_version=4)
    module, name = module_file(notebook), Path(path).stem
    resources = {"unique_key": name, "output_files_dir": f"{name}_files"}
    body, resources = exporter.from_notebook_node(notebook, resources)
    facts = project_facts()
    below = f"[Notebook]({facts['git_url']}/blob/{facts['branch']}/{path})"
    if module and (root / module).exists():
        dotted = module.removesuffix(".py").replace("/", ".")
        below = f"[API of `{dotted}`]({relpath(module, dirname(path))}) · {below}"
    if dirname(path) == "papers_repro":
        found = sorted((root / RESULTS).glob(f"*/{name}/{name}.ipynb"))
        executed = [path.parents[1].name for path in found]
        links = ", ".join(f"[{study}](results/{study}/{name}/{name}.ipynb)" for study in executed)
        if links:
            below = f"This page has no outputs. **With tables and figures**: {links}. {below}"
    below = f"\n\n{below}\n"
    body = re.sub(r"\A\s*(# .*(?:\n+>.*)*)", lambda head: head[1] + below, body, count=1)
    if path.startswith(f"{RESULTS}/"):  # beside the page of the same notebook without outputs
        study = study_name(dirname(path))
        body = re.sub(r"\A\s*(# .*)", lambda head: f"{head[1]} ({study})", body, count=1)
    pictures = {join(dirname(path), key): data for key, data in resources["outputs"].items()}
    return body, pictures


def modules(root: Path = ROOT) -> list[str]:
    "Files of the package that define names for others."
    found = []
    for path in sorted((root / "hypvl").rglob("*.py")):
        if path.name not in ("_modidx.py", "__main__.py") and "__all__" in path.read_text("utf-8"):
            found.append(path.relative_to(root).as_posix())
    return found


def _public_name(module: str, name: str, root: Path) -> str:
    "A line of the overview: a public name, what it is or returns, a link to its page."
    path = Path(*module.split(".")).with_suffix(".py")
    nodes = ast.parse((root / path).read_text("utf-8")).body
    *_overloads, node = [one for one in nodes if getattr(one, "name", None) == name]
    first = (ast.get_docstring(node) or "").split("\n")[0]
    return f"- [`hypvl.{name}`]({path.relative_to('hypvl').as_posix()}): {first}"


def module_page(path: str, root: Path = ROOT) -> str:
    """A link to the notebook, and what mkdocstrings puts in place of the last line.

    That of `hypvl` documents what it loads when it is asked for.
    """
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    code = (root / path).read_text("utf-8")
    source = re.search(r"File to edit: [./]*(\S+\.ipynb)", code)
    lines = [titled(dotted, f"# {dotted}")]
    if source:
        link = relpath(source[1], dirname(path))
        lines.append(f"Defined, shown and tested in [{source[1]}]({link}).")
    if path == "hypvl/__init__.py":
        public = re.findall(r"^    from (\S+) import (\w+) as", code, re.M)
        lines.append("\n".join(_public_name(module, name, root) for module, name in public))
    return "\n\n".join([*lines, f"::: {dotted}\n"])


def titled(title: str, markdown: str) -> str:
    "A page whose title in tabs and in the search is not that of its navigation."
    return f'---\ntitle: "{title}"\n---\n\n{markdown}'


def study_name(folder: str) -> str:
    "A folder of results in words: 'phyclip, world'."
    study, paper = folder.removeprefix(f"{RESULTS}/").split("/")[:2]
    return f"{paper}, {study}".replace("_", " ")


def folder_page(folder: str, files: list[str], root: Path = ROOT) -> str:
    "A folder of results: its notebook, what was trained, and all files."
    inside = [relpath(path, folder) for path in files if path.startswith(f"{folder}/")]
    name = f"Results: {study_name(folder)}"
    lines = [titled(name, f"# {name}")]
    lines += [f"- [Executed notebook]({name})" for name in inside if name.endswith(".ipynb")]
    lines.append("- [How to read these results](../../README.md)\n")
    for table in ("scores", "primary_claims"):
        path = root / folder / "tables" / f"{table}.md"
        if path.exists():
            heading = table.replace("_", " ").capitalize()
            lines.append(f"## {heading}\n\n{path.read_text('utf-8')}")
    lines.append("\n## Files\n")
    lines += [f"- [{name}]({name})" for name in inside]
    return "\n".join(lines) + "\n"


def with_way_back(markdown: str, place: str) -> str:
    "A table of results, which no sidebar lists, with its caption, its study and a link to that."
    study = study_name(dirname(dirname(place)))
    caption = re.match(r"\*\*(.+)\*\*\n", markdown)
    name = caption[1] if caption else Path(place).stem.capitalize()
    rest = markdown.removeprefix(caption[0]) if caption else markdown
    return f"# {name} ({study})\n\n[All results of {study}](../index.md)\n\n{rest}"


def project_facts(root: Path = ROOT) -> configparser.SectionProxy:
    "Name, address and branch, from `settings.ini`."
    ini = configparser.ConfigParser(delimiters=["="])
    ini.read(root / "settings.ini", encoding="utf-8")
    return ini["DEFAULT"]


def with_links_to_pages(
    markdown: str,
    source: str,  # the page
    known: set[str],  # pages and files of the site
    url: str,  # of the repository
    root: Path = ROOT,
) -> str:
    """Links of a page to sources lead to their pages, to a folder its first page.

    Whatever else the repository holds is shown where it is hosted; a link to nothing stays as it
    is, for mkdocs to complain about.
    """

    written_in = dirname(source)
    if (
        re.fullmatch(rf"{RESULTS}/\w+/\w+/\w+\.md", source)
        and f"papers_repro/{basename(source)}" in known
    ):
        written_in = "papers_repro"  # a copy of the notebook there, executed

    def place(target: str, anchor: str) -> str:
        link = relpath(target, dirname(source) or ".") + anchor
        return f"<{link}>" if re.search(r"[\s()]", link) else link

    def lead(link: re.Match) -> str:
        anchor = unquote(link[2] or "")
        path = unquote(link[1])
        own = normpath(join(dirname(source), path))  # what the page itself has drawn, for one
        found = own in known or page_of(own) in known
        target = own if found else normpath(join(written_in, path))
        if page_of(normpath(path)) in known and not (root / target).exists():
            target = normpath(path)  # in an output that shows a page of the root
        for page in (page_of(target), f"{target}/README.md", f"{target}/index.md"):
            if page in known:
                return place(page, anchor)
        if target in known:
            return place(target, anchor)
        if not (root / target).exists():
            return link[0]
        return f"{url}/{target}{anchor}"

    return LINK.sub(lead, markdown)


def make_pages(root: Path = ROOT) -> Pages:
    "All pages and files of the site."
    markdown, pictures, files = {}, {}, []
    exporter = notebook_exporter()
    found = repository_files(root)
    for path in found:
        if path.endswith(".ipynb"):
            markdown[page_of(path)], drawn = notebook_page(path, exporter, root)
            pictures |= drawn
        elif path.endswith(".md"):
            markdown[path] = displays_apart((root / path).read_text("utf-8"))
        else:
            files.append(path)
    for path in modules(root):
        markdown[page_of(path)] = module_page(path, root)
    for folder in sorted((root / RESULTS).glob("*/*")):
        if folder.is_dir():
            place = folder.relative_to(root).as_posix()
            markdown[f"{place}/index.md"] = folder_page(place, found, root)
    for place in [
        page for page in markdown if re.fullmatch(rf"{RESULTS}/\w+/\w+/tables/\w+\.md", page)
    ]:
        markdown[place] = with_way_back(markdown[place], place)
    facts = project_facts(root)
    url = f"{facts['git_url']}/blob/{facts['branch']}"
    known = {*markdown, *pictures, *files}
    for page, text in markdown.items():
        markdown[page] = with_links_to_pages(text, page, known, url, root)
    return Pages(markdown, pictures, files)


def plain_heading(heading: str) -> str:
    "A heading without links and marks."
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip()


def title_of(markdown: str) -> str:
    "The first heading, as plain text."
    found = re.search(r"^# (.*)$", markdown, re.M)
    return plain_heading(found[1] if found else "untitled")


def sidebar(root: Path = ROOT) -> list[tuple[str, list[str]]]:
    "Sections of `nbs/sidebar.yml` with their pages, in reading order; the first has no name."
    listed = yaml.safe_load((root / "nbs" / "sidebar.yml").read_text("utf-8"))
    sections = [("", [])]
    for entry in listed["website"]["sidebar"]["contents"]:
        if isinstance(entry, str):
            sections[0][1].append(page_of(f"nbs/{entry}"))
        else:
            pages = [page_of(f"nbs/{name}") for name in entry["contents"]]
            sections.append((entry["section"], pages))
    return sections


def in_sections(pages: list[tuple[str, str, str]]) -> list:
    "Navigation of (folder, title, page): a section for each folder, where it first comes."
    top: list = []
    sections = {"": top}
    for folder, title, page in pages:
        path = ""
        for part in folder.split("/") if folder else []:
            above, path = path, f"{path}/{part}".lstrip("/")
            if path not in sections:
                sections[path] = []
                sections[above].append({part.replace("_", " "): sections[path]})
        sections[path].append({title: page})
    return top


def navigation(markdown: dict[str, str], root: Path = ROOT) -> list:
    "Tabs and sections as mkdocs wants them."
    title = {page: title_of(text) for page, text in markdown.items()}
    (_, start), *chapters = sidebar(root)
    notebooks = [(section, title[page], page) for section, pages in chapters for page in pages]
    reference = []
    for path in modules(root):
        folder = dirname(path).removeprefix("hypvl").strip("/")
        name = "overview" if path.endswith("__init__.py") else Path(path).stem
        reference.append((folder, name, page_of(path)))
    read = ["", *(section for section, _ in chapters)]
    reference.sort(key=lambda entry: (read.index(entry[0]), entry[1] != "overview", entry[1]))
    papers = [page for page in markdown if re.fullmatch(r"papers_repro/\w+\.md", page)]
    papers = [page for page in papers if basename(page).islower()]
    cited = [section.removeprefix("papers/") for section, _ in chapters]
    papers.sort(key=lambda page: [*cited, Path(page).stem].index(Path(page).stem))
    studies = []
    for page in sorted(page for page in markdown if page.startswith(f"{RESULTS}/")):
        folder = dirname(page).removeprefix(RESULTS).strip("/")
        if folder.count("/") == 1:
            name = "overview" if page.endswith("index.md") else title[page]
            studies.append((folder, name, page))
    studies = [(study_name(folder), name, page) for folder, name, page in studies]
    studies.sort(key=lambda entry: (entry[0], entry[1] != "overview"))
    return [
        {
            "Start": [
                {"hypvl": "README.md"},
                {"A tour": start[0]},
                {"Contribute": "CONTRIBUTING.md"},
                {"Changes": "CHANGELOG.md"},
            ]
        },
        {
            "Papers": [
                {"Where each equation is": "papers_repro/WHERE.md"},
                *[{title[page]: page} for page in papers],
                # in a section of its own: an index page would become the page of the tab
                {"Published numbers": [{"Tables as CSV": "papers_repro/reference/README.md"}]},
            ]
        },
        {
            "Notebooks": [
                {"Foundations": [{title[page]: page} for page in start[1:]]},
                *in_sections(notebooks),
            ]
        },
        {"API": in_sections(reference)},
        {
            "Results": [
                {"Findings": f"{RESULTS}/README.md"},
                *in_sections(studies),
                {"Speed and memory": "benchmarks/RESULTS.md"},
            ]
        },
    ]
