"""Every exercise of every chapter: its solution is right, each wrong answer is told why, a blank is not attempted.

`make processors` runs these tests with other instructions and on two threads, too.
"""

import pytest
import torch

from hookscope_course import Wrong, exercises
from lessons.build import lesson_source
from tests.shared.exercises import NO_RETURN, RIGHT, TRIPLE, make_sample, prove

NUMBERS = [int(lesson_source.name_of(path)[:2]) for path in lesson_source.chapter_files()]
EXERCISES = [exercise for number in NUMBERS for exercise in exercises(number)]


@pytest.mark.parametrize("exercise", [make_sample(), *EXERCISES], ids=lambda exercise: exercise.number)
def test_exercise(exercise):
    prove(exercise)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_a_starter_solves_nothing(exercise):
    """A starter has a blank in it, or is one of the wrong answers: a bug to mend."""
    assert exercise.text.starter.strip() != exercise.text.solution.strip()
    assert "____" in exercise.text.starter or exercise.text.is_bug


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"check": lambda answer: None}, "though it is a wrong answer"),
        ({"check": lambda answer: Wrong("[1, 2] arrived as [1, 2], as [3, 6]")}, "the solution is not accepted"),
        ({"wrong": ((NO_RETURN, "[1, 2] arrived as [1, 2]"), (TRIPLE, "as [1, 2]"))}, "is not in"),
        ({"wrong": ((NO_RETURN, "arrived"), (RIGHT.replace("2 *", "2.0 *"), "arrived"))}, "though it is a wrong"),
        ({"wrong": ((NO_RETURN, "arrived"), (TRIPLE.replace("3", "____"), "arrived"))}, "not attempted, though"),
        ({"right": (RIGHT, TRIPLE)}, "a right answer is not accepted: Not yet"),
        ({"solution": RIGHT.replace("2", "____")}, "not accepted: Not attempted"),
        ({"solution": RIGHT.replace("2", "two")}, "not accepted: Not yet. Line 2 of your double"),
    ],
)
def test_the_proof_fails_on_a_bad_exercise(changes, complaint):
    with pytest.raises(AssertionError, match=complaint):
        prove(make_sample(**changes))


def test_the_proof_sees_a_global_hook():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    with handle, pytest.raises(AssertionError, match="_global_forward_hooks"):
        prove(make_sample())
