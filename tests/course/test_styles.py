"""A right answer is right in every style that Python has for it, not only in that of the solution."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

import pytest

from hookscope_course import Exercise
from tests.course.test_cheats import EXERCISES, solution_of, told


def as_lambda(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    class Own:
        def answer(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Own().answer


def as_object(function: Callable[..., Any]) -> Callable[..., Any]:
    class Own:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Own()


def as_decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return decorated


STYLES = {"lambda": as_lambda, "method": as_method, "object": as_object, "decorated": as_decorated, "partial": partial}
# What it checks runs in other processes, which import a function by its name.
ELSEWHERE = {"13.1", "13.2"}


def hands_in_a_function(exercise: Exercise) -> bool:
    """Whether its solution does, as far as can be read without running it, which takes seconds for all of them."""
    tree = ast.parse(f"{exercise.text.before}\n{exercise.text.solution}")
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    checks = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "check"]
    return any(isinstance(each, ast.Name) and each.id in defined for call in checks for each in call.args)


FUNCTIONS = [exercise for exercise in EXERCISES if exercise.number not in ELSEWHERE and hands_in_a_function(exercise)]


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda exercise: exercise.number)
def test_a_function_is_right_in_every_style(exercise: Exercise) -> None:
    answers = solution_of(exercise)
    refused = {}
    for name, style in STYLES.items():
        feedback = told(exercise, tuple(style(each) if isinstance(each, FunctionType) else each for each in answers))
        if feedback.outcome != "right":
            refused[name] = feedback.message
    assert refused == {}


def test_most_exercises_take_a_function() -> None:
    assert len(FUNCTIONS) > len(EXERCISES) / 2
