"""Small nets that a check hands to answers, their numbers as text, and complaints about hooks and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import check_helpers
from hookscope_course.practice.check_helpers import SWALLOWED, Breaks, swallows
from hookscope_course.practice.exercise import Wrong

__all__ = ["NO_HOOK", "left_on", "linear", "numbers", "row", "swallowed"]


def linear(weight: float, size: int = 1) -> nn.Linear:
    """A Linear layer that multiplies `size` numbers by `weight`, of float64 if there are several."""
    layer = nn.Linear(size, size, bias=False, dtype=torch.float32 if size == 1 else torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight * torch.eye(size))
    return layer


def row(*values: float) -> Tensor:
    """One sample, of float64 if it has several numbers."""
    return torch.tensor([values], dtype=torch.float32 if len(values) == 1 else torch.float64)


def swallowed(answer: Callable[[nn.Module, Any], Any], given: Any = None) -> Wrong | None:
    """A complaint if an answer keeps to itself what a layer of the model raised."""
    breaking = nn.Sequential(linear(1.0), Breaks())
    given = row(1) if given is None else given
    return Wrong(SWALLOWED) if swallows(lambda: answer(breaking, given)) else None


def numbers(value: object) -> str:
    """A tensor, or a list of tensors and numbers, as one line of numbers that can be read."""
    if isinstance(value, Tensor):
        return numbers(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(numbers, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {numbers(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


NO_HOOK = "the answer is right, but you registered no hook; use one to find the answer"


def left_on(model: nn.Module, own: int = 0) -> Wrong | None:
    """A complaint if there is a hook on the model, beside so many of the check's own."""
    found = check_helpers.left_on(model) - own
    left = "a hook is" if found == 1 else f"{found} hooks are"
    return Wrong(f"the answer is right, but {left} still on the model; remove them") if found else None
