"""End a chapter: check that no hook is left, and show how the guesses and exercises went."""

from __future__ import annotations

from typing import Any

import hookscope
from hookscope_course.lessons import folder_of
from hookscope_course.practice import score
from hookscope_course.practice.card import Card
from hookscope_course.practice.question import questions_of
from hookscope_course.practice.text import read_exercises

__all__ = ["chapter_end"]


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
        'on ReLU. `hookscope.census(…).remove_all()` takes it off.'

    """
    from hookscope_course.learner.progress import HERE, read

    folder = folder_of(chapter)
    left = len(hookscope.census(*models))
    names = ", ".join(dict.fromkeys(type(model).__name__ for model in models))
    said = [f"on {names}."]
    if left:
        said.append(f"`hookscope.census(…).remove_all()` removes {'it' if left == 1 else 'them'}.")
    questions = len(questions_of(chapter))
    if any(about.startswith(f"{chapter:02}.") for about in score.read()):
        said.append(f"Your guesses: {score.line_of(chapter, questions)}.")
    if done := [name for name in read(HERE) if name.startswith(f"{chapter:02}.")]:
        said.append(f"{len(done)} of {len(read_exercises(folder / 'exercises.md'))} exercises solved.")
    heading = f"{left} hook{' is' if left == 1 else 's are'} left"
    return Card(heading, " ".join(said), "wrong" if left else "right")
