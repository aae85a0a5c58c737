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
    "alarm",
    "change_table",
    "changes",
    "full_history",
    "history",
    "holds",
    "installed",
    "live",
    "matches",
    "newest",
    "order",
    "read",
    "releases",
    "releases_where",
    "short",
    "spans",
    "text",
]

MISSING = facts.MISSING
RECORDS = Path(__file__).with_name("records.json")
COMMAND = "make history"
"""The command that writes the records."""

Answers = Mapping[str, Answer]


def read() -> dict[str, Any]:
    """Return records.json: `{"versions": {release: record}, "not_installed": {release: reason}}`."""
    records: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return records


def order(release: str) -> tuple[int, ...]:
    """Return what sorts releases by age: "1.10.0" after "1.9.0"."""
    return tuple(int(part) for part in re.findall(r"\d+", release.partition("+")[0]))


def text(answer: Answer) -> str:
    """Write an answer for people: a list as its length and its names.

    Example:
        >>> text(["register_hook"])
        '1: register_hook'

    """
    if isinstance(answer, str):
        return answer
    return f"{len(answer)}: {', '.join(answer)}" if answer else "0"


def short(answer: str) -> str:
    """Cut an answer that is long."""
    return answer if len(answer) <= 60 else f"{answer[:59]}…"


def spans(chosen: Sequence[str]) -> str:
    """Write some of the recorded releases as spans without a gap.

    Example:
        >>> spans(["1.0.0", "1.0.1", "1.2.0"])
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
    return {release: text(answer) for release, answer in _answers(name).items()}


def full_history() -> list[str]:
    """Return the facts that every recorded release was asked for; one that was added later has the newest alone."""
    return [name for name in FACTS if len(_answers(name)) == len(releases())]


def matches(answer: Answer, expected: str) -> bool:
    """Say whether an answer, or one entry of a list, is the expected one, in which "…" stands for anything.

    Example:
        >>> matches(["register_hook"], "register_hook"), matches("RuntimeError: no", "RuntimeError…")
        (True, True)

    """
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    found = [answer] if isinstance(answer, str) else [text(answer), *answer]
    return any(re.fullmatch(pattern, one) for one in found)


def holds(name: str, expected: str) -> bool:
    """Say whether the torch that runs here answers as expected."""
    _known(name)
    return matches(_run()[name], expected)


def releases_where(name: str, expected: str) -> list[str]:
    """Return the recorded releases that answer as expected."""
    return [release for release, answer in _answers(name).items() if matches(answer, expected)]


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
    return [*_records()]


def newest() -> str:
    """Return the newest recorded release."""
    return releases()[-1]


def live() -> dict[str, str]:
    """Return what the torch that runs here answers."""
    return {name: text(answer) for name, answer in _run().items()}


def alarm(version: str, now: Answers, records: Mapping[str, Answers] | None = None) -> str:
    """Say how a torch differs from its record; empty if it does not.

    One that has no record is held against that of another patch of the same release, or else against the newest.

    Args:
        version: of that torch, as in ``torch.__version__``.
        now: what it answers.
        records: `{release: answers}`; by default the recorded ones.

    """
    records = _records() if records is None else records
    release = version.partition("+")[0]  # "+cpu" and "+cu130" are the same release
    alike = [other for other in records if order(other)[:2] == order(release)[:2]]
    compared = release if release in records else max(alike or records, key=order)
    lines = []
    for name, before in records[compared].items():
        if now.get(name) != before:
            one = FACTS[name]
            chapters = ", ".join(f"{chapter:02}" for chapter in one.chapters)
            lines += [f"- {one.question} ({name})", f"  The record of torch {compared} says: {text(before)}"]
            lines += [f"  Your torch {release} says now: {text(now.get(name, MISSING))}"]
            lines += [f"  Taught in chapter {chapters}."]
    if not lines:
        return ""
    head = f"Your torch {release} does not answer as the record of torch {compared} says."
    way_out = f"Correct those chapters, then renew the record: {COMMAND} RELEASES={release}"
    return "\n".join([head, *lines, way_out])


def installed() -> str:
    """Return the release of the torch that runs here, without what stands after a plus sign."""
    return str(torch.__version__).partition("+")[0]


def change_table(names: Sequence[str], caption: str = "") -> Table:
    """Return what changed, one line per release and fact."""
    rows = [
        {"behavior": FACTS[name].label, "since torch": release, "answer": short(answer)}
        for name in names
        for release, answer in changes(name).items()
    ]
    return Table(rows, caption)


@cache
def _records() -> dict[str, Answers]:
    return {release: record["answers"] for release, record in read()["versions"].items()}


@cache
def _run() -> dict[str, Answer]:
    return facts.run()


def _answers(name: str) -> dict[str, Answer]:
    _known(name)
    return {release: answers[name] for release, answers in _records().items() if name in answers}


def _known(name: str) -> None:
    if name not in FACTS:
        raise KeyError(f"no fact {name!r}; there are {', '.join(FACTS)}")
