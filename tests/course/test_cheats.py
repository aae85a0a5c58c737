"""No check can be fooled: every solution, spoiled in every way, is refused, or the check says why it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookscope_course import Exercise, Feedback, Wrong, exercises
from hookscope_course.practice import blind_to
from hookscope_course.practice.check_options import allowed_by, blind_spots_of
from lessons.build import lesson_source
from tests.course.cheating_answers import CHEATS, MUST_ACT, other_values, spoil
from tests.shared.exercises import make_sample

NUMBERS = [int(lesson_source.name_of(path)[:2]) for path in lesson_source.chapter_files()]
EXERCISES = [exercise for number in NUMBERS for exercise in exercises(number)]
# These run in other processes, which do not say whether a cheat made a difference: those that do. never_removes is not
# among them: the solution is a capture, which needs no handle to take its hooks off.
ELSEWHERE = {
    "13.1": "returns_none draws_from_torch sets_the_dtype",
    "13.2": "returns_none returns_zeros registers_nothing one_hook_more "
    "registers_globally changes_values sets_requires_grad changes_parameters changes_parameter_grad flips_training "
    "sets_an_attribute draws_from_torch sets_the_dtype sets_grad_off swallows_errors",
}


def solution_of(exercise: Exercise) -> tuple[Any, ...]:
    """What the solution hands to the check."""

    class Taker:
        def check(self, *answers: Any) -> None:
            self.answers = answers

    taker = Taker()
    names = {"__name__": "__main__", "torch": torch, "nn": nn, "F": F, exercise.name: taker}
    exec(exercise.text.before, names)
    exec(exercise.text.solution, names)
    return taker.answers


def told(exercise: Exercise, answers: tuple[Any, ...]) -> Feedback:
    """Check answers, and undo what a cheat did to settings that torch has for all."""
    enabled = torch.is_grad_enabled()
    try:
        return exercise.check(*answers)
    finally:
        torch.set_grad_enabled(enabled)


def problems_of(exercise: Exercise) -> list[str]:
    """Say which cheats get through, and which declarations are not needed."""
    answers = solution_of(exercise)
    if not any(map(callable, answers)):
        return [
            f"{value!r} gets through or is not understood: {feedback}"
            for value in other_values(answers[0])
            if (feedback := told(exercise, (value, *answers[1:]))).outcome != "wrong" or "raised" in feedback.message
        ]
    allowed, blind = allowed_by(exercise._check), blind_spots_of(exercise._check)
    found = [f"there is no cheat {name}" for name in blind if name not in CHEATS]
    elsewhere = ELSEWHERE.get(exercise.number, "").split()
    for name, (make, kind) in CHEATS.items():
        if elsewhere and name not in elsewhere:
            continue
        acted = [True] * bool(elsewhere)
        cheat = make()
        feedback = told(exercise, tuple(spoil(answer, cheat, acted) for answer in answers))
        if name in blind or kind in allowed:
            if name in blind and feedback.outcome == "wrong":
                found.append(f"{name} is declared, and yet refused: {feedback}")
        elif feedback.outcome == "right" and (any(acted) or (acted and name in MUST_ACT)):
            found.append(f"{name} gets through" + ", for the check never makes it differ" * (not any(acted)))
        elif not any(acted) and feedback.outcome != "right":
            found.append(f"{name} did nothing, and yet: {feedback}")
    return found


# Each of their checks starts processes, trains, or runs a larger model, once for each of 20 cheats.
SLOW = {"12.1", "12.3", "13.2", "15.3", "16.3", "19.1", "20.1", "21.1"}


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(exercise, marks=[pytest.mark.slow] * (exercise.number in SLOW)) for exercise in EXERCISES],
    ids=lambda exercise: exercise.number,
)
def test_no_cheat_gets_through(exercise: Exercise) -> None:
    assert not problems_of(exercise)


def test_a_weak_check_is_found_out() -> None:
    """Accept whatever returns something once, and see what gets through."""

    def weak(answer: Any) -> Wrong | None:
        module = nn.Linear(2, 2)
        module.register_forward_pre_hook(answer)
        module(torch.tensor([1.0, 2.0]))
        return None

    found = problems_of(make_sample(weak))
    through = [line.split()[0] for line in found]
    assert through == ["returns_none", "returns_zeros", *MUST_ACT[:3], "removes_another_hook", "swallows_errors"]


def test_a_declaration_must_be_true() -> None:
    def check(answer: Any) -> Wrong | None:
        return None if answer(nn.Identity(), (torch.ones(1),)) else Wrong("nothing came")

    declared = blind_to(returns_none="it is none", flies="it cannot")(check)
    found = problems_of(make_sample(declared))
    assert "there is no cheat flies" in found
    assert "returns_none is declared, and yet refused: Not yet. Nothing came." in found
