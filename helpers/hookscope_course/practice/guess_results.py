"""Keep how the guesses of a chapter went: right at the first try, at the second, or shown."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from hookscope_course.learner.copies import STATE_FOLDER, replace_text

__all__ = [
    "ORDINALS",
    "TRIES",
    "GuessOutcome",
    "get_guess",
    "get_wrong_guesses",
    "is_learner_copy",
    "read_figure",
    "read_outcomes",
    "store_figure",
    "store_guess",
    "store_outcome",
    "store_wrong_guess",
    "summarize_guesses",
]

TRIES = 2
"""How often a question can be answered before it shows its answer; the widget and the site count by it, too."""
ORDINALS = ("first", "second", "third", "fourth")[:TRIES]
"""How a right guess is counted: by its try."""
GuessOutcome: TypeAlias = str
"""One of `ORDINALS`, or "shown"."""


@dataclass
class Tries:
    """The last guess of a question, and its wrong ones in words."""

    guess: Any
    wrong: list[str]


_tries: dict[str, Tries] = {}  # where nothing can be kept, guesses and a score last as long as the kernel
_outcomes: dict[str, GuessOutcome] = {}


@cache
def get_notebook_folder() -> Path:
    """Return where the notebook is, as at the first question; a learner's own code may go elsewhere later."""
    return Path.cwd()


def is_learner_copy() -> bool:
    """Whether the notebook is in a learner's copy of the course."""
    return (get_notebook_folder() / STATE_FOLDER).is_dir()


def get_wrong_guesses(about: str) -> list[str]:
    """Return the wrong guesses of a question. They outlive a restart of the kernel."""
    return _get_tries(about).wrong


def store_wrong_guess(about: str, text: str) -> None:
    """Keep a wrong guess, so that a restart of the kernel does not give the question another try."""
    _get_tries(about).wrong.append(text)
    _write_tries()


def get_guess(about: str) -> Any:
    """Return the last guess of a question, or None. It outlives a restart of the kernel."""
    return _get_tries(about).guess


def store_guess(about: str, guess: Any) -> None:
    """Keep a guess; None takes the last one back."""
    _get_tries(about).guess = guess
    _write_tries()


def _get_tries(about: str) -> Tries:
    if about not in _tries:
        found = _read_state("tries.json").get(about)
        guess, wrong = (found.get("guess"), found.get("wrong")) if isinstance(found, dict) else (None, None)
        is_text = isinstance(wrong, list) and all(isinstance(each, str) for each in wrong)
        _tries[about] = Tries(guess, list(wrong or ()) if is_text else [])
    return _tries[about]


def _write_tries() -> None:
    """Write all guesses that JSON can hold; one that a learner wrote as code may be anything."""
    known = _read_state("tries.json") if is_learner_copy() else {}
    for about, tries in _tries.items():
        with suppress(TypeError, ValueError):
            known[about] = json.loads(json.dumps({"guess": tries.guess, "wrong": tries.wrong}))
    _write_state("tries.json", known)


def read_figure(name: str) -> dict[str, Any]:
    """Return the traits of a figure that were stored in the learner's copy; empty elsewhere."""
    found = _read_state("figures.json").get(name) if is_learner_copy() else None
    return found if isinstance(found, dict) else {}


def store_figure(name: str, traits: dict[str, Any]) -> None:
    """Store traits of a figure in the learner's copy."""
    if is_learner_copy():
        _write_state("figures.json", _read_state("figures.json") | {name: traits})


def _write_state(name: str, state: dict[str, Any]) -> None:
    if is_learner_copy():
        with suppress(OSError):  # a page goes on without it
            replace_text(get_notebook_folder() / STATE_FOLDER / name, json.dumps(state, indent=1, sort_keys=True))


def _read_state(name: str) -> dict[str, Any]:
    file = get_notebook_folder() / STATE_FOLDER / name
    with suppress(OSError, ValueError, RecursionError):
        # Never wait for a FIFO, nor read without end.
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if isinstance(found, dict):
            return found
    return {}


def store_outcome(about: str, outcome: GuessOutcome) -> None:
    """Keep how a guess went. The first time counts: afterwards the answer is known."""
    if about in (known := read_outcomes()):
        return
    _outcomes[about] = outcome
    _write_state("guesses.json", {**known, about: outcome})


def read_outcomes() -> dict[str, GuessOutcome]:
    """Return how guesses went, by question."""
    kept = {name: how for name, how in _read_state("guesses.json").items() if how in (*ORDINALS, "shown")}
    return kept | _outcomes


def summarize_guesses(chapter: int, questions: int) -> str:
    """Say how the guesses of a chapter went.

    Args:
        chapter: its number.
        questions: how many it asks.

    Example:
        >>> summarize_guesses(3, 5)
        'no guess yet, of 5'

    """
    outcomes = [how for about, how in read_outcomes().items() if about.startswith(f"{chapter:02}.")]
    if not outcomes:
        return f"no guess yet, of {questions}"
    later = [f", {outcomes.count(each)} at the {each} try" for each in ORDINALS[1:] if each in outcomes]
    return f"{outcomes.count(ORDINALS[0])} of {questions} right at once{''.join(later)}"
