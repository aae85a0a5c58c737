"""Compute the new values of an edit: a value set, added or multiplied, one from another run, or a function's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.captures import Capture
from hookscope.edits.aim import Aim
from hookscope.edits.parts import get, listed, tensors

__all__ = [
    "UNCHANGED", "Change", "Moment", "adding", "checked", "freezing", "mapping", "masking", "meaning", "noising",
    "projecting", "scaling",
]  # fmt: skip

UNCHANGED = object()
"""What a change gives instead of values where it leaves a call as it is."""


@dataclass(slots=True)
class Moment:
    """Where and when a tensor is edited.

    Attributes:
        name: says so in an error message.
        number: which call of it this is.
        tensor: the whole tensor, of which a part is edited.
        aim: that part.
        held: what the edit keeps from one call to the next.

    """

    name: Callable[[int | None], str]
    number: int | None
    tensor: Tensor
    aim: Aim
    held: dict[str, Any]

    @property
    def label(self) -> str:
        """Say so."""
        return self.name(self.number)


@dataclass(eq=False, slots=True)
class Change:
    """What an edit makes of the values it is aimed at.

    Attributes:
        verb: name of the method of `Edit`.
        value: what that was given.
        compute: takes the values and the moment, and returns the new ones; writes to nothing it is given.
        foreign: whether what it returns may belong to somebody else.
        numbered: whether it depends on which call this is.
        options: what else there is: what the method was given, what a capture has of each call.

    """

    verb: str
    value: Any
    compute: Callable[[Tensor, Moment], Any]
    foreign: bool = False
    numbered: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Say it in a few words."""
        value = self.value
        if isinstance(value, Tensor):
            shown = f"tensor{tuple(value.shape)}"
        elif isinstance(value, Capture):
            shown = "from a capture"
        else:
            shown = getattr(value, "__name__", None) or ("" if value is None else str(value))
        return f"{self.verb} {shown}".rstrip()


def checked(value: Any, verb: str) -> Any:
    """Return a number or a tensor; raise for anything else, before a pass."""
    if not isinstance(value, (int, float, complex, Tensor)):
        wants = "map takes functions" + (", swap takes captures" if verb == "set" else "")
        raise TypeError(f"{verb} takes a number or a tensor, not {type(value).__name__}; {wants}")
    return value


def fitting(value: Any, region: Tensor, moment: Moment) -> Any:
    """Return a value in the dtype of the values that it is to meet; raise if it would change their shape or kind."""
    if not isinstance(value, Tensor):
        same_kind = type(value) is float and region.is_floating_point()
        if not same_kind and torch.result_type(region, value) is not region.dtype:
            raise TypeError(f"{moment.label}: {value!r} does not fit the dtype {region.dtype}")
        return value
    if value.device != region.device and value.dim():
        raise ValueError(f"{moment.label}: the value is on {value.device}, the tensor on {region.device}")
    if not torch.can_cast(value.dtype, region.dtype):
        raise TypeError(f"{moment.label}: the value has dtype {value.dtype}, the tensor {region.dtype}")
    given, there = value.shape, region.shape
    fits = len(given) <= len(there) and all(a in (1, b) for a, b in zip(reversed(given), reversed(there), strict=False))
    if not fits:
        raise ValueError(f"{moment.label}: the value has shape {tuple(given)}, what it is to meet {tuple(there)}")
    return value.to(region.device, region.dtype)


def setting(value: Any) -> Change:
    """Put a value in the place of others."""
    checked(value, "set")

    def compute(region: Tensor, moment: Moment) -> Tensor:
        new = fitting(value, region, moment)
        if _wraps(value, region.dtype):
            raise TypeError(f"{moment.label}: {value if value is new else 'the value'} does not fit {region.dtype}")
        # A copy of a tensor, which would be overwritten otherwise if an in-place operation came next.
        return new.expand(region.shape).clone() if isinstance(new, Tensor) else torch.full_like(region, new)

    return Change("set", value, compute)


