"""A report that is judged point by point: a reason for each point that is not given, and statements to choose from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["NOTHING_YET", "Criterion", "Points", "RefusedError", "judge_statements"]

NOTHING_YET = "nothing is written yet"


class Criterion(NamedTuple):
    """What one point is given for, and why it is not given; an empty reason gives it."""

    asked: str
    problem: str


class RefusedError(Exception):
    """Why a hook gets no point."""


class Points:
    """The points of a report, each with its reason.

    Attributes:
        criteria: in the order of the question.

    """

    def __init__(self) -> None:
        self.criteria: list[Criterion] = []

    @property
    def points(self) -> int:
        """How many of the points are given."""
        return sum(not problem for _, problem in self.criteria)

    def to_text(self) -> str:
        """Return the points, one line for each criterion."""
        lines = [
            f"{number}. {'✗' if problem else '✓'} {asked}{f': {problem}' if problem else ''}"
            for number, (asked, problem) in enumerate(self.criteria, start=1)
        ]
        return "\n".join([f"{self.points} of {len(self.criteria)} points.", *lines])


def judge_statements(limits: object, statements: Mapping[str, tuple[str, str]]) -> str:
    """Say why the chosen letters are not those of the two true statements; "" if they are.

    Args:
        limits: what was handed in.
        statements: by letter, what is said, and why it is false; the reason is empty if it is true.

    """
    if limits is None:
        return NOTHING_YET
    if not isinstance(limits, Collection) or not {*limits} <= statements.keys():
        return f"`limits` is {limits!r}; write the letters of two statements, such as {{'A', 'B'}}"
    for letter in sorted({*limits}):
        if reason := statements[letter][1]:
            return f"{letter} goes too far: {reason}"
    return "" if len({*limits}) == 2 else "one more is true of every such report"
