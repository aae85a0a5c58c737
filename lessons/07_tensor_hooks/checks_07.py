"""Exercises of chapter 07: a hook on a tensor used twice, a hook that names a NaN, and totals that are all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hookscope_course.exercises import Wrong, allows


def _numbers(values: Any) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"


def check_q1(result: object) -> Wrong | None:
    if isinstance(result, Tensor) and result.numel() == 1:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, int | float):
        return Wrong(f"the answer is a number, not a {type(result).__name__}")
    x = torch.tensor(3.0, requires_grad=True)
    y = 2 * x
    y.register_hook(lambda grad: grad + 1)  # type: ignore[no-untyped-call]
    torch.autograd.backward(5 * y + 4 * y)
    assert x.grad is not None
    expected = x.grad.item()
    if result == expected:
        return None
    reasons: dict[float, str] = {
        18: "that is without the hook",
        22: "you let the hook add 1 to each part; it waits for the sum and is called once",
        10: "that is `y.grad`; one step back is `x`, and `y` is `2 * x`",
        19: "you added the 1 at `x`, but the hook is on `y`, before the factor 2",
    }
    return Wrong(
        reasons.get(float(result), f"it is not {result:g}; what arrives at `y`, and what does the hook return?")
    )


def _root_of(values: list[float]) -> dict[str, Tensor]:
    x = torch.tensor(values, requires_grad=True)
    root = x.sqrt()
    return {"x": x, "root": root, "y": torch.where(x > 0, root, 0)}


@allows("hooks")
def check_q2(stop_at_nan: Callable[[str, Tensor], Any]) -> Wrong | None:
    good = _root_of([1.0, 4.0])
    handles = [stop_at_nan(name, tensor) for name, tensor in good.items()]
    try:
        torch.autograd.backward(good["y"].sum())
    except ValueError:
        return Wrong("your hook raised ValueError though every gradient was a number")
    if good["x"].grad is None or good["x"].grad.tolist() != [0.5, 0.25]:
        found = "None" if good["x"].grad is None else _numbers(good["x"].grad.tolist())
        return Wrong(f"with healthy gradients `x.grad` should stay [0.5, 0.25], and with your hooks it is {found}")
    bad = _root_of([0.0, 4.0])
    for name, tensor in bad.items():
        stop_at_nan(name, tensor)
    try:
        torch.autograd.backward(bad["y"].sum())
    except ValueError as error:
        if not re.search(r"\bx\b", str(error)):
            return Wrong(f"your message, {str(error)!r}, does not say that it was `x`")
    else:
        return Wrong("the gradient of `x` was [nan, 0.25], and no ValueError came")
    if not all(isinstance(handle, RemovableHandle) for handle in handles):
        return Wrong(f"the NaN is found, but `stop_at_nan` returned {handles[0]!r}; return the handle")
    return None


@allows("hooks")
def check_q3(keep_totals: Callable[[Tensor], Any]) -> Wrong | None:
    weight = torch.tensor([3.0, 5.0], requires_grad=True)
    totals = keep_totals(weight)
    if not isinstance(totals, list):
        return Wrong(f"`keep_totals` returned {totals!r}; it should return the list `totals`")
    for _ in range(2):
        torch.autograd.backward((2 * weight).sum())
    if weight.grad is None or weight.grad.tolist() != [4, 4]:
        found = "None" if weight.grad is None else _numbers(weight.grad.tolist())
        return Wrong(f"after two passes `weight.grad` should be [4, 4] and is {found}; your hook should only look")
    if len(totals) != 2:
        return Wrong(f"there were two passes, and the list has {len(totals)} entries")
    if not all(isinstance(total, Tensor) for total in totals):
        return Wrong(f"the list holds {totals!r}, not the two tensors")
    kept = " and ".join(_numbers(total.tolist()) for total in totals)
    if kept == "[2, 2] and [4, 4]":
        return None
    reasons = {
        "[4, 4] and [4, 4]": "both entries are one tensor, `weight.grad` itself, and the second pass wrote into it",
        "[2, 2] and [2, 2]": "that is what arrived in each pass, not the total after it",
    }
    return Wrong(f"the list holds {kept}: {reasons.get(kept, 'it should hold [2, 2] and [4, 4]')}")
