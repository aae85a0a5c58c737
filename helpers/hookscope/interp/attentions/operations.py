"""Names of torch's operations, and of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

__all__ = ["ELEMENTWISE", "POOLINGS", "PRODUCTS", "SOFTMAXES", "get_op_name", "is_composite", "name_arguments"]

# These leave the axes as they are, and turn scores into scores.
ELEMENTWISE = (
    {"add", "sub", "rsub", "mul", "div", "where", "masked_fill", "tanh", "clamp", "clamp_min", "clamp_max", "minimum"}
    | {"maximum", "neg", "abs", "copy", "_to_copy", "clone", "detach", "alias", "lift_fresh", "nan_to_num"}
    | {"constant_pad_nd", "slice_scatter"}
)
# These change the length of axes; a mean that keeps its axes is an adaptive pooling.
POOLINGS = ("pool", "mean", "upsample", "grid_sampler", "pixel_shuffle", "pixel_unshuffle", "tion_pad")
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # the index of the first factor
SOFTMAXES = frozenset(("_softmax", "_safe_softmax", "softmax"))  # the last with out=


@lru_cache(1024)  # reading a schema is slow
def get_op_name(func: Any) -> str:
    """Return the name of an operation, without its overload and without the "_" of an in-place operation."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name.partition("::")[2]).rstrip("_")
    return str(func.name()) if hasattr(func, "name") else str(func)


@lru_cache(1024)
def is_composite(func: Any) -> bool:
    """Return whether an operation is made up of other operations that this package can look at instead."""
    name, key = func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    # The dispatcher does not have operations of Python alone, such as prim::device of fake tensors.
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


@lru_cache
def _list_arguments(func: Any) -> tuple[str, ...]:
    return tuple([argument.name for argument in func._schema.arguments])


def name_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by the names in its schema."""
    return {**dict(zip(_list_arguments(func), args, strict=False)), **kwargs}
