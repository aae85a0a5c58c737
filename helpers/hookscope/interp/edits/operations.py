"""Compute the new values of an edit: set, add, multiply, take values from another run, or call a function."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hookscope.interp.edits.specification import EditContext, Operation

__all__ = ["add", "map_values", "scale", "set_values", "swap", "take_mean"]


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
            raise context.make_error(TypeError, f"{value!r} does not fit the dtype {region.dtype}")
        return value
    if value.device != region.device and value.dim():
        raise context.make_error(ValueError, f"the value is on {value.device}, but the tensor is on {region.device}")
    if not torch.can_cast(value.dtype, region.dtype):
        raise context.make_error(TypeError, f"the value has dtype {value.dtype}, but the tensor has {region.dtype}")
    given, there = value.shape, region.shape
    fits = len(given) <= len(there) and all(a in (1, b) for a, b in zip(reversed(given), reversed(there), strict=False))
    if not fits:
        raise context.make_error(
            ValueError,
            f"the value has shape {tuple(given)}, which does not broadcast to the selected values, "
            f"shape {tuple(there)}",
        )
    return value.to(region.device, region.dtype)


def set_values(value: Any) -> Operation:
    """Replace the values with a number or a tensor."""
    check_value(value, "set")

    def compute(region: Tensor, context: EditContext) -> Tensor:
        new = check_fit(value, region, context)
        if _wraps(value, region.dtype):
            raise context.make_error(TypeError, f"{value if value is new else 'the value'} does not fit {region.dtype}")
        # A copy of a tensor, which would be overwritten otherwise if an in-place operation came next.
        return new.expand(region.shape).clone() if isinstance(new, Tensor) else torch.full_like(region, new)

    return Operation("set", value, compute)


def _wraps(value: Any, dtype: torch.dtype) -> bool:
    """Return whether integers are too large or too small for an integer dtype."""
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
            raise context.make_error(
                LookupError, f"the capture has {len(kept)} calls of this layer, so it has no call {number}"
            )
        return copy_of_same_shape(context.selection.cut(kept[number - 1]), region, context)

    return Operation("swap", source, compute, numbered=True, options={"kept": kept})


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
        raise context.make_error(TypeError, "a mean over samples needs floating-point values with a batch axis")
    if any(tensor.shape[1:] != whole.shape[1:] for tensor in kept):
        raise context.make_error(
            ValueError, f"samples have shape {tuple(whole.shape[1:])} here, but not in the capture"
        )
    mean = (kept[0] if len(kept) == 1 else torch.cat(kept)).mean(0, keepdim=True)
    return copy_of_same_shape(context.selection.cut(mean.expand_as(whole)), region, context).clone()


def copy_of_same_shape(new: Tensor, region: Tensor, context: EditContext) -> Tensor:
    """Return a copy of the new values, which must have the shape of the old ones."""
    if new.shape != region.shape:
        raise context.make_error(
            ValueError,
            f"the values have shape {tuple(new.shape)} in the other run, and {tuple(region.shape)} in this one",
        )
    new = check_fit(new, region, context)
    return new.clone()
