"""Check every row of a table in one test, where each is the same check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def check_each(rows: Iterable[Any], check: Callable[[Any], None]) -> None:
    """Check every row, and raise what the first that failed raised, with the names of all that did."""
    failed: list[tuple[Any, BaseException]] = []
    for row in rows:
        try:
            check(row)
        except Exception as error:
            failed.append((row, error))
    for _, error in failed:
        error.add_note(f"rows that failed: {[row for row, _ in failed]}")
        raise error


def for_each(rows: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Turn a check of one row into a test of all of them; a test for each would take its time to be collected."""

    def decorate(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            check_each(rows, check)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
