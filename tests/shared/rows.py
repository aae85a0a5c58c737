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
