"""Exercises of chapter 07: a hook on a tensor used twice, a hook that names a NaN, and totals that are all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


def _numbers(values: Any) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"


def _check_x_grad(result: object) -> Wrong | None:
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


q1 = Exercise(
    "07.1",
    question="""What is in `x.grad`? Say it before you run it.
```
x = torch.tensor(3.0, requires_grad=True)
y = 2 * x
y.register_hook(lambda grad: grad + 1)
(5 * y + 4 * y).backward()
```""",
    difficulty="easy",
    minutes=2,
    check=_check_x_grad,
    why="5 + 4 arrive at `y`, the hook is called once and makes 10, and `x` gets twice that.",
    hints=(
        "Begin at the end. What arrives at `y` from `5 * y`, and what from `4 * y`?",
        "The hook gets the sum of the two, once.",
    ),
    solution="""
q1.check(20)
""",
    wrong={
        "q1.check(18)\n": "without the hook",
        "q1.check(22)\n": "is called once",
        "q1.check(10)\n": "that is `y.grad`",
        "q1.check(19)\n": "the hook is on `y`",
        "q1.check(torch.tensor(18.0))\n": "without the hook",
        "q1.check(7)\n": "it is not 7",
        'q1.check("20")\n': "a number, not a str",
    },
)


def _root_of(values: list[float]) -> dict[str, Tensor]:
    x = torch.tensor(values, requires_grad=True)
    root = x.sqrt()
    return {"x": x, "root": root, "y": torch.where(x > 0, root, 0)}


def _check_stop(stop_at_nan: Callable[[str, Tensor], Any]) -> Wrong | None:
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


q2 = Exercise(
    "07.2",
    question="""`y` is fine here, and yet `x.grad` is [nan, 0.25]. In a large model you would like to know in which \
step it broke.
```
x = torch.tensor([0.0, 4.0], requires_grad=True)
root = x.sqrt()
y = torch.where(x > 0, root, 0)
y.sum().backward()
```
Write `stop_at_nan(name, tensor)`. It hangs a hook on the tensor and returns the handle. If a NaN is in the gradient, \
the hook raises a `ValueError` with the name in it. Otherwise it leaves the gradient alone.""",
    difficulty="medium",
    minutes=5,
    check=_check_stop,
    why="At `root` the gradient was [0, 1]. At `x` it had a NaN: 0 times infinity, the slope of the root at 0. "
    "So `sqrt` broke it.",
    hints=(
        "Define the hook inside: `def hook(grad):`. There it can use `name`.",
        "`grad.isnan().any()` is True if there is a NaN anywhere.",
        "`return tensor.register_hook(hook)`; the hook itself returns nothing.",
    ),
    solution="""
def stop_at_nan(name, tensor):
    def hook(grad):
        if grad.isnan().any():
            raise ValueError(f"NaN in the gradient of {name}")

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""",
    wrong={
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if grad.isnan().all():
            raise ValueError(f"NaN in the gradient of {name}")

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "the gradient of `x` was [nan, 0.25], and no ValueError came",
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if (grad == float("nan")).any():
            raise ValueError(f"NaN in the gradient of {name}")

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "no ValueError came",
        """
def stop_at_nan(name, tensor):
    if tensor.grad.isnan().any():
        raise ValueError(f"NaN in the gradient of {name}")

q2.check(stop_at_nan)
""": "line 2 of your stop_at_nan",
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if not grad.isnan().any():
            raise ValueError(f"NaN in the gradient of {name}")

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "raised ValueError though every gradient was a number",
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if grad.isnan().any():
            raise ValueError(f"NaN in the gradient of {name}")
        return 0 * grad

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "should stay [0.5, 0.25], and with your hooks it is [0, 0]",
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if grad.isnan().any():
            raise ValueError("NaN in a gradient")

    return tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "'NaN in a gradient', does not say that it was `x`",
        """
def stop_at_nan(name, tensor):
    def hook(grad):
        if grad.isnan().any():
            raise ValueError(f"NaN in the gradient of {name}")

    tensor.register_hook(hook)

q2.check(stop_at_nan)
""": "returned None; return the handle",
    },
)


def _check_totals(keep_totals: Callable[[Tensor], Any]) -> Wrong | None:
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


q3 = Exercise(
    "07.3",
    question="""A colleague wants to keep `weight.grad` as it is after each pass. For a weight with two numbers and \
two passes of [2, 2] that should be [2, 2] and [4, 4]. The list holds [4, 4] and [4, 4]. Find the defect and mend it.
```
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.grad)

    weight.register_post_accumulate_grad_hook(hook)
    return totals
```""",
    difficulty="medium",
    minutes=3,
    check=_check_totals,
    why="torch adds to `.grad` in place, so the list needs a copy of its own for each pass.",
    hints=(
        "After two passes: is `totals[0] is totals[1]`?",
        "There is one tensor `weight.grad`, and every pass adds to it. `detach()` makes no copy.",
    ),
    solution="""
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.grad.clone())

    weight.register_post_accumulate_grad_hook(hook)
    return totals

q3.check(keep_totals)
""",
    wrong={
        """
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.grad.detach())

    weight.register_post_accumulate_grad_hook(hook)
    return totals

q3.check(keep_totals)
""": "both entries are one tensor",
        """
def keep_totals(weight):
    totals = []
    weight.register_hook(lambda grad: totals.append(grad.clone()))
    return totals

q3.check(keep_totals)
""": "the list holds [2, 2] and [2, 2]: that is what arrived in each pass",
        """
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.grad)
        weight.grad = None

    weight.register_post_accumulate_grad_hook(hook)
    return totals

q3.check(keep_totals)
""": "`weight.grad` should be [4, 4] and is None",
        """
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.clone())

    weight.register_post_accumulate_grad_hook(hook)
    return totals

q3.check(keep_totals)
""": "the list holds [3, 5] and [3, 5]: it should hold",
        """
def keep_totals(weight):
    totals = []

    def hook(weight):
        totals.append(weight.grad.tolist())

    weight.register_post_accumulate_grad_hook(hook)
    return totals

q3.check(keep_totals)
""": "not the two tensors",
        """
def keep_totals(weight):
    return [weight.grad.clone()] if weight.grad is not None else []

q3.check(keep_totals)
""": "the list has 0 entries",
        """
def keep_totals(weight):
    totals = []
    weight.register_post_accumulate_grad_hook(lambda weight: totals.append(weight.grad.clone()))

q3.check(keep_totals)
""": "returned None; it should return the list",
    },
)
