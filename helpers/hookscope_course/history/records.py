"""Read what `make history` recorded, and hold the torch that runs here against it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hookscope.pictures.picture import Table
from hookscope_course.history import facts
from hookscope_course.history.facts import FACTS, Answer

__all__ = [
    "COMMAND",
    "FACTS",
    "MISSING",
    "RECORDS",
    "change_table",
    "changes",
    "describe_deviations",
    "format_answer",
    "format_spans",
    "full_history",
    "get_current_answers",
    "get_installed_release",
    "get_newest_release",
    "history",
    "holds",
    "matches",
    "parse_release",
    "read_records",
    "releases",
    "releases_where",
    "shorten_answer",
]

MISSING = facts.MISSING
RECORDS = Path(__file__).with_name("records.json")
COMMAND = "make history"
"""The command that writes the records."""

Answers = Mapping[str, Answer]


def read_records() -> dict[str, Any]:
    """Return records.json: `{"versions": {release: record}, "not_installed": {release: reason}}`."""
    records: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return records


def parse_release(release: str) -> tuple[int, ...]:
    """Return what sorts releases by age: "1.10.0" after "1.9.0"."""
    return tuple(int(part) for part in re.findall(r"\d+", release.partition("+")[0]))


def format_answer(answer: Answer) -> str:
    """Write an answer for people: a list as its length and its names.

    Example:
        >>> format_answer(["register_hook"])
        '1: register_hook'

    """
    if isinstance(answer, str):
        return answer
    return f"{len(answer)}: {', '.join(answer)}" if answer else "0"


def shorten_answer(answer: str) -> str:
    """Cut an answer that is long."""
    return answer if len(answer) <= 60 else f"{answer[:59]}…"


def format_spans(chosen: Sequence[str]) -> str:
    """Write some of the recorded releases as spans without a gap.

    Example:
        >>> format_spans(["1.0.0", "1.0.1", "1.2.0"])
        '1.0.0 to 1.0.1, 1.2.0'

    """
    runs: list[list[str]] = []
    for before, release in zip(["", *releases()], releases(), strict=False):
        if release in chosen:
            if before in chosen:
                runs[-1].append(release)
            else:
                runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"


def history(name: str) -> dict[str, str]:
    """Return what the releases answer that were asked for one fact: `{release: answer}`, oldest first.

    Raises:
        KeyError: no such fact; names them all.

    """
    return {release: format_answer(answer) for release, answer in _get_answers(name).items()}


def full_history() -> list[str]:
    """Return the facts that every recorded release was asked for; one that was added later has the newest alone."""
    return [name for name in FACTS if len(_get_answers(name)) == len(releases())]


def matches(answer: Answer, expected: str) -> bool:
    """Say whether an answer, or one entry of a list, is the expected one, in which "…" stands for anything.

    Example:
        >>> matches(["register_hook"], "register_hook"), matches("RuntimeError: no", "RuntimeError…")
        (True, True)

    """
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    found = [answer] if isinstance(answer, str) else [format_answer(answer), *answer]
    return any(re.fullmatch(pattern, one) for one in found)


def holds(name: str, expected: str) -> bool:
    """Say whether the torch that runs here answers as expected."""
    _check_name(name)
    return matches(_run_facts()[name], expected)


def releases_where(name: str, expected: str) -> list[str]:
    """Return the recorded releases that answer as expected."""
    return [release for release, answer in _get_answers(name).items() if matches(answer, expected)]


def changes(name: str) -> dict[str, str]:
    """Return the answers by the release that brought them; each holds until the next.

    Example:
        >>> changes("pre_hook_returns")
        {'1.0.0': '6', '1.2.0': '60'}

    """
    found: dict[str, str] = {}
    last = None
    for release, answer in history(name).items():
        if answer != last:
            found[release] = last = answer
    return found


def releases() -> list[str]:
    """Return the recorded releases, oldest first."""
    return [*_read_answers()]


def get_newest_release() -> str:
    """Return the newest recorded release."""
    return releases()[-1]


def get_current_answers() -> dict[str, str]:
    """Return what the torch that runs here answers."""
    return {name: format_answer(answer) for name, answer in _run_facts().items()}


def describe_deviations(version: str, now: Answers, records: Mapping[str, Answers] | None = None) -> str:
    """Say how a torch differs from its record; empty if it does not.

    One that has no record is held against that of another patch of the same release, or else against the newest.

    Args:
        version: of that torch, as in ``torch.__version__``.
        now: what it answers.
        records: `{release: answers}`; by default the recorded ones.

    """
    records = _read_answers() if records is None else records
    release = version.partition("+")[0]  # "+cpu" and "+cu130" are the same release
    alike = [other for other in records if parse_release(other)[:2] == parse_release(release)[:2]]
    compared = release if release in records else max(alike or records, key=parse_release)
    lines = []
    for name, before in records[compared].items():
        if now.get(name) != before:
            one = FACTS[name]
            chapters = ", ".join(f"{chapter:02}" for chapter in one.chapters)
            lines += [f"- {one.question} ({name})", f"  The record of torch {compared} says: {format_answer(before)}"]
            lines += [f"  Your torch {release} says now: {format_answer(now.get(name, MISSING))}"]
            lines += [f"  Taught in chapter {chapters}."]
    if not lines:
        return ""
    head = f"Your torch {release} does not answer as the record of torch {compared} says."
    way_out = f"Correct those chapters, then renew the record: {COMMAND} RELEASES={release}"
    return "\n".join([head, *lines, way_out])


def get_installed_release() -> str:
    """Return the release of the torch that runs here, without what stands after a plus sign."""
    return str(torch.__version__).partition("+")[0]


def change_table(names: Sequence[str], caption: str = "") -> Table:
    """Return what changed, one line per release and fact."""
    rows = [
        {"behavior": FACTS[name].label, "since torch": release, "answer": shorten_answer(answer)}
        for name in names
        for release, answer in changes(name).items()
    ]
    return Table(rows, caption)


@cache
def _read_answers() -> dict[str, Answers]:
    return {release: record["answers"] for release, record in read_records()["versions"].items()}


@cache
def _run_facts() -> dict[str, Answer]:
    return facts.run()


def _get_answers(name: str) -> dict[str, Answer]:
    _check_name(name)
    return {release: answers[name] for release, answers in _read_answers().items() if name in answers}


def _check_name(name: str) -> None:
    if name not in FACTS:
        raise KeyError(f"no fact {name!r}; there are {', '.join(FACTS)}")
