"""Compute the new values of an edit: set, add, multiply, take values from another run, or call a function."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.interp.edits.spec import UNCHANGED, EditContext, Operation

__all__ = [
    "add",
    "add_noise",
    "freeze",
    "map_values",
    "mask",
    "project_out",
    "scale",
    "set_values",
    "swap",
    "take_mean",
]  # fmt: skip


def check_value(value: Any, verb: str) -> Any:
    """Return a number or a tensor; raise an error for anything else, before a pass."""
    if not isinstance(value, (int, float, complex, Tensor)):
        wants = "map takes functions" + (", swap takes captures" if verb == "set" else "")
        raise TypeError(f"{verb} takes a number or a tensor, not {type(value).__name__}; {wants}")
    return value


def check_fit(value: Any, region: Tensor, context: EditContext) -> Any:
    """Cast a value to the dtype of the selected values. Raise an error if it does not fit their shape or dtype."""
    if not isinstance(value, Tensor):
        same_kind = type(value) is float and region.is_floating_point()
        if not same_kind and torch.result_type(region, value) is not region.dtype:
            raise TypeError(f"{context.label}: {value!r} does not fit the dtype {region.dtype}")
        return value
    if value.device != region.device and value.dim():
        raise ValueError(f"{context.label}: the value is on {value.device}, but the tensor is on {region.device}")
    if not torch.can_cast(value.dtype, region.dtype):
        raise TypeError(f"{context.label}: the value has dtype {value.dtype}, but the tensor has {region.dtype}")
    given, there = value.shape, region.shape
    fits = len(given) <= len(there) and all(a in (1, b) for a, b in zip(reversed(given), reversed(there), strict=False))
    if not fits:
        raise ValueError(
            f"{context.label}: the value has shape {tuple(given)}, which does not broadcast to the selected values, "
            f"shape {tuple(there)}"
        )
    return value.to(region.device, region.dtype)


def set_values(value: Any) -> Operation:
    """Replace the values by a number or a tensor."""
    check_value(value, "set")

    def compute(region: Tensor, context: EditContext) -> Tensor:
        new = check_fit(value, region, context)
        if _wraps(value, region.dtype):
            raise TypeError(f"{context.label}: {value if value is new else 'the value'} does not fit {region.dtype}")
        # A copy of a tensor, which would be overwritten otherwise if an in-place operation came next.
        return new.expand(region.shape).clone() if isinstance(new, Tensor) else torch.full_like(region, new)

    return Operation("set", value, compute)


def _wraps(value: Any, dtype: torch.dtype) -> bool:
    """Whether whole numbers are too large, or too small, for a dtype of whole numbers."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return False
    limits = torch.iinfo(dtype)
    if not isinstance(value, Tensor):
        return not limits.min <= value <= limits.max
    return value.dtype != dtype and not bool(((value >= limits.min) & (value <= limits.max)).all())


def add(value: Any) -> Operation:
    """Add a value."""
    check_value(value, "add")
    return Operation("add", value, _with(operator.add, value))


def scale(value: Any) -> Operation:
    """Multiply by a value."""
    check_value(value, "scale")
    return Operation("scale", value, _with(operator.mul, value))


def _with(operation: Callable[[Any, Any], Any], value: Any) -> Callable[[Tensor, EditContext], Any]:
    def compute(region: Tensor, context: EditContext) -> Any:
        if type(value) is float and region.is_floating_point():  # as nearly always: nothing is to be asked
            return operation(region, value)
        return operation(region, check_fit(value, region, context))

    return compute


def map_values(function: Any) -> Operation:
    """Call a function with a copy."""
    if not callable(function):
        raise TypeError(f"map takes a function of a tensor, not {type(function).__name__}. To set values, use set")
    return Operation("map", function, lambda region, context: function(region.clone()), foreign=True)


def mask(keep: Any, other: Any = 0) -> Operation:
    """Keep the values where a mask is true; a mask of numbers mixes the old values with the others."""
    if not isinstance(keep, Tensor):
        raise TypeError(f"mask takes a tensor of booleans or of numbers from 0 to 1, not {type(keep).__name__}")
    check_value(other, "other= of mask")

    def compute(region: Tensor, context: EditContext) -> Tensor:
        instead = check_fit(other, region, context)
        if keep.dtype is torch.bool:
            check_fit(keep, region, context)
            return torch.where(keep, region, instead)
        soft: Tensor = check_fit(keep, region, context)
        # 0 times infinity is no number: what has no part in the mixture must not spoil it.
        old = torch.where((soft == 0) & ~region.isfinite(), 0, region)
        new = torch.as_tensor(instead, dtype=region.dtype, device=region.device)
        new = torch.where((soft == 1) & ~new.isfinite(), 0, new)
        mixed: Tensor = old * soft + (1 - soft) * new
        return mixed

    return Operation("mask", keep, compute, options={"other": other})


