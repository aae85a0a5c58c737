"""Put the calls of one layer together: stacked, or joined along the sequence that generate() makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.captures.call import Call, NotCapturedError
from hookscope.pytree import find_tensors, tree_map

__all__ = ["join_calls", "stack_calls"]


def stack_calls(name: str, calls: Sequence[Call], part: int | str | None) -> Any:
    """Stack the outputs of calls along a new first axis; see `Layer.stack`."""
    values = [_part(call, part) for call in calls]
    tensors = [find_tensors(value) for value in values]
    for call, value in zip(calls, values, strict=True):
        if not _alike(values[0], value):
            they = f"{calls[0].label} and {call.label}"
            raise NotCapturedError(
                f"the calls of {name!r} differ in structure, or in what is beside the tensors: {they}; give part=..."
            )
    if any(tensor.is_nested for each in tensors for tensor in each):
        raise NotCapturedError(f"layer {name!r} returned nested tensors, which do not stack; see .calls")
    for each in zip(*tensors, strict=True):
        _same(name, calls, "shape", [tuple(tensor.shape) for tensor in each], "they do not stack; see .calls")
        _same(name, calls, "dtype", [tensor.dtype for tensor in each], "they do not stack; see .calls")
    if not tensors[0]:
        raise NotCapturedError(f"layer {name!r} returned no tensor to stack")
    whole = map(torch.stack, zip(*tensors, strict=True))
    return tree_map(lambda tensor: next(whole), values[0])


def join_calls(name: str, calls: Sequence[Call], dim: int, part: int | str | None) -> Tensor:
    """Join the outputs of calls, one for each pass, along an axis; see `Layer.join`."""
    for call in calls:
        if call.decoding not in ("", *_ONE_AFTER_THE_OTHER):
            raise NotCapturedError(
                f"the calls of {name!r} were made by generate() in {call.decoding.strip('_')}, where rows change "
                "places or tokens are taken back between the passes, so outputs are no sequence; write num_beams=1, "
                "or run the model once on what was generated"
            )
    if len({call.generation for call in calls}) > 1:
        several = sorted({call.generation for call in calls} - {0})
        told = "several generate()s" if len(several) > 1 else "generate() and by passes outside of it"
        raise NotCapturedError(
            f"the calls of {name!r} were made by {told}, whose tokens are no one sequence; put those of .calls "
            "together that have the same .generation, with torch.cat, or capture each in a block of its own"
        )
    calls = [call for call in calls if call.run] or calls  # not what a checkpoint ran again
    passes = [call.run for call in calls]
    if len(set(passes)) < len(passes):
        raise NotCapturedError(
            f"layer {name!r} was called several times in one pass, and which of these go together is not known; put "
            "those of .calls together that do, with torch.cat"
        )
    values = [_part(call, part) for call in calls]
    for value in values:
        if not isinstance(value, Tensor):
            way = f"say which, as part={_parts(value)}" if part is None else "choose another part"
            raise NotCapturedError(f"layer {name!r} returned a {type(value).__name__}, not one tensor: {way}")
    tensors: list[Tensor] = values
    least = min(tensor.dim() for tensor in tensors)
    if not -least <= dim < least:
        raise NotCapturedError(f"dim={dim}: the outputs of {name!r} have {least} axes")
    lengths = [tensor.shape[dim] for tensor in tensors]
    if len(lengths) > 1 and all(one < other for one, other in pairwise(lengths)):
        raise NotCapturedError(
            f"the outputs of {name!r} grow along dim={dim}, {lengths[0]}, {lengths[1]} ... {lengths[-1]}: each has the "
            "whole sequence again, as in generate() without a KV cache; .calls[-1].output has it all"
        )
    rest = [(*tensor.shape[: dim % tensor.dim()], *tensor.shape[dim % tensor.dim() + 1 :]) for tensor in tensors]
    _same(name, calls, f"shape beside dim={dim}", rest, "join along another dim")
    _same(name, calls, "dtype", [tensor.dtype for tensor in tensors], "convert those of .calls")
    return torch.cat(tensors, dim)


def _alike(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two values have the same structure, tensors at the same places, and equal values beside them."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor)
    if type(one) is not type(other) or depth > _DEEP:
        return False
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and bool(np.array_equal(one, other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_alike(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(_alike(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    equals: object = type(one).__eq__
    if equals is object.__eq__ and hasattr(one, "__dict__"):
        return one is other or _alike(vars(one), vars(other), depth + 1)
    return bool(one == other)


def _part(call: Call, part: int | str | None) -> Any:
    value = call.output
    if part is None:
        return value
    try:
        return getattr(value, part) if isinstance(part, str) and not isinstance(value, Mapping) else value[part]
    except (LookupError, AttributeError, TypeError):
        raise NotCapturedError(f"no part={part!r} in what {call.label} returned; there are {_parts(value)}") from None


def _parts(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(map(repr, value)) or "none"
    return ", ".join(map(str, range(len(value)))) if isinstance(value, tuple | list) and value else "none"


def _same(name: str, calls: Sequence[Call], what: str, values: Sequence[Any], way_out: str) -> None:
    for call, value in zip(calls, values, strict=True):
        if value != values[0]:
            they = f"{calls[0].label} has {str(values[0])[:80]}, {call.label} has {str(value)[:80]}"
            raise NotCapturedError(f"the calls of {name!r} differ in {what}: {they}; {way_out}")


_DEEP = 20
_ONE_AFTER_THE_OTHER = ("_sample",)  # of the ways of generate() in transformers: each pass goes on where the last ended
