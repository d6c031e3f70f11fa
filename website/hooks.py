"""Events of mkdocs: pages of the repository, anchors as Jupyter makes them, formulas as MathML."""

import html
import logging
import re
from posixpath import dirname, join, normpath
from urllib.parse import unquote

import latex2mathml.converter
from check_search import DEFINED_IN
from mkdocs.structure.files import File
from pages import (
    RESULTS,
    ROOT,
    github_anchor,
    jupyter_anchor,
    make_pages,
    navigation,
    project_facts,
)

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
IMAGE = re.compile(r'<img\b([^>]*?\bsrc="([^"]+\.png)")')
WIDE = 700  # pixels, from which on a picture would be too small to read on a phone
LINK = re.compile(r'<(?:a|img)\b[^>]*\b(?:href|src)="(?!\w+:|//|#)([^"#?]+)')
COMMAND = re.compile(r"<m[a-z]+>(\\[a-zA-Z]+)")  # that is not known, and stands there as it is
NO_TEXT = re.compile(r"<(pre|code|script|style|math)\b.*?</\1>", re.S)
SOURCE = '<details class="mkdocstrings-source"'
log = logging.getLogger("mkdocs.hooks")


def on_config(config):
    facts = project_facts()
    config.site_url = f"{facts['doc_host']}{facts['doc_baseurl']}/"
    config.repo_url = facts["git_url"]
    config.repo_name = "/".join(facts["git_url"].split("/")[-2:])
    config.copyright = f"hypvl {facts['version']}, {facts['copyright']}"
    config.pages = make_pages()
    config.nav = navigation(config.pages.markdown)
    return config


def on_files(files, config):
    for place, text in config.pages.markdown.items():
        files.append(File.generated(config, place, content=text))
    for place, picture in config.pages.pictures.items():
        files.append(File.generated(config, place, content=picture))
    for place in config.pages.files:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Headings are named as the page is linked to: as a notebook, or as a Markdown file.

    The search finds first the notebook that defines a term, and no page of a single study.
    """
    place = page.file.src_uri
    if re.match(rf"{RESULTS}/.+/", place):
        page.meta["search"] = {"exclude": True}
    elif page.file.dest_uri in DEFINED_IN.values():
        page.meta["search"] = {"boost": 100}
    elif place.startswith("nbs/"):
        page.meta["search"] = {"boost": 4}
    written = page.file.src_uri.endswith(".md") and (ROOT / page.file.src_uri).is_file()
    config.mdx_configs["toc"]["slugify"] = github_anchor if written else jupyter_anchor


def with_formulas(content: str) -> str:
    "Formulas need neither a script nor the network: browsers draw MathML."

    def formula(found: re.Match) -> str:
        display = "block" if found[2] == "[" else "inline"
        drawn = latex2mathml.converter.convert(html.unescape(found[3]), display=display)
        return f'<{found[1]} class="formula">{drawn}</{found[1]}>'

    return FORMULA.sub(formula, content)


def undrawn_formulas(
    content: str,  # of a page, its formulas drawn
) -> list[str]:
    "What is left of formulas that nobody drew: dollars in the text, commands inside of a formula."
    unknown = COMMAND.findall(content)
    text = re.sub(r"<[^>]*>", "", NO_TEXT.sub("", content))
    return unknown + [line.strip() for line in text.splitlines() if "$" in line]


def dead_links(
    content: str,  # of a page
    page: str,  # its place on the site
    known: set[str],  # places of pages and files
) -> list[str]:
    "Links and pictures that lead nowhere, those in outputs of notebooks too, which mkdocs skips."
    found = [unquote(html.unescape(link)) for link in LINK.findall(content)]
    return [link for link in found if normpath(join(dirname(page), link)) not in known]


def wide_pictures_marked(
    content: str,  # of a page
    page: str,  # its place on the site
    drawn: dict[str, bytes],  # pictures by place; others are files of the repository
) -> str:
    "Pictures that a phone had better scroll than shrink get a class."

    def mark(found: re.Match) -> str:
        place = normpath(join(dirname(page), unquote(html.unescape(found[2]))))
        file = ROOT / place
        data = drawn.get(place) or (file.read_bytes() if file.exists() else b"")
        width = int.from_bytes(data[16:20], "big")  # of the header of PNG
        return f'<img class="wide"{found[1]}' if width >= WIDE else found[0]

    return IMAGE.sub(mark, content)


def on_page_content(content, page, config, files):
    "Formulas and links, both checked, and a search that does not find each line of the source."
    known = {file.dest_uri for file in files}
    for link in dead_links(content, page.file.dest_uri, known):
        log.warning("%s has a link to nothing, '%s'", page.file.src_uri, link)
    content = wide_pictures_marked(content, page.file.dest_uri, config.pages.pictures)
    drawn = with_formulas(content)
    for left in undrawn_formulas(drawn):
        log.warning("%s has a formula that is not drawn, '%s'", page.file.src_uri, left)
    return drawn.replace(SOURCE, f"{SOURCE} data-search-exclude")
