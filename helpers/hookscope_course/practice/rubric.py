"""Judge an answer point by point: what each point is given for, and why it is not given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hookscope_course.practice.exercise import Wrong

__all__ = ["NOTHING_YET", "Criterion", "Points", "RefusedError", "Review", "judge", "judge_statements", "run_point"]

NOTHING_YET = "nothing is written yet"
Point = Callable[..., str | None]


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

    Example:
        >>> print(Points(Criterion("it runs", ""), Criterion("it stops", "it ran on")).to_text())
        1 of 2 points.
        1. ✓ it runs
        2. ✗ it stops: it ran on

    """

    def __init__(self, *criteria: Criterion) -> None:
        self.criteria = [*criteria]

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


class Review(Points):
    """What is true of a report: a reason for each point.

    Attributes:
        report: the fields, as they were handed in.

    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__()
        self.report = report

    def give_points(self, asked: Iterable[str], problems: Iterable[str]) -> None:
        """Set the criteria: what each point is asked for, and why it is not given."""
        self.criteria = [Criterion(*each) for each in zip(asked, problems, strict=True)]

    def quote(self) -> str:
        """Return the sentence of the report, which nobody can test."""
        said = self.report.get("sentence")
        return f"“{' '.join(str(said).split())}”" if said else "(Your sentence is missing.)"

    def count_points(self) -> str:
        """Say what was tested, and how many points that gave."""
        return f"All but the sentence was tested: {self.points} of {len(self.criteria)} points."


def judge(rubric: Sequence[tuple[str, Point]], *answers: Any) -> Wrong | None:
    """Try an answer at each point of a rubric; what it raises costs that point.

    Args:
        rubric: what is asked, with a function that returns why there is no point, or None.
        answers: handed to each function.

    """
    found = Points(*(Criterion(asked, run_point(point, *answers)) for asked, point in rubric))
    return None if found.points == len(rubric) else Wrong(found.to_text())


def run_point(point: Point, *answers: Any) -> str:
    """Return why there is no point; "" if there is one."""
    try:
        return point(*answers) or ""
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


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
