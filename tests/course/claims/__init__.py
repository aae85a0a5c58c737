"""One demonstration for each claim of the five documents, by document; tests/course/test_claims.py runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

# These files are not named test_*.py; without this, a failed assert in them would not say what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.d{number}" for number in range(5)))


@dataclass(frozen=True)
class Found:
    """What a demonstration has found by running; the verdict on the claim follows from it."""

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


Demonstration = Callable[[], Found | None]
DEMONSTRATIONS: dict[str, Demonstration] = {}


def shows(claim: str) -> Callable[[Demonstration], Demonstration]:
    """Mark the function that demonstrates a claim: by asserts, and where it returns `Found`, the verdict as well."""

    def mark(function: Demonstration) -> Demonstration:
        assert claim not in DEMONSTRATIONS
        DEMONSTRATIONS[claim] = function
        return function

    return mark
