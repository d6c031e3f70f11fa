"""Preset `paper` against what each paper prints, row by row of `papers_repro/audit`."""

import re

import pytest

from hypvl.papers.audit import audit_table, read_audit
from hypvl.papers.study import find_paper

PAPERS = ("phyclip", "syntax", "visual_hierarchies", "h2em", "agr")


@pytest.mark.parametrize("name", PAPERS)
def test_preset_paper_has_the_printed_settings_or_a_reason(name):
    paper = find_paper(name)
    recipes = paper.recipes(paper.sections[0], preset="paper", seed=0)
    table = audit_table(read_audit(name), recipes).set_index("item")
    differing = table["match"].ne("yes")
    assert table.loc[differing, "reason"].ne("").all(), table[differing & table["reason"].eq("")]
    assert table.loc[~differing, "reason"].eq("").all(), table[~differing & table["reason"].ne("")]
    printed = table["paper"].ne("not printed")
    assert table.loc[printed, "where"].ne("").all()


def numbers(text):
    "The numbers of a text."
    found = re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text))
    return {float(one) for one in found}


@pytest.mark.parametrize("name", PAPERS)
def test_printed_numbers_stand_in_the_quoted_words(name):
    audit = read_audit(name)
    quoted = audit[audit["quote"].ne("") & ~audit["printed"].str.contains("e-")]
    assert len(quoted)
    for row in quoted.itertuples():
        assert numbers(row.printed) <= numbers(row.quote), (row.item, row.printed, row.quote)
