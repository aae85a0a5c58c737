"""Take one variant's output out of that of a batch, compare two outputs, and turn a metric into a number."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import torch
from torch import Tensor

from hookscope.interp.edits.nested_values import tensors
from hookscope.pytree import find_tensors, tree_map

__all__ = ["BatchMismatchError", "BatchOutput", "measure_gap", "relative_gap", "to_number"]


class BatchMismatchError(Exception):
    """Variants in one batch do not give the same results as each alone."""


class BatchOutput:
    """The model's output for a batch of variants, to be divided among them.

    Args:
        output: the output for the batch.
        alone: the output for one variant.
        count: the number of variants.

    Raises:
        BatchMismatchError: a tensor does not have the samples of all variants along its first axis, or there is none.

    """

    def __init__(self, output: Any, alone: Any, count: int) -> None:
        found, known = list(tensors(output)), list(tensors(alone))
        if [path for path, _ in found] != [path for path, _ in known]:
            raise BatchMismatchError("the model returns a different structure for a batch")
        if not found:
            raise BatchMismatchError(
                f"the model's output, of type {type(output).__name__}, has no tensor in tuples, lists, mappings or "
                "dataclasses, so it cannot be divided among the variants of a batch"
            )
        self._lengths = set()
        for (path, tensor), (_, single) in zip(found, known, strict=True):
            shape = single.shape
            if not shape or tensor.shape != (count * shape[0], *shape[1:]):
                where = f" at {path[0] if len(path) == 1 else path!r}" if path else ""
                raise BatchMismatchError(
                    f"the model's output{where} has shape {tuple(shape)} for one variant and {tuple(tensor.shape)} "
                    f"for {count}, so it cannot be divided among the variants of a batch"
                )
            self._lengths.add(len(tensor))
        self._count = count
        self._output = output

    def select(self, variant: int) -> Any:
        """Return the output of one variant."""

        def take(tensor: Tensor) -> Tensor:
            if not tensor.dim() or not len(tensor) or len(tensor) not in self._lengths:
                return tensor
            rows = len(tensor) // self._count
            return tensor[variant * rows : (variant + 1) * rows]

        return tree_map(take, self._output)


def to_number(result: Any) -> float:
    """Return a metric's result as a number; a tensor or an array with one element can have any shape.

    Example:
        >>> to_number(torch.ones(1, 1))
        1.0

    Raises:
        TypeError: it is not a number.
        ValueError: it has several numbers, or a complex one.

    """
    shape = getattr(result, "shape", None) or ()
    if prod(shape) != 1 or getattr(getattr(result, "dtype", None), "is_complex", False):
        kind = f" and dtype {result.dtype}" if isinstance(result, Tensor) else ""
        raise ValueError(
            f"the metric returned {'a tensor' if kind else 'an array'} of shape {tuple(shape)}{kind}. It must return "
            "one real number per run, such as output[0, -1, 5] or output.mean()"
        )
    if shape and hasattr(result, "item"):
        result = result.item()
    try:
        return float(result)
    except (TypeError, ValueError):
        raise TypeError(
            f"the metric returned {type(result).__name__}. It gets the model's output, and must return a number or a "
            "tensor with one element"
        ) from None


def relative_gap(one: float, other: float, scale: float) -> float:
    """Return the difference of two numbers as a share of a scale; two NaN are equal.

    Example:
        >>> relative_gap(1.0, 2.0, 4.0)
        0.25

    """
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    gap = abs(one - other) / scale if math.isfinite(scale) and scale else math.inf
    return gap if math.isfinite(gap) else math.inf


def _list_tensors(output: Any) -> list[tuple[tuple[int | str, ...], Tensor]]:
    """List path and tensor; look inside objects, which takes longer, only if containers hold no tensor."""
    return list(tensors(output)) or [((number,), tensor) for number, tensor in enumerate(find_tensors(output))]


def measure_gap(one: Any, other: Any) -> float:
    """Return the largest difference of two outputs, as a share of the largest value in the same tensor.

    Example:
        >>> measure_gap(torch.tensor([1.0, 100.0]), torch.tensor([2.0, 100.0]))
        0.01

    """
    largest = 0.0
    found, known = _list_tensors(one), _list_tensors(other)
    if [(path, tensor.shape) for path, tensor in found] != [(path, tensor.shape) for path, tensor in known]:
        return math.inf
    for (_, a), (_, b) in zip(found, known, strict=True):
        if torch.equal(a, b):
            continue
        if not a.is_floating_point() and not a.is_complex():
            return math.inf
        apart = ~((a == b) | (a.isnan() & b.isnan()))
        if not apart.any():
            continue
        gap = float((a - b).abs()[apart].double().max())
        size = float(b[b.isfinite()].abs().double().max()) if b.isfinite().any() else 0.0
        largest = max(largest, relative_gap(gap, 0.0, size))
    return largest
