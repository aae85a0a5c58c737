"""One demonstration for each claim of the five documents, by document; tests/test_claims.py runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# These files are not named test_*.py; without this, a failed assert in them would not say what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.d{number}" for number in range(5)))

DEMONSTRATIONS: dict[str, Callable[[], None]] = {}


def shows(claim: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Mark the function that demonstrates a claim and its verdict."""

    def mark(function: Callable[[], None]) -> Callable[[], None]:
        assert claim not in DEMONSTRATIONS
        DEMONSTRATIONS[claim] = function
        return function

    return mark
