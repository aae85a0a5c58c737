"""Every claim of the five documents has the verdict that follows from the installed torch; claims/ says how."""

from __future__ import annotations

import re

import pytest

from lessons.build import lesson_source, placeholders
from tests.course.claims import (
    DEMONSTRATIONS,
    Found,
    document_d2,  # noqa: F401 (it adds to DEMONSTRATIONS, and so do the next two)
    document_d3,  # noqa: F401
    document_d4,  # noqa: F401
    found_in_facts,
)
from tests.shared.table_checks import for_each

CLAIMS = lesson_source.claims()["claims"]
DOCUMENTS = lesson_source.claims()["documents"]
LESSONS = {lesson_source.name_of(path)[:2]: path.read_text(encoding="utf-8") for path in lesson_source.lesson_files()}
LESSONS.pop("in")  # the index is no chapter
RUNS = lesson_source.data_file("claims.toml").parent / "runs"

each_claim = for_each(CLAIMS.values())


@pytest.mark.parametrize("claim", [name for name, row in CLAIMS.items() if "facts" in row])
def test_the_facts_of_torch_lead_to_the_verdict(claim: str) -> None:
    assert CLAIMS[claim]["verdict"] == found_in_facts(CLAIMS[claim]).verdict


@pytest.mark.parametrize("claim", DEMONSTRATIONS)
def test_a_demonstration_leads_to_the_verdict(claim: str) -> None:
    found = DEMONSTRATIONS[claim]()
    if found:
        assert CLAIMS[claim]["verdict"] == found.verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Found(holds=True, fails=False), "holds"),
        (Found(holds=True, fails=True), "partly"),
        (Found(holds=False, fails=True), "wrong"),
        (Found(holds=False, fails=True, held_once=True), "outdated"),
        (Found(holds=True, fails=True, hidden=True), "cannot tell"),
    ],
)
def test_a_verdict_follows_from_what_was_found(found: Found, verdict: str) -> None:
    assert found.verdict == verdict
    assert verdict in placeholders.VERDICTS


def test_every_claim_has_facts_or_a_demonstration() -> None:
    by_facts = {name for name, row in CLAIMS.items() if "facts" in row}
    assert not by_facts & {*DEMONSTRATIONS}
    assert {*CLAIMS} - by_facts - {*DEMONSTRATIONS} == {"D0.15"}, "how often people do something, no run can tell"


@each_claim
def test_claim_is_complete(row: dict[str, str]) -> None:
    assert row["document"] == row["id"].split(".")[0]
    assert row["document"] in DOCUMENTS
    assert row["verdict"] in placeholders.VERDICTS
    assert ("since" in row) == (row["verdict"] == "outdated"), "an outdated claim says since when, another does not"
    assert {*row} - {"since", "facts"} == {"id", "document", "text", "verdict", "does", "chapter"}


@each_claim
def test_what_torch_does_is_one_to_three_sentences(row: dict[str, str]) -> None:
    assert re.fullmatch(r"(?:[A-Z`]|torch ).{39,239}\.", row["does"])
    prose = re.sub(r"`[^`]*`", "it", row["does"])
    assert "`" not in prose, "a backquote is open"
    assert len(re.findall(r"[.!?] ", prose)) <= 2, "more than three sentences"


@each_claim
def test_claim_is_met_in_its_chapter_and_run_in_one_place(row: dict[str, str]) -> None:
    name = row["id"]
    fragment = RUNS / f"{name}.md"
    for number, text in LESSONS.items():
        places = [text.count(place) for place in (f"{{{{claim {name}}}}}", f"{{{{verdict {name}}}}}")]
        repeated = len(re.findall(rf"{{{{repeats {re.escape(name)}(?: [^{{}}]+)?}}}}", text))
        met, here = int(number) == row["chapter"], not fragment.exists()
        assert places == [met and here, met and here], f"chapter {number}"
        assert repeated <= (met and not here), f"chapter {number}"
    if fragment.exists():
        text = fragment.read_text(encoding="utf-8")
        assert text.count(f"{{{{verdict {name}}}}}") == 1
        assert "```{code-cell}" in text, "a claim that is not run"


def test_each_fragment_runs_a_claim() -> None:
    assert {path.stem for path in RUNS.glob("*")} <= set(CLAIMS)


@pytest.mark.parametrize("row", DOCUMENTS.values(), ids=lambda row: row["id"])
def test_document_is_introduced(row: dict[str, str]) -> None:
    assert {*row} - {"name"} == {"id", "title", "kind", "author", "language", "date", "summary"}
    assert all(value.strip() for value in row.values())
    assert re.fullmatch(r"(?:\S[^.]*(?:`[^`]*`)?[^.]*\.\s?){2,3}", row["summary"].strip())
