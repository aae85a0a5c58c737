"""Know torch's operations by name: which leave axes where they are, which multiply, and what their arguments are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

__all__ = ["ELEMENTWISE", "POOLINGS", "PRODUCTS", "SOFTMAXES", "get_op_name", "is_composite", "name_arguments"]

# What works on each number by itself: it leaves axes where they are, and makes scores of scores.
ELEMENTWISE = (
    {"add", "sub", "rsub", "mul", "div", "where", "masked_fill", "tanh", "clamp", "clamp_min", "clamp_max", "minimum"}
    | {"maximum", "neg", "abs", "copy", "_to_copy", "clone", "detach", "alias", "lift_fresh", "nan_to_num"}
    | {"constant_pad_nd", "slice_scatter"}
)
# What leaves axes where they are, and makes some longer or shorter; a mean that keeps its axes is an adaptive pooling.
POOLINGS = ("pool", "mean", "upsample", "grid_sampler", "pixel_shuffle", "pixel_unshuffle", "tion_pad")
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # where the two factors are
SOFTMAXES = frozenset(("_softmax", "_safe_softmax", "softmax"))  # the last with out=


@lru_cache(1024)  # a schema is slow to read
def get_op_name(func: Any) -> str:
    """Name an operation without its overload, and without the mark of one in place."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name.partition("::")[2]).rstrip("_")
    return str(func.name()) if hasattr(func, "name") else str(func)


@lru_cache(1024)
def is_composite(func: Any) -> bool:
    """Whether torch makes an operation of others, which can be looked at instead of it."""
    name, key = func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    # What is of Python only, as prim::device of fake tensors, the dispatcher does not know.
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


@lru_cache
def _list_arguments(func: Any) -> tuple[str, ...]:
    return tuple([argument.name for argument in func._schema.arguments])


def name_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name what an operation was called with, as its schema does."""
    return {**dict(zip(_list_arguments(func), args, strict=False)), **kwargs}
