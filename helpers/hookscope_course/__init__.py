"""What the lessons import besides `hookscope`: exercises, guesses, the blank, a check of the setup.

    from hookscope_course import Guess, ____, exercises

    q1, q2, q3 = exercises(2)      # those of chapter 02

`practice` reads and checks answers, `history` knows how hooks behaved in every release of torch, `ranks` runs a
function in several processes, `lessons` is the folder of the chapters, `learner` makes a learner's own copy of them,
`maps` draws where hooks sit.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.figures.hook_map import hook_map
    from hookscope_course.learner.progress import progress
    from hookscope_course.practice import Exercise, Feedback, Guess, Wrong, ____, exercises
    from hookscope_course.practice.chapter_end import certificate, chapter_end
    from hookscope_course.setup_check import setup

__all__ = [
    "Exercise",
    "Feedback",
    "Guess",
    "Wrong",
    "____",
    "certificate",
    "chapter_end",
    "exercises",
    "hook_map",
    "progress",
    "setup",
]
_ROOMS = {"certificate": "practice.chapter_end", "chapter_end": "practice.chapter_end"}
_ROOMS |= {"hook_map": "figures.hook_map", "progress": "learner.progress", "setup": "setup_check"}


def __getattr__(name: str) -> Any:
    """Import what is asked for only now: making a learner's copy needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_ROOMS.get(name, 'practice')}"), name)
    return value
