"""What is declared beside a check: what its exercise may change, and which cheats it has no way to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Check = TypeVar("Check", bound=Callable[..., Any])


def allows(*kinds: str) -> Callable[[Check], Check]:
    """Let the answers of an exercise change what it asks them to change.

    Everything else that a call of an answer changes is refused by the guard.

    Args:
        kinds: names in `snapshot.KINDS`, as in `@allows("hooks", "parameter grad")`.

    Raises:
        ValueError: there is no such kind.

    Example:
        >>> @allows("hooks")
        ... def check_q1(register):
        ...     ...
        >>> allowed_by(check_q1)
        ('hooks',)

    """
    from hookscope_course.practice.snapshot import KINDS  # here, since the builder reads exercises and needs no torch

    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"there is no kind of change {unknown[0]!r}; there are: {', '.join(KINDS)}")

    def declare(check: Check) -> Check:
        check.allows = (*allowed_by(check), *kinds)  # type: ignore[attr-defined]
        return check

    return declare


def blind_to(**cheats: str) -> Callable[[Check], Check]:
    """Say which cheats of tests/course/test_cheats.py are none for this exercise, each with the reason.

    Example:
        >>> @blind_to(first_result_forever="there is one right result, whatever the input")
        ... def check_q1(hook):
        ...     ...
        >>> list(blind_spots_of(check_q1))
        ['first_result_forever']

    """

    def declare(check: Check) -> Check:
        check.blind_to = blind_spots_of(check) | cheats  # type: ignore[attr-defined]
        return check

    return declare


def allowed_by(check: Callable[..., Any]) -> tuple[str, ...]:
    """Return the kinds of change that a check allows."""
    return tuple(getattr(check, "allows", ()))


def blind_spots_of(check: Callable[..., Any]) -> dict[str, str]:
    """Return the cheats that are none for a check, with the reasons."""
    return dict(getattr(check, "blind_to", {}))
