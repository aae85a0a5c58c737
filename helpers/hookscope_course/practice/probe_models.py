"""Small nets that a check hands to answers, their numbers as text, and complaints about hooks and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import check_helpers
from hookscope_course.practice.check_helpers import ERROR_HIDDEN, BreakingLayer, hides_errors
from hookscope_course.practice.exercise import Wrong

__all__ = ["NO_HOOK", "format_numbers", "make_linear", "make_row", "refuse_hidden_errors", "refuse_left_hooks"]


def make_linear(weight: float, size: int = 1) -> nn.Linear:
    """A Linear layer that multiplies `size` numbers by `weight`, of float64 if there are several."""
    layer = nn.Linear(size, size, bias=False, dtype=torch.float32 if size == 1 else torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight * torch.eye(size))
    return layer


def make_row(*values: float) -> Tensor:
    """One sample, of float64 if it has several numbers."""
    return torch.tensor([values], dtype=torch.float32 if len(values) == 1 else torch.float64)


def refuse_hidden_errors(answer: Callable[[nn.Module, Any], Any], given: Any = None) -> Wrong | None:
    """A complaint if an answer keeps to itself what a layer of the model raised."""
    breaking = nn.Sequential(make_linear(1.0), BreakingLayer())
    given = make_row(1) if given is None else given
    return Wrong(ERROR_HIDDEN) if hides_errors(lambda: answer(breaking, given)) else None


def format_numbers(value: object) -> str:
    """A tensor, or a list of tensors and numbers, as one line of numbers that can be read."""
    if isinstance(value, Tensor):
        return format_numbers(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_numbers, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_numbers(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


NO_HOOK = "the answer is right, but you registered no hook; use one to find the answer"


def refuse_left_hooks(model: nn.Module, own: int = 0) -> Wrong | None:
    """A complaint if there is a hook on the model, beside so many of the check's own."""
    found = check_helpers.count_hooks(model) - own
    left = "a hook is" if found == 1 else f"{found} hooks are"
    return Wrong(f"the answer is right, but {left} still on the model; remove them") if found else None
