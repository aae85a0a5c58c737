"""Where the chooser and the glossary say that something is taught, it is: the section has the word for it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from lessons.build import lesson_source
from tests.shared.parsed_chapters import CHAPTERS
from tests.shared.table_checks import for_each

WANTS = [row for row in lesson_source.rows_of("chooser.toml", "want") if "section" in row]
TERMS = [row for row in lesson_source.rows_of("glossary.toml", "term") if "section" in row]


@cache
def sections(chapter: int) -> dict[str, str]:
    """All that stands in each section of a chapter, text and code: by number, or by heading if it has none."""
    found: dict[str, str] = {}
    (page,) = (page for page in CHAPTERS if page.name.startswith(f"{chapter:02}_"))
    here = ""
    for cell in page.notebook.cells:
        for part in re.split(r"(?m)^(?=## )", cell.source) if cell.cell_type == "markdown" else [cell.source]:
            if heading := cell.cell_type == "markdown" and re.match(r"## (?:(\d+) · )?(.+)", part):
                here = heading[1] or heading[2]
            found[here] = f"{found.get(here, '')}\n{part}"
    return found


def trouble_of_want(row: dict[str, Any]) -> str:
    """Empty if the section has the row's word, and no other numbered section of the chapter has it more often."""
    counts = {
        name: len(re.findall(re.escape(row["word"]), text, re.IGNORECASE))
        for name, text in sections(row["chapter"]).items()
        if name.isdecimal()
    }
    here = counts[str(row["section"])]
    if here and here == max(counts.values()):
        return ""
    return (
        f"chapter {row['chapter']:02}, section {row['section']} has '{row['word']}' {here} times, in all {counts}; "
        "name the section where this is taught, or as `word` what only that section is about"
    )


def trouble_of_term(row: dict[str, Any]) -> str:
    """Empty if the section has the term, or the word that it says in its place."""
    word = row.get("word", row["english"])
    if re.search(rf"(?<![a-z]){re.escape(word)}", sections(row["chapter"])[str(row["section"])], re.IGNORECASE):
        return ""
    return (
        f"chapter {row['chapter']:02}, section {row['section']} does not have '{word}'; name a section that explains "
        "it, or as `word` what the section says in its place"
    )


@for_each(WANTS)
def test_a_want_is_taught_where_its_row_says(row: dict[str, Any]) -> None:
    assert trouble_of_want(row) == ""


@for_each(TERMS)
def test_a_term_is_explained_where_its_row_says(row: dict[str, Any]) -> None:
    assert trouble_of_term(row) == ""


def row_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if name in (row.get("want"), row.get("english")))


def test_the_wrong_pointers_that_the_pages_once_had_are_found() -> None:
    assert trouble_of_want(row_of(WANTS, "Find the layer that makes the first NaN") | {"section": 2})
    assert trouble_of_want(row_of(WANTS, "Get the hidden states of a layer that returns a tuple") | {"section": 2})
    assert trouble_of_term(row_of(TERMS, "source code") | {"chapter": 3})


def test_most_pointers_to_another_section_would_be_found() -> None:
    """A word that stands everywhere would make the check pass wherever a row points."""
    for row in WANTS:
        others = [int(name) for name in sections(row["chapter"]) if name.isdecimal() and int(name) != row["section"]]
        missed = [other for other in others if not trouble_of_want(row | {"section": other})]
        assert len(missed) <= 1, f"'{row['word']}' of '{row['want']}' passes in the sections {missed}, too"
