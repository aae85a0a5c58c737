"""Put a chapter's exercises together: what is read in its exercises.md, and the functions that check answers."""

from __future__ import annotations

from importlib import import_module

from hookscope_course.lessons import folder_of
from hookscope_course.practice.exercise import Exercise
from hookscope_course.practice.exercise_parser import ExerciseTextError, read_exercises
from hookscope_course.practice.output_gate import gate


def exercises(chapter: int) -> tuple[Exercise, ...]:
    """Return the exercises of a chapter, in their order.

    Args:
        chapter: its number.

    Raises:
        LookupError: there is no such chapter.
        ExerciseTextError: its exercises.md is not complete, or an exercise has no check; names file and line.

    Example:
        >>> q1, q2, q3 = exercises(2)
        >>> q1.check(["B", "E", "C", "D", "A"])
        Not yet. You put B before E, but the container can only return after the layers inside it.

    """
    gate.leave_question()  # the exercises begin; a question that is still open stays open
    folder = folder_of(chapter)
    files = sorted(folder.glob(f"checks_{chapter:02}*.py"))  # several, where a chapter has many exercises
    checks = [import_module(f"hookscope_course.lessons.{folder.name}.{file.stem}") for file in files]
    made = []
    for text in read_exercises(folder / "exercises.md"):
        check = next((vars(each)[name] for each in checks if (name := f"check_{text.name}") in vars(each)), None)
        if check is None:
            raise ExerciseTextError(f"{text.location}: checks_{chapter:02}.py has no function check_{text.name}")
        made.append(Exercise(text, check))
    return tuple(made)
