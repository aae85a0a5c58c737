"""End a chapter, or the whole course: check that no hook is left, and sum up the guesses and exercises."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import hookscope
from hookscope.pictures import Picture
from hookscope_course.lessons import folder_of
from hookscope_course.paths import LESSONS
from hookscope_course.practice import guess_results
from hookscope_course.practice.exercise_parser import read_exercises
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.output_gate import gate
from hookscope_course.practice.question import questions_of

if TYPE_CHECKING:
    from hookscope.widgets.base import HookWidget

__all__ = ["certificate", "chapter_end"]


def chapter_end(chapter: int, *models: Any) -> Card:
    """Say whether a hook is left, and how the guesses and exercises of a chapter went.

    Args:
        chapter: its number.
        *models: the models, tensors and optimizers that were used.

    Raises:
        LookupError: there is no such chapter.

    Example:
        >>> import torch
        >>> net = torch.nn.ReLU()
        >>> chapter_end(3, net)
        0 hooks are left on ReLU.
        >>> handle = net.register_forward_hook(print)
        >>> chapter_end(3, net).message
        'on ReLU. `hookscope.census(…).remove_all()` removes it.'

    """
    from hookscope_course.learner.progress import NOTEBOOK_FOLDER, read_solved

    gate.leave_question()
    folder = folder_of(chapter)
    left = len(hookscope.census(*models))
    names = ", ".join(dict.fromkeys(type(model).__name__ for model in models))
    said = [f"on {names}."]
    if left:
        said.append(f"`hookscope.census(…).remove_all()` removes {'it' if left == 1 else 'them'}.")
    if guess_results.is_learner_copy():
        questions, done = len(questions_of(chapter)), read_solved(NOTEBOOK_FOLDER)
        solved = sum(name.startswith(f"{chapter:02}.") for name in done)
        said.append(f"Your guesses: {guess_results.summarize_guesses(chapter, questions)}.")
        said.append(f"{solved} of {len(read_exercises(folder / 'exercises.md'))} exercises solved.")
    heading = f"{left} hook{' is' if left == 1 else 's are'} left"
    return Card(heading, " ".join(said), "wrong" if left else "right")


def certificate(figure: HookWidget) -> Picture:
    """Sum up the guesses and exercises of each part of the course that was begun, with a figure of the learner's own.

    Args:
        figure: the figure; its picture is shown as it is now.

    """
    from hookscope_course.learner.progress import NOTEBOOK_FOLDER, read_solved

    guesses, done, rows = guess_results.read_outcomes(), read_solved(NOTEBOOK_FOLDER), list[dict[str, object]]()
    totals = [0, 0, 0, 0]
    for part in tomllib.loads((LESSONS / "index" / "course.toml").read_text(encoding="utf-8"))["part"]:
        asked = [about for chapter in part["chapters"] for about in questions_of(chapter)]
        files = [folder_of(chapter) / "exercises.md" for chapter in part["chapters"]]
        names = [exercise.number for file in files for exercise in read_exercises(file)]
        right = sum(guesses.get(about) == "first" for about in asked)
        solved = sum(name in done for name in names)
        if not solved and not any(about in guesses for about in asked):
            continue
        counts = (right, len(asked), solved, len(names))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        guessed, exercised = (f"{some} of {all_}" for some, all_ in (counts[:2], counts[2:]))
        rows.append({"part": part["name"], "guesses right at once": guessed, "exercises solved": exercised})
    if not rows:
        rows.append({"part": "none begun", "guesses right at once": "", "exercises solved": ""})
    said = "Your journey through hookscope: {} of {} guesses right at once, {} of {} exercises solved.".format(*totals)
    return Picture(figure.png, figure.alt, said, rows, "Part by part")
