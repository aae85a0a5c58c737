"""Exercises of chapter 07: a hook on a tensor used twice, a hook that names a NaN, equal totals, and a broken run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.chapters.ch07_training_run import make_run
from hookscope_course.practice import Wrong, allows
from hookscope_course.practice.check_helpers import (
    ERROR_HIDDEN,
    BreakingLayer,
    add_foreign_hooks,
    count_hooks,
    format_numbers,
    hides_errors,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, returns


def _send_back() -> float:
    x = torch.tensor(3.0, requires_grad=True)
    y = 2 * x
    y.register_hook(lambda grad: grad + 1)  # type: ignore[no-untyped-call]
    return float(torch.autograd.grad(5 * y + 4 * y, x)[0])


check_q1 = returns(
    _send_back,
    what="a number",
    reasons={
        18: "18 arrives at `x` without the hook; add 1 at `y` and continue from there",
        22: "you get 22 if the hook adds 1 to each of the two parts, but it waits for their sum and is called once",
        10: "10 is the gradient that leaves `y`; one step further back is `x`, and `y` is `2 * x`",
        19: "you get 19 if 1 is added at `x`, but the hook is on `y`, before the factor 2",
    },
    otherwise="`x.grad` is not {answer}; write down the gradient that arrives at `y`, the one that the hook returns "
    "and the one at `x`",
)


def _root_of(values: list[float]) -> dict[str, Tensor]:
    x = torch.tensor(values, requires_grad=True)
    root = x.sqrt()
    return {"x": x, "root": root, "y": torch.where(x > 0, root, 0)}


@adds_hook(right="the NaN is found")
def check_q2(stop_at_nan: Callable[[str, Tensor], Any]) -> Wrong | None:
    good = _root_of([1.0, 4.0])
    for name, tensor in good.items():
        stop_at_nan(name, tensor)
    try:
        torch.autograd.backward(good["y"].sum())
    except ValueError:
        return Wrong("your hook raised ValueError although no gradient had a NaN")
    if good["x"].grad is None or good["x"].grad.tolist() != [0.5, 0.25]:
        found = "None" if good["x"].grad is None else format_numbers(good["x"].grad.tolist())
        return Wrong(f"without a NaN, `x.grad` should stay [0.5, 0.25], but with your hooks it is {found}")
    bad = _root_of([0.0, 4.0])
    for name, tensor in bad.items():
        stop_at_nan(name, tensor)
    try:
        torch.autograd.backward(bad["y"].sum())
    except ValueError as error:
        if not re.search(r"\bx\b", str(error)):
            return Wrong(f"your message, {str(error)!r}, does not say that it was `x`")
        if re.search(r"\b(root|y)\b", str(error)):
            return Wrong(f"your message, {str(error)!r}, names more than `x`, the tensor that the hook is on")
    except (RuntimeError, ArithmeticError, AssertionError) as error:
        return Wrong(
            f"your hook found the NaN, but it raised {type(error).__name__}: {error}. Raise a ValueError: the "
            "exercise asks for it, and a caller would catch it"
        )
    else:
        return Wrong("the gradient of `x` was [nan, 0.25], but your hook raised no ValueError")
    return _wrong_stop(stop_at_nan)


_NAN, _INF = float("nan"), float("inf")
_ARRIVING = (
    ("one of six gradients of `weight` was NaN", (0, 0, 0, 0, 0, _NAN), True),
    ("three of six gradients of `weight` were NaN", (_NAN, 1, _NAN, _NAN, 2, 3), True),
    ("all six gradients of `weight` were NaN", (_NAN,) * 6, True),
    ("a gradient with inf and -inf in it has no NaN (their sum is one)", (-_INF, 0, 0, 0, 0, _INF), False),
    ("a gradient of 1000 and -1e300 has no NaN", (1000, -1e300, 0, 1e-300, 2, 3), False),
)


def _wrong_stop(stop_at_nan: Callable[[str, Tensor], Any]) -> Wrong | None:
    """Try the second pass, other shapes, float64, NaNs and large numbers."""
    for what, values, stops in _ARRIVING:
        weight = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
        arrives = torch.tensor(values, dtype=torch.float64).reshape(3, 2)
        stop_at_nan("weight", weight)
        root = 1 * weight
        torch.autograd.backward(root, torch.zeros_like(arrives), retain_graph=True)  # the first pass is healthy
        try:
            torch.autograd.backward(root, arrives, retain_graph=True)
        except ValueError as error:
            if not stops:
                return Wrong(f"{what}, but your hook raised ValueError")
            if not re.search(r"\bweight\b", str(error)):
                return Wrong(f"the tensor is called `weight`, but your message is {str(error)!r}")
        else:
            if stops:
                return Wrong(f"in a second pass, {what}, but your hook raised no ValueError")
            if weight.grad is None or not torch.equal(weight.grad, arrives):
                return Wrong(f"{what}, but your hook changed it; it should only check")
    return None


@adds_hook()
def check_q3(keep_totals: Callable[[Tensor], Any]) -> Wrong | None:
    for values in (torch.tensor([3.0, 5.0]), torch.ones(3, 1, dtype=torch.float64)):
        if wrong := _wrong_totals(keep_totals, values.requires_grad_()):
            return wrong
    weight, arrives = torch.ones(4, requires_grad=True), torch.tensor([0.25, -1.5, 3, 0])
    totals = keep_totals(weight)
    weight.register_hook(lambda grad: grad / 2)  # type: ignore[no-untyped-call]  # somebody else's, and later
    for passes in range(1, 6):
        torch.autograd.backward(weight, arrives)
        if len(totals) != passes or not torch.equal(totals[-1], passes * arrives / 2):
            last = format_numbers(totals[-1].tolist()) if totals else "nothing"
            return Wrong(
                f"another hook halves each gradient, {format_numbers(arrives.tolist())}; after pass {passes} `.grad` "
                f"is {format_numbers((passes * arrives / 2).tolist())}, but your list ends with {last}"
            )
    return None


def _wrong_third(totals: list[Tensor], weight: Tensor, once: str) -> Wrong | None:
    """Set the gradient to None, as an optimizer does, and go on with another pass."""
    weight.grad = None
    torch.autograd.backward((2 * weight).sum())
    last = format_numbers(totals[-1].flatten().tolist())
    if len(totals) == 3 and last == once:
        return None
    return Wrong(
        f"then someone sets `weight.grad` to None, and after a third pass it is {once}; your list ends with {last}. "
        "Copy `weight.grad`; do not add up gradients yourself"
    )


def _wrong_totals(keep_totals: Callable[[Tensor], Any], weight: Tensor) -> Wrong | None:
    once, twice = (format_numbers([2.0 * passes] * weight.numel()) for passes in (1, 2))
    totals = keep_totals(weight)
    if not isinstance(totals, list):
        return Wrong(f"`keep_totals` returned {totals!r}; it should return the list `totals`")
    for _ in range(2):
        torch.autograd.backward((2 * weight).sum())
    found = "None" if weight.grad is None else format_numbers(weight.grad.flatten().tolist())
    if found != twice:
        return Wrong(
            f"after two passes `weight.grad` should be {twice}, but it is {found}; your hook should only watch"
        )
    if len(totals) != 2:
        return Wrong(f"the length of your list is {len(totals)}; after two passes it should be 2")
    if not all(isinstance(total, Tensor) for total in totals):
        return Wrong(f"the list holds {totals!r}; it should hold two tensors")
    kept = " and ".join(format_numbers(total.flatten().tolist()) for total in totals)
    if kept == f"{once} and {twice}" and all(total.shape == weight.shape for total in totals):
        return _wrong_third(totals, weight, once)
    reasons = {
        f"{twice} and {twice}": "the first entry was right after the first pass, but the second pass changed it",
        f"{once} and {once}": "those are the gradients of each pass; it should hold the total after each pass",
    }
    return Wrong(f"the list holds {kept}: {reasons.get(kept, f'it should hold {once} and {twice}')}")


class _Root(nn.Module):
    """Returns the root of each value; the slope at 0 is inf, not NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


