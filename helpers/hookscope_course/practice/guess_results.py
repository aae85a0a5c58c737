"""Keep how the guesses of a chapter went: right at the first try, at the second, or shown."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias

from hookscope_course.learner.copies import STATE_FOLDER, replace_text

__all__ = [
    "ORDINALS",
    "TRIES",
    "GuessOutcome",
    "get_wrong_guesses",
    "is_learner_copy",
    "read_outcomes",
    "store_outcome",
    "summarize_guesses",
]

TRIES = 2
"""How often a question can be answered before it shows its answer; the widget and the site count by it, too."""
ORDINALS = ("first", "second", "third", "fourth")[:TRIES]
"""How a right guess is counted: by its try."""
GuessOutcome: TypeAlias = str
"""One of `ORDINALS`, or "shown"."""
_wrong_guesses: dict[str, list[str]] = {}
_outcomes: dict[str, GuessOutcome] = {}  # where nothing can be kept, a score lasts as long as the kernel


@cache
def get_notebook_folder() -> Path:
    """Return where the notebook is, as at the first question; a learner's own code may go elsewhere later."""
    return Path.cwd()


def is_learner_copy() -> bool:
    """Whether the notebook is in a learner's copy of the course."""
    return (get_notebook_folder() / STATE_FOLDER).is_dir()


def get_wrong_guesses(about: str) -> list[str]:
    """Return the wrong guesses that a question got since the kernel started; the list is the one that is kept."""
    return _wrong_guesses.setdefault(about, [])


def store_outcome(about: str, outcome: GuessOutcome) -> None:
    """Keep how a guess went. The first time counts: afterwards the answer is known."""
    if about in (known := read_outcomes()):
        return
    _outcomes[about] = outcome
    if is_learner_copy():
        with suppress(OSError):  # a page goes on without it
            replace_text(
                get_notebook_folder() / STATE_FOLDER / "guesses.json",
                json.dumps({**known, about: outcome}, indent=1, sort_keys=True),
            )


def read_outcomes(copy: Path | None = None) -> dict[str, GuessOutcome]:
    """Return how guesses went, by question."""
    kept: dict[str, GuessOutcome] = {}
    file = (copy or get_notebook_folder()) / STATE_FOLDER / "guesses.json"
    with suppress(OSError, ValueError, RecursionError):
        # Never wait for a FIFO, nor read without end.
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if isinstance(found, dict):
            kept = {name: how for name, how in found.items() if how in (*ORDINALS, "shown")}
    return kept | _outcomes


def summarize_guesses(chapter: int, questions: int, copy: Path | None = None) -> str:
    """Say how the guesses of a chapter went.

    Args:
        chapter: its number.
        questions: how many it asks.
        copy: the folder of the learner's copy; by default the one in which the notebook is.

    Example:
        >>> summarize_guesses(3, 5)
        'no guess yet, of 5'

    """
    outcomes = [how for about, how in read_outcomes(copy).items() if about.startswith(f"{chapter:02}.")]
    if not outcomes:
        return f"no guess yet, of {questions}"
    later = [f", {outcomes.count(each)} at the {each} try" for each in ORDINALS[1:] if each in outcomes]
    return f"{outcomes.count(ORDINALS[0])} of {questions} right at once{''.join(later)}"
