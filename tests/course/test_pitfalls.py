"""Each bug of chapter 11 is still one, and so is what chapter 18 says of a model that torch runs in another way."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookscope_course import Exercise, exercises
from tests.shared.exercises import run_cell
from tests.shared.parsed_chapters import CHAPTERS

BUGS: dict[str, Exercise] = {exercise.name: exercise for exercise in exercises(11) if exercise.text.is_bug}
CHAPTER = next(chapter for chapter in CHAPTERS if chapter.number == "11")
CELLS = [cell.source for cell in CHAPTER.notebook.cells if cell.cell_type == "code"]


def broken(bug: Exercise) -> str:
    """The code of the bug: the first of its wrong answers."""
    return bug.text.wrong[0][0].strip("\n")


def test_five_bugs_and_a_box_to_seal() -> None:
    assert list(BUGS) == [f"q{number}" for number in range(1, 6)]
    assert [exercise.name for exercise in exercises(11)] == [*BUGS, "q6"]


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_in_the_chapter_and_still_a_bug(name: str) -> None:
    bug = BUGS[name]
    in_lesson = [re.sub(r"^ +____\n", "", cell, flags=re.MULTILINE) for cell in CELLS]
    assert broken(bug) in in_lesson, f"chapter 11 does not have the code of {name} as its checks have it"
    names = {"__name__": "__main__", "torch": torch, "nn": nn, "F": F, name: bug}
    exec(bug.text.before, names)
    symptom = bug.text.wrong[0][1]
    (fresh,) = (each for each in exercises(11) if each.name == name)
    for is_told in (False, True):
        feedback = run_cell(f"{broken(bug)}\n", names | {name: fresh})
        assert feedback.outcome == "not attempted", "it is as the learner found it"
        assert (symptom in feedback.message) is is_told, "what goes wrong is told at the second run"
    feedback = run_cell(f"{broken(bug)}  # run again", names)
    assert feedback.outcome == "wrong", (
        f"on torch {torch.__version__} bug {bug.number} is none any more: {bug.text.question!r} Chapter 11 must say so."
    )
    assert symptom in feedback.message, (
        f"on torch {torch.__version__} bug {bug.number} of chapter 11 has another symptom: {feedback.message!r}, "
        f"not {symptom!r}"
    )
