"""Points for an answer: what each of them is given for, and why it is not given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hookscope_course.practice.exercise import Wrong

__all__ = ["Criterion", "count_points", "judge", "list_points"]

Point = Callable[..., str | None]


class Criterion(NamedTuple):
    """What one point is given for, and why it is not given; an empty reason gives it."""

    asked: str
    problem: str


def count_points(criteria: Iterable[Criterion]) -> int:
    """Return how many points are given."""
    return sum(not problem for _, problem in criteria)


def list_points(criteria: Sequence[Criterion]) -> str:
    """Return the points, one line for each criterion.

    Example:
        >>> print(list_points([Criterion("it runs", ""), Criterion("it stops", "it ran on")]))
        1 of 2 points.
        1. ✓ it runs
        2. ✗ it stops: it ran on

    """
    lines = [
        f"{number}. {'✗' if problem else '✓'} {asked}{f': {problem}' if problem else ''}"
        for number, (asked, problem) in enumerate(criteria, start=1)
    ]
    return "\n".join([f"{count_points(criteria)} of {len(criteria)} points.", *lines])


def judge(rubric: Sequence[tuple[str, Point]], *answers: Any) -> Wrong | None:
    """Try an answer at each point of a rubric; what it raises costs that point.

    Args:
        rubric: what is asked, with a function that returns why there is no point, or None.
        answers: handed to each function.

    """
    criteria = [Criterion(asked, run_point(point, *answers)) for asked, point in rubric]
    return None if count_points(criteria) == len(criteria) else Wrong(list_points(criteria))


def run_point(point: Point, *answers: Any) -> str:
    """Return why there is no point; "" if there is one."""
    try:
        return point(*answers) or ""
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
