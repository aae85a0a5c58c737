"""What decides the verdict on a claim of the five documents: facts of torch, or a demonstration in these files.

A row of claims.toml names the facts and the answers that the claim expects. What is no fact about hooks, or needs more
than torch, has a demonstration here, by document; tests/course/test_claims.py runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from hookscope_course.history import records

# These files are not named test_*.py; without this, a failed assert in them would not say what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.d{number}" for number in (2, 3, 4)))


@dataclass(frozen=True)
class Found:
    """What was found by running; the verdict on the claim follows from it."""

    holds: bool
    """There is a case in which it is as the document says."""
    fails: bool
    """There is a case in which it is not, on the installed torch."""
    held_once: bool = False
    """There was a release in which it was as the document says."""
    hidden: bool = False
    """It hangs on something that the document does not show which of the cases is its own."""

    @property
    def verdict(self) -> str:
        """The verdict that follows."""
        if self.hidden:
            return "cannot tell"
        if self.holds:
            return "partly" if self.fails else "holds"
        return "outdated" if self.held_once else "wrong"


def found_in_facts(row: dict[str, Any]) -> Found:
    """Hold the answers that a claim expects against those of torch."""
    cases = [
        (name, answer)
        for name, answers in row["facts"].items()
        for answer in ([answers] if isinstance(answers, str) else answers)
    ]
    alike = [records.holds(*case) for case in cases]
    return Found(
        holds=any(alike),
        fails=not all(alike),
        held_once=any(records.releases_where(*case) for case in cases),
        hidden=row["verdict"] == "cannot tell" and len({*alike}) == 2,
    )


Demonstration = Callable[[], Found | None]
DEMONSTRATIONS: dict[str, Demonstration] = {}


def shows(claim: str) -> Callable[[Demonstration], Demonstration]:
    """Mark the function that demonstrates a claim: by asserts, and where it returns `Found`, the verdict as well."""

    def mark(function: Demonstration) -> Demonstration:
        assert claim not in DEMONSTRATIONS
        DEMONSTRATIONS[claim] = function
        return function

    return mark
