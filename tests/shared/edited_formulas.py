"""Each verb of `Edit`: what to give it, and the formula in plain torch and NumPy of what it should make of values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass
class Here:
    """What an edit of one tensor is computed from.

    Attributes:
        whole: the tensor.
        places: which of its values are meant: their numbers, in the shape in which the edit has the values.
        number: which call of the layer it is.
        kept: what another run had there in each call, if the edit takes from one.
        held: what the edit remembers from one call to the next.

    """

    whole: Tensor
    places: Tensor
    number: int
    kept: list[Tensor]
    held: dict[str, Any]

    def of(self, tensor: Tensor) -> Tensor:
        """Give the values at the same places of a tensor of the same shape."""
        return tensor.reshape(-1)[self.places].to(self.whole.dtype)

    def noise(self) -> Tensor:
        """Give what NumPy draws for this call."""
        drawn = np.random.default_rng([7, self.number]).standard_normal(tuple(self.places.shape), np.float32)
        return torch.from_numpy(drawn).to(self.whole.dtype)

    def mean(self, samples: list[Tensor]) -> Tensor:
        """Give the mean over samples, for each of them."""
        return self.of(torch.cat(samples).mean(0, keepdim=True).expand(self.whole.shape))

    def first(self, values: Tensor) -> Tensor | None:
        """Give the values of the first call that came here; None in that call itself."""
        number, found = self.held.setdefault("first", (self.number, values.detach().clone()))
        return None if number == self.number else found.clone()


def ramp(shape: tuple[int, ...]) -> Tensor:
    """Numbers from -1 to 1."""
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


def thirds(shape: tuple[int, ...]) -> Tensor:
    """False for each third value."""
    return torch.arange(math.prod(shape)).reshape(shape) % 3 > 0


def along(t: Tensor) -> Tensor:
    """A direction of length 1 on the last axis."""
    direction = torch.arange(1.0, t.shape[-1] + 1)
    return (direction / direction.norm()).to(t.dtype)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A method of `Edit`, what to give it for a `Spec`, and the formula of what it should make of the values."""

    verb: str
    value: Callable[[Any], Any]
    formula: Callable[[Tensor, Here], Tensor | None]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    captures: bool = False  # whether it is given another run


def captured(spec: Any) -> Any:
    """The other run."""
    return spec.other.seen if spec.other else None


KINDS = {
    "set": Kind("set", lambda spec: 0.25, lambda t, here: torch.full_like(t, 0.25)),
    "add": Kind("add", lambda spec: 1.5, lambda t, here: t + 1.5),
    "scale": Kind("scale", lambda spec: -2.0, lambda t, here: t * -2.0),
    "map": Kind("map", lambda spec: torch.sin, lambda t, here: t.sin()),
    "map, in place": Kind("map", lambda spec: lambda t: t.mul_(3), lambda t, here: t * 3),
    "swap": Kind("swap", lambda spec: ramp(spec.shape), lambda t, here: here.of(ramp(here.whole.shape))),
    "swap, capture": Kind("swap", captured, lambda t, here: here.of(here.kept[here.number - 1]), captures=True),
    "mask": Kind("mask", lambda spec: thirds(spec.region), lambda t, here: t.where(thirds(t.shape), 0.0)),
    "mask, soft": Kind(
        "mask",
        lambda spec: ramp(spec.region).abs(),
        lambda t, here: t * (keep := ramp(t.shape).abs().to(t.dtype)) + (1 - keep) * -1.5,
        {"other": -1.5},
    ),
    "mean": Kind("mean", lambda spec: None, lambda t, here: here.mean([here.whole])),
    "mean, capture": Kind("mean", captured, lambda t, here: here.mean(here.kept), captures=True),
    "noise": Kind("noise", lambda spec: 0.5, lambda t, here: t + 0.5 * here.noise(), {"seed": 7}),
    "project_out": Kind(
        "project_out",
        lambda spec: torch.arange(1.0, spec.region[-1] + 1),
        lambda t, here: t - (t * along(t)).sum(-1, keepdim=True) * along(t),
    ),
    "freeze": Kind("freeze", lambda spec: None, lambda t, here: here.first(t)),
    "freeze, capture": Kind(
        "freeze",
        captured,
        lambda t, here: here.of(here.kept[0 if len(here.kept) == 1 else here.number - 1]),
        captures=True,
    ),
}