def _make_run_with_root() -> tuple[nn.Module, Callable[[], None]]:
    """Build a run in which only an inf reaches the input of a layer."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), _Root(), nn.Linear(2, 1)).double()
    model.get_submodule("0").load_state_dict({"weight": torch.ones(2, 2)})
    rows = torch.ones(3, 2, 2, dtype=torch.float64)
    rows[2, 1] = 0

    def train() -> None:
        for batch in rows:
            model.zero_grad()
            torch.autograd.backward(model(batch).sum())

    return model, train


_Hunt = Callable[[nn.Module, Callable[[], None]], object]
_RUNS: tuple[tuple[str, Callable[[], tuple[nn.Module, Callable[[], None]]], tuple[int, str] | None], ...] = (
    ("in the run above", make_run, (4, "4")),
    (
        "in a run whose first batch has the blank row",
        lambda: make_run(1, 0),
        (0, "2"),
    ),
    ("in a longer run, with three Linears before the length", lambda: make_run(3, 7, 9), (7, "6")),
    ("in a run in which a root makes an inf, and no input of a layer gets a NaN", _make_run_with_root, (2, "1")),
    ("in a run without a blank row", lambda: make_run(2, 9), None),
)


@allows("hooks", "parameters", "parameter grad")
def check_q4(hunt: _Hunt, length: Callable[[Tensor], Tensor]) -> Wrong | None:
    for when, make, expected in _RUNS:
        model, train = make()
        trained = list[int]()

        def run(train: Callable[[], None] = train, trained: list[int] = trained) -> None:
            trained.append(1)
            train()

        found = hunt(add_foreign_hooks(model), run)
        if len(trained) != 1:
            return Wrong(f"your `hunt` called `train()` {len(trained)} times; call it once, with the hooks on")
        if wrong := find_left_hooks(model):
            return wrong
        if found != expected:
            return Wrong(_explain_find(found, expected, when))
    model, train = make_run()
    model.add_module("last", BreakingLayer())
    hidden = hides_errors(lambda: hunt(model, train))
    if count_hooks(model):
        return Wrong("a layer raised an error, and hooks are still on the model; use `with` or `finally`")
    return Wrong(ERROR_HIDDEN) if hidden else _wrong_length(length)


def _explain_find(found: object, expected: tuple[int, str] | None, when: str) -> str:
    if expected is None:
        return f"{when}, `hunt` returned {found!r}; all gradients are finite, so it should return None"
    step, name = expected
    said = f"{when}, `hunt` returned {found!r}; it should return {expected}"
    if not isinstance(found, tuple) or len(found) != 2:
        return said
    if found[0] == step + 1 and found[1] == name:
        return f"{said}: count the steps from 0"
    if found[0] == step and found[1] == str(int(name) - 1):
        return f"{said}: layer {found[1]} returns the tensor whose gradient breaks; the layer that reads it broke it"
    if found[0] == step:
        return f"{said}: the step is right. Within it, keep the first gradient that breaks"
    if isinstance(found[0], int) and found[0] > step:
        return f"{said}: after the first broken step, all weights are NaN, so keep the first find, not a later one"
    return said


def _wrong_length(length: Callable[[Tensor], Tensor]) -> Wrong | None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    lengths = length(rows)
    if not isinstance(lengths, Tensor) or lengths.shape != (3, 1):
        shape = tuple(lengths.shape) if isinstance(lengths, Tensor) else repr(lengths)
        return Wrong(f"`hunt` is right. For three rows `length` should return a tensor (3, 1); yours is {shape}")
    found = format_numbers([round(value, 3) for value in lengths.flatten().tolist()])
    if not torch.allclose(lengths.detach().flatten(), torch.tensor([5.0, 0, 1]).double(), atol=0.005):
        return Wrong(f"`hunt` is right. The rows have the lengths [5, 0, 1]; your `length` returns {found}")
    if not lengths.requires_grad:
        return Wrong("`hunt` is right, but your `length` cuts the gradient, so the layers before it do not train")
    (grad,) = torch.autograd.grad(lengths.sum(), rows)
    if not grad.isfinite().all():
        return Wrong("`hunt` is right, but the gradient of `length` at the blank row is still not finite")
    if not torch.allclose(grad[[0, 2]], rows.detach()[[0, 2]] / torch.tensor([[5.0], [1.0]]).double(), atol=0.005):
        return Wrong("`hunt` is right, but `length` changes the gradients of the rows that were fine")
    return None
