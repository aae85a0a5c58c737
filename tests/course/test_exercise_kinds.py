"""The kinds of exercises: which answers they take for a value, and what they say of hooks and of calls of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookscope_course.practice import Wrong
from hookscope_course.practice.check_options import allowed_by, blind_spots_of
from hookscope_course.practice.exercise_kinds import (
    Check,
    WatchedCall,
    adds_hook,
    hook_that,
    order_of,
    returns,
    runs_model,
)

INTEGER = returns(3, what="an integer", reasons={4: "one too many"}, otherwise="it is not {answer}")
NUMBER = returns(lambda: 2.5, what="a number")
NUMBERS = returns([0, 2.5], what="a list of two numbers", reasons=lambda answer: f"the first is {answer[0]}")
TRUTH = returns(True, what="True or False")


@pytest.mark.parametrize(
    ("check", "answer", "reply"),
    [
        (INTEGER, 3, None),
        (INTEGER, 3.0, None),
        (INTEGER, torch.tensor([[3]]), None),
        (INTEGER, np.float32(3), None),
        (INTEGER, 4, "one too many"),
        (INTEGER, np.int64(7), "it is not 7"),
        (INTEGER, True, "your answer is a bool; it should be an integer"),
        (INTEGER, 2.5, "your answer is a float; it should be an integer"),
        (INTEGER, None, "your answer is None; it should be an integer"),
        (INTEGER, torch.ones(2), "your answer is a Tensor; it should be an integer"),
        (NUMBER, torch.tensor(2.5), None),
        (NUMBER, 2, "2 is not the answer"),
        (NUMBERS, [torch.tensor(0.0), 2.5], None),
        (NUMBERS, np.array([[0, 2.5]]), None),
        (NUMBERS, (1, 2.5), "the first is 1"),
        (NUMBERS, [0], "your answer is [0]; it should be a list of two numbers"),
        (NUMBERS, [0, False], "your answer is [0, False]; it should be a list of two numbers"),
        (TRUTH, True, None),
        (TRUTH, 1, "your answer is an int; it should be True or False"),
    ],
)
def test_a_value(check: Check, answer: object, reply: str | None) -> None:
    wrong = check(answer)
    assert (wrong and str(wrong)) == reply


@pytest.mark.parametrize("answer", ["CAB", "c, a, b", "C > A > B", ["CAB"], ("C", "A", "B"), ["c", "a", "b "]])
def test_an_order_in_many_spellings(answer: object) -> None:
    assert order_of("CAB")(answer) is None


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("AXB", 'your answer is \'AXB\'; it should be a list of three letters, such as ["A", "B", "C"]'),
        (3, 'your answer is an object of type int; it should be a list of three letters, such as ["A", "B", "C"]'),
        ("CAA", "use each of the letters A, B, C once; you gave C, A, A"),
        ("BCA", "B waits for A"),
        ("ACB", "letter 1 of your answer is A; on your machine it should be C"),
    ],
)
def test_an_order_that_is_wrong(answer: object, reply: str) -> None:
    assert str(order_of(lambda: "CAB", reasons={"BA": "B waits for A"})(answer)) == reply


def halve(x: torch.Tensor, by: float) -> torch.Tensor:
    return x / by


@pytest.mark.parametrize(
    ("hook", "reply"),
    [
        (lambda module, args: (args[0] / 2, *args[1:]), ""),
        (lambda module, args: None, "your hook returned None, so the layer got [2, 6] unchanged"),
        (lambda module, args: args[0] / 2, "a call with two arguments reached the layer with 1"),
        (lambda module, args: (args[0] / 2, *args[1:2]), "your hook lost or changed a third argument, a tensor"),
        (
            lambda module, args: (args[0] / 3, *args[1:]),
            "with `halve(2)` the layer got [0.666667, 2] instead",
        ),
        (lambda module, args: (args[0].float() / 2, *args[1:]), "an input of shape (3, 4) and dtype torch.float64"),
        (lambda module, args: (args[0].detach() / 2, *args[1:]), "the input has lost its gradient"),
        (None, "`halve(2)` returned None; it should return the hook function"),
    ],
)
def test_a_pre_hook_that_changes_its_input(hook: Any, reply: str) -> None:
    wrong = hook_that(changes=halve, settings=[(2.0,)], is_pre_hook=True)(lambda by: hook)
    assert reply in str(wrong or "")
    assert bool(wrong) == bool(reply)


def put(layer: nn.Module) -> Any:
    return layer.register_forward_hook(lambda module, args, output: None)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (put, ""),
        (lambda layer: put(layer) and None, "`put` returned None; return the handle"),
        (lambda layer: put(layer) and put(layer), "`remove()` on the handle you returned did not remove your hook"),
    ],
)
def test_a_handle_takes_off_all_that_was_registered(answer: Callable[[nn.Module], Any], reply: str) -> None:
    @adds_hook((1,), (2,), right="the hook is right")
    def check(put: Callable[[nn.Module], Any], size: int) -> Wrong | None:
        put(nn.Linear(size, size))
        return None

    assert reply in str(check(answer) or "")
    assert bool(check(answer)) == bool(reply)
    assert allowed_by(check) == ("hooks",)
    assert [*blind_spots_of(check)] == ["swallows_errors"]


def test_a_hook_that_stays_after_an_error_is_found() -> None:
    @runs_model(comes_off=True)
    def check(answer: Callable[[nn.Module, Any], Any]) -> Wrong | None:
        return None

    def forget(model: nn.Module, x: torch.Tensor) -> None:
        handle = put(model)
        model(x)
        handle.remove()

    assert "a layer raised an error, and 1 hook is still on the model" in str(check(forget))


@pytest.mark.parametrize(
    ("hook", "times", "reply"),
    [
        (None, 1, "it is right, but you registered no forward hook"),
        (lambda module, args, output: None, 1, ""),
        (lambda module, args, output: None, 2, "it is right, but you called the model 2 times"),
        (lambda module, args, output: 2 * output, 1, "it is right, but your hooks changed the model's output"),
        (lambda module, args, output: output.detach(), 1, "it is right, but the model's output has lost its gradient"),
    ],
)
def test_the_traces_of_a_call(hook: Any, times: int, reply: str) -> None:
    model, x = nn.Sequential(nn.Linear(1, 1)), torch.ones(1, 1)
    expected = model(x)

    def call() -> None:
        handle = model[0].register_forward_hook(hook) if hook else None
        for _ in range(times):
            model(x)
        if handle:
            handle.remove()

    wrong = WatchedCall(model, call).find_traces("it is right", expected)
    assert reply in str(wrong or "")
    assert bool(wrong) == bool(reply)


def test_a_call_that_never_runs_the_model() -> None:
    with pytest.raises(Wrong, match="never called"):
        WatchedCall(nn.Identity(), lambda: None)