def _wraps(value: Any, dtype: torch.dtype) -> bool:
    """Whether whole numbers are too large, or too small, for a dtype of whole numbers."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return False
    limits = torch.iinfo(dtype)
    if not isinstance(value, Tensor):
        return not limits.min <= value <= limits.max
    return value.dtype != dtype and not bool(((value >= limits.min) & (value <= limits.max)).all())


def adding(value: Any) -> Change:
    """Add a value."""
    checked(value, "add")
    return Change("add", value, _with(operator.add, value))


def scaling(value: Any) -> Change:
    """Multiply by a value."""
    checked(value, "scale")
    return Change("scale", value, _with(operator.mul, value))


def _with(operation: Callable[[Any, Any], Any], value: Any) -> Callable[[Tensor, Moment], Any]:
    def compute(region: Tensor, moment: Moment) -> Any:
        if type(value) is float and region.is_floating_point():  # as nearly always: nothing is to be asked
            return operation(region, value)
        return operation(region, fitting(value, region, moment))

    return compute


def mapping(function: Any) -> Change:
    """Call a function with a copy."""
    if not callable(function):
        raise TypeError(f"map takes a function of a tensor, not {type(function).__name__}; set takes values")
    return Change("map", function, lambda region, moment: function(region.clone()), foreign=True)


def masking(keep: Any, other: Any = 0) -> Change:
    """Keep the values where a mask is true, or by how much it is more than 0."""
    if not isinstance(keep, Tensor):
        raise TypeError(f"mask takes a tensor, of bool or of numbers from 0 to 1, not {type(keep).__name__}")
    checked(other, "other= of mask")

    def compute(region: Tensor, moment: Moment) -> Tensor:
        instead = fitting(other, region, moment)
        if keep.dtype is torch.bool:
            fitting(keep, region, moment)
            return torch.where(keep, region, instead)
        soft: Tensor = fitting(keep, region, moment)
        # 0 times infinity is no number: what has no part in the mixture must not spoil it.
        old = torch.where((soft == 0) & ~region.isfinite(), 0, region)
        new = torch.as_tensor(instead, dtype=region.dtype, device=region.device)
        new = torch.where((soft == 1) & ~new.isfinite(), 0, new)
        mixed: Tensor = old * soft + (1 - soft) * new
        return mixed

    return Change("mask", keep, compute, options={"other": other})


def noising(std: float, seed: int) -> Change:
    """Add Gaussian noise that is the same whenever the seed and the number of the call are."""
    if not isinstance(std, (int, float)) or isinstance(std, bool) or not 0 <= std < math.inf:
        raise ValueError(f"std={std!r}: give a number that is not negative")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed={seed!r}: give a whole number that is not negative")

    def compute(region: Tensor, moment: Moment) -> Tensor:
        if not region.is_floating_point():
            raise TypeError(f"{moment.label}: noise goes on floating point numbers, not on {region.dtype}")
        # Not torch's generators, from which the model takes its random numbers; and the same on every device.
        own = np.random.default_rng([seed, moment.number or 0])
        noise = torch.from_numpy(own.standard_normal(region.shape, np.float32))
        return region + std * noise.to(region.device, region.dtype)

    return Change("noise", std, compute, numbered=True, options={"seed": seed})


def projecting(direction: Any) -> Change:
    """Take away what points along a direction, on the last axis."""
    if not isinstance(direction, Tensor) or direction.dim() != 1:
        raise TypeError(
            "project_out takes a direction: a tensor with one axis, as long as the last axis of the layer's"
        )
    if not direction.is_floating_point():
        raise TypeError(f"project_out takes a direction of floating point numbers, not of {direction.dtype}; .float()")
    if not direction.requires_grad and not (direction.any() and direction.isfinite().all()):
        raise ValueError("project_out needs a direction that is not zero, and finite")

    def compute(region: Tensor, moment: Moment) -> Tensor:
        if not region.dim() or region.shape[-1] != len(direction):
            raise ValueError(
                f"{moment.label}: the direction has {len(direction)} numbers, but what it is to be taken from has "
                f"shape {tuple(region.shape)}"
            )
        unit: Tensor = fitting(direction / direction.norm(), region, moment)
        along = (region * unit).sum(-1, keepdim=True).to(region.dtype)  # autocast sums in float32 on a GPU
        return region - along * unit

    return Change("project_out", direction, compute)


def swapping(source: Any, kept: list[Tensor] | None) -> Change:
    """Take the same place of the same call in another run.

    Args:
        source: a capture, or one tensor as large as the one that is edited.
        kept: what the capture has of each call.

    """
    if kept is None:
        if not isinstance(source, Tensor):
            number = f"; set takes a number such as {source!r}" if isinstance(source, (int, float, complex)) else ""
            raise TypeError(f"swap takes a tensor like the layer's, or a capture, not {type(source).__name__}{number}")
        return Change("swap", source, lambda region, moment: same(moment.aim.cut(source), region, moment))

    def compute(region: Tensor, moment: Moment) -> Tensor:
        number = moment.number or 0
        if number > len(kept):
            raise LookupError(f"{moment.label}: the capture has {len(kept)} calls of this layer, and no call {number}")
        return same(moment.aim.cut(kept[number - 1]), region, moment)

    return Change("swap", source, compute, numbered=True, options={"kept": kept})


def freezing(source: Any, kept: list[Tensor] | None) -> Change:
    """Give again what was there in the first call that is meant, or in another run."""
    if kept is None:
        if source is not None:
            raise TypeError(
                f"freeze takes a capture, or nothing for the first call, not {type(source).__name__}; set takes values"
            )

        def first(region: Tensor, moment: Moment) -> Any:
            number, values = moment.held.setdefault("first", (moment.number, region.detach().clone()))
            # The first call itself stays, also where a checkpoint runs it again.
            return UNCHANGED if number == moment.number else same(values, region, moment)

        return Change("freeze", None, first, numbered=True)

    def compute(region: Tensor, moment: Moment) -> Tensor:
        number = 1 if len(kept) == 1 else moment.number or 0
        if number > len(kept):
            raise LookupError(f"{moment.label}: the capture has {len(kept)} calls of this layer, and no call {number}")
        return same(moment.aim.cut(kept[number - 1]).detach(), region, moment)

    return Change("freeze", source, compute, numbered=True, options={"kept": kept})


def meaning(source: Any, kept: list[Tensor] | None) -> Change:
    """Take the mean over samples, over those of a capture if there is one."""
    if kept is None:
        if source is not None:
            raise TypeError(f"mean takes a capture, or nothing for the mean of the batch, not {type(source).__name__}")
        return Change("mean", None, lambda region, moment: _mean([moment.tensor], region, moment))
    compute = lambda region, moment: _mean(kept, region, moment)  # noqa: E731
    return Change("mean", source, compute, options={"kept": kept})


def _mean(kept: list[Tensor], region: Tensor, moment: Moment) -> Tensor:
    whole = moment.tensor
    if not whole.dim() or not whole.is_floating_point():
        raise TypeError(f"{moment.label}: a mean over samples needs floating point numbers with a batch axis")
    if any(tensor.shape[1:] != whole.shape[1:] for tensor in kept):
        raise ValueError(f"{moment.label}: the capture has samples of another shape than {tuple(whole.shape[1:])}")
    mean = (kept[0] if len(kept) == 1 else torch.cat(kept)).mean(0, keepdim=True)
    return same(moment.aim.cut(mean.expand_as(whole)), region, moment).clone()


def same(new: Tensor, region: Tensor, moment: Moment) -> Tensor:
    """Return values of just the shape of those that they take the place of, as a copy."""
    if new.shape != region.shape:
        raise ValueError(
            f"{moment.label}: the other run has shape {tuple(new.shape)} there, this one {tuple(region.shape)}"
        )
    new = fitting(new, region, moment)
    return new.clone()


def chosen(value: Any, path: tuple[int | str, ...] | None, label: str) -> Tensor:
    """Return the tensor that is meant in what a capture kept; without a path, the only one."""
    if path is None:
        everything = list(tensors(value))
        if len(everything) != 1:
            raise LookupError(f"{label}: say which part: {listed(value)}")
        return everything[0][1]
    found = get(value, path)
    if not isinstance(found, Tensor):
        raise LookupError(f"{label}: part={path!r} is no tensor; there is {listed(value)}")
    return found
