"""Events of mkdocs: pages of the repository, anchors as Jupyter makes them, formulas as MathML."""

import html
import re

import latex2mathml.converter
from mkdocs.structure.files import File
from pages import ROOT, make_pages, navigation, project_facts

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def jupyter_anchor(heading: str, separator: str) -> str:
    "The name of a heading that links to notebooks use."
    return heading.strip().replace(" ", separator)


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = jupyter_anchor
    facts = project_facts()
    config.site_url = f"{facts['doc_host']}{facts['doc_baseurl']}/"
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


def on_page_content(content, page, config, files):
    "Formulas need neither a script nor the network: browsers draw MathML."

    def formula(found: re.Match) -> str:
        display = "block" if found[2] == "[" else "inline"
        drawn = latex2mathml.converter.convert(html.unescape(found[3]), display=display)
        return f'<{found[1]} class="formula">{drawn}</{found[1]}>'

    return FORMULA.sub(formula, content)
