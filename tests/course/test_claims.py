"""Every claim of the five documents, shown by running it on the installed torch; the demonstrations are in claims/."""

from __future__ import annotations

import pytest

from lessons.build import filling, reading
from tests.course.claims import DEMONSTRATIONS, d0, d1, d2, d3, d4  # noqa: F401, each adds its demonstrations

CLAIMS = reading.claims()["claims"]
LESSONS = {path.stem[:2]: path.read_text(encoding="utf-8") for path in reading.lesson_files()}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim(claim: str) -> None:
    DEMONSTRATIONS[claim]()


def test_no_demonstration_without_a_claim() -> None:
    assert set(DEMONSTRATIONS) == set(CLAIMS)


@pytest.mark.parametrize("row", CLAIMS.values(), ids=lambda row: row["id"])
def test_claim_is_complete_and_met_in_its_chapter(row: dict[str, object]) -> None:
    name = str(row["id"])
    assert row["document"] == name.split(".")[0]
    assert row["document"] in reading.claims()["documents"]
    assert row["verdict"] in filling.VERDICTS
    assert row["test"] == f"tests/test_claims.py::test_claim[{name}]"
    assert ("since" in row) == (row["verdict"] == "outdated"), "an outdated claim says since when, another does not"
    for number, text in LESSONS.items():
        places = [text.count(f"{{{{{what} {name}}}}}") for what in ("claim", "verdict")]
        assert places == ([1, 1] if int(number) == row["chapter"] else [0, 0]), f"chapter {number}: {places}"