def add_noise(std: float, seed: int) -> Operation:
    """Add Gaussian noise that depends only on the seed and the number of the call."""
    if not isinstance(std, (int, float)) or isinstance(std, bool) or not 0 <= std < math.inf:
        raise ValueError(f"std={std!r} is not a standard deviation. Pass a finite number, 0 or more")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed={seed!r} is not a seed. Pass an integer, 0 or more")

    def compute(region: Tensor, context: EditContext) -> Tensor:
        if not region.is_floating_point():
            raise TypeError(f"{context.label}: noise can be added to floating-point values only, not to {region.dtype}")
        # Not torch's generators, from which the model takes its random numbers; and the same on every device.
        own = np.random.default_rng([seed, context.number or 0])
        noise = torch.from_numpy(own.standard_normal(region.shape, np.float32))
        return region + std * noise.to(region.device, region.dtype)

    return Operation("noise", std, compute, numbered=True, options={"seed": seed})


def project_out(direction: Any) -> Operation:
    """Remove the component along a direction, on the last axis."""
    if not isinstance(direction, Tensor) or direction.dim() != 1:
        raise TypeError(
            "project_out needs a direction: a 1-D tensor with the length of the last axis of the layer's tensor"
        )
    if not direction.is_floating_point():
        raise TypeError(f"project_out needs a floating-point direction, not {direction.dtype}. Pass direction.float()")
    if not direction.requires_grad and not (direction.any() and direction.isfinite().all()):
        raise ValueError("project_out needs a finite direction that is not zero")

    def compute(region: Tensor, context: EditContext) -> Tensor:
        if not region.dim() or region.shape[-1] != len(direction):
            raise ValueError(
                f"{context.label}: the direction has {len(direction)} values, but the selected values have "
                f"shape {tuple(region.shape)}"
            )
        unit: Tensor = check_fit(direction / direction.norm(), region, context)
        along = (region * unit).sum(-1, keepdim=True).to(region.dtype)  # autocast sums in float32 on a GPU
        return region - along * unit

    return Operation("project_out", direction, compute)


def swap(source: Any, kept: list[Tensor] | None) -> Operation:
    """Take the values of the same call in another run.

    Args:
        source: a capture, or one tensor of the same shape as the edited one.
        kept: the tensors that the capture kept, one per call.

    """
    if kept is None:
        if not isinstance(source, Tensor):
            number = f". For a number such as {source!r}, use set" if isinstance(source, (int, float, complex)) else ""
            raise TypeError(f"swap takes a tensor or a capture, not {type(source).__name__}{number}")
        return Operation(
            "swap", source, lambda region, context: copy_of_same_shape(context.selection.cut(source), region, context)
        )

    def compute(region: Tensor, context: EditContext) -> Tensor:
        number = context.number or 0
        if number > len(kept):
            raise LookupError(
                f"{context.label}: the capture has {len(kept)} calls of this layer, so it has no call {number}"
            )
        return copy_of_same_shape(context.selection.cut(kept[number - 1]), region, context)

    return Operation("swap", source, compute, numbered=True, options={"kept": kept})


def freeze(source: Any, kept: list[Tensor] | None) -> Operation:
    """Repeat the values of the first selected call, or of another run."""
    if kept is None:
        if source is not None:
            raise TypeError(
                f"freeze takes a capture, or nothing to repeat the first call, not {type(source).__name__}. To set "
                "values, use set"
            )

        def first(region: Tensor, context: EditContext) -> Any:
            number, values = context.held.setdefault("first", (context.number, region.detach().clone()))
            # The first call itself stays, also where a checkpoint runs it again.
            return UNCHANGED if number == context.number else copy_of_same_shape(values, region, context)

        return Operation("freeze", None, first, numbered=True)

    def compute(region: Tensor, context: EditContext) -> Tensor:
        number = 1 if len(kept) == 1 else context.number or 0
        if number > len(kept):
            raise LookupError(
                f"{context.label}: the capture has {len(kept)} calls of this layer, so it has no call {number}"
            )
        return copy_of_same_shape(context.selection.cut(kept[number - 1]).detach(), region, context)

    return Operation("freeze", source, compute, numbered=True, options={"kept": kept})


def take_mean(source: Any, kept: list[Tensor] | None) -> Operation:
    """Take the mean over the samples of the batch, or of a capture."""
    if kept is None:
        if source is not None:
            raise TypeError(f"mean takes a capture, or nothing for the mean of the batch, not {type(source).__name__}")
        return Operation("mean", None, lambda region, context: _mean([context.tensor], region, context))
    compute = lambda region, context: _mean(kept, region, context)  # noqa: E731
    return Operation("mean", source, compute, options={"kept": kept})


def _mean(kept: list[Tensor], region: Tensor, context: EditContext) -> Tensor:
    whole = context.tensor
    if not whole.dim() or not whole.is_floating_point():
        raise TypeError(f"{context.label}: a mean over samples needs floating-point values with a batch axis")
    if any(tensor.shape[1:] != whole.shape[1:] for tensor in kept):
        raise ValueError(f"{context.label}: samples have shape {tuple(whole.shape[1:])} here, but not in the capture")
    mean = (kept[0] if len(kept) == 1 else torch.cat(kept)).mean(0, keepdim=True)
    return copy_of_same_shape(context.selection.cut(mean.expand_as(whole)), region, context).clone()


def copy_of_same_shape(new: Tensor, region: Tensor, context: EditContext) -> Tensor:
    """Return a copy of the new values, which must have the shape of the old ones."""
    if new.shape != region.shape:
        raise ValueError(
            f"{context.label}: the values have shape {tuple(new.shape)} in the other run, and {tuple(region.shape)} "
            "in this one"
        )
    new = check_fit(new, region, context)
    return new.clone()
