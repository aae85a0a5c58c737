"""Small nets and layers that a check hands to answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice.check_helpers import BreakingLayer

__all__ = ["Applies", "KeepsArguments", "Raises", "make_broken", "make_double", "make_linear", "make_row"]


class Applies(nn.Module):
    """A layer that applies a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Return what the function returns."""
        return self.function(*args)


class KeepsArguments(nn.Module):
    """A layer that returns its first argument, and keeps all of the last call in `args`."""

    args: tuple[Any, ...] = ()

    def forward(self, *args: Any) -> Any:
        """Return the first argument."""
        self.args = args
        return args[0] if args else None


class Raises(nn.Module):
    """A layer that raises one error, the same each time."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, *args: object) -> Tensor:
        """Raise the error."""
        raise self.error


def make_double() -> Applies:
    """A layer that returns 2 * x."""
    return Applies(lambda x: 2 * x)


def make_broken() -> nn.Sequential:
    """A model of which the last layer raises `Broken`; it takes two numbers."""
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), BreakingLayer())


def make_linear(weight: float, size: int = 1) -> nn.Linear:
    """A Linear layer that multiplies `size` numbers by `weight`, of float64 if there are several."""
    layer = nn.Linear(size, size, bias=False, dtype=torch.float32 if size == 1 else torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight * torch.eye(size))
    return layer


def make_row(*values: float) -> Tensor:
    """One sample, of float64 if it has several numbers."""
    return torch.tensor([values], dtype=torch.float32 if len(values) == 1 else torch.float64)
