"""Each verb of `Edit`: what to give it, and the formula in plain torch of what it should make of values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass
class EditContext:
    """What an edit of one tensor is computed from.

    Attributes:
        whole: the tensor.
        places: which of its values are meant: their numbers, in the shape in which the edit has the values.
        number: which call of the layer it is.
        kept: what another run had there in each call, if the edit takes from one.

    """

    whole: Tensor
    places: Tensor
    number: int
    kept: list[Tensor]

    def of(self, tensor: Tensor) -> Tensor:
        """Give the values at the same places of a tensor of the same shape."""
        return tensor.reshape(-1)[self.places].to(self.whole.dtype)

    def mean(self, samples: list[Tensor]) -> Tensor:
        """Give the mean over samples, for each of them."""
        return self.of(torch.cat(samples).mean(0, keepdim=True).expand(self.whole.shape))


def make_ramp(shape: tuple[int, ...]) -> Tensor:
    """Numbers from -1 to 1."""
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A method of `Edit`, what to give it for a `Spec`, and the formula of what it should make of the values."""

    verb: str
    value: Callable[[Any], Any]
    formula: Callable[[Tensor, EditContext], Tensor]
    captures: bool = False  # whether it is given another run


def list_captured(spec: Any) -> Any:
    """The other run."""
    return spec.other.seen if spec.other else None


KINDS = {
    "set": Kind("set", lambda spec: 0.25, lambda t, here: torch.full_like(t, 0.25)),
    "add": Kind("add", lambda spec: 1.5, lambda t, here: t + 1.5),
    "scale": Kind("scale", lambda spec: -2.0, lambda t, here: t * -2.0),
    "map": Kind("map", lambda spec: torch.sin, lambda t, here: t.sin()),
    "map, in place": Kind("map", lambda spec: lambda t: t.mul_(3), lambda t, here: t * 3),
    "swap": Kind("swap", lambda spec: make_ramp(spec.shape), lambda t, here: here.of(make_ramp(here.whole.shape))),
    "swap, capture": Kind("swap", list_captured, lambda t, here: here.of(here.kept[here.number - 1]), captures=True),
    "mean": Kind("mean", lambda spec: None, lambda t, here: here.mean([here.whole])),
    "mean, capture": Kind("mean", list_captured, lambda t, here: here.mean(here.kept), captures=True),
}
