"""Take one variant's share out of what a batch of variants returned, and compare two outputs."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from hookscope.interp.edits.parts import tensors
from hookscope.pytree import find_tensors, rebuild_model_output, tree_map

__all__ = ["BatchMismatchError", "BatchOutput", "OutputShapes", "measure_gap", "to_number"]


class BatchMismatchError(Exception):
    """Variants in one batch do not give what each gives alone; says why."""


class _PlaceholderError(Exception):
    """A metric reads something that was left out."""


class _Placeholder:
    """Stands for an object, such as a KV cache, that few metrics read and that takes long to take apart."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _PlaceholderError

    def _touched(self, *args: object) -> Any:
        raise _PlaceholderError

    __len__ = __iter__ = __getitem__ = __call__ = __contains__ = __bool__ = _touched


_PLACEHOLDER = _Placeholder()


class OutputShapes:
    """What the model returns for one variant alone, as far as it is needed to find that again in what a batch returns.

    Args:
        output: what it returns.

    Attributes:
        parts: path and shape of each tensor in it.
        kinds: the types of the objects with tensors in them that are no containers.

    """

    def __init__(self, output: Any) -> None:
        self.parts = [(path, tensor.shape) for path, tensor in tensors(output)]
        self.kinds = _list_object_types(output)


class BatchOutput:
    """What each variant's own output would be.

    Args:
        output: what the model returned for a batch of variants.
        alone: what it returns for one, with other values.
        count: how many variants there are.

    Raises:
        BatchMismatchError: a tensor of the output does not have the samples of all along its first axis, or there is none.

    """

    def __init__(self, output: Any, alone: OutputShapes, count: int) -> None:
        found = list(tensors(output))
        if [path for path, _ in found] != [path for path, _ in alone.parts]:
            raise BatchMismatchError("a batch returns another structure")
        if not found:  # each variant would be given all that the batch returned
            raise BatchMismatchError(
                f"what the model returns, of type {type(output).__name__}, has no tensor in tuples, lists, mappings or "
                "dataclasses: variants in one batch cannot be told apart"
            )
        self._long = set()
        for (path, tensor), (_, shape) in zip(found, alone.parts, strict=True):
            if not shape or tensor.shape != (count * shape[0], *shape[1:]):
                where = f" at {path[0] if len(path) == 1 else path!r}" if path else ""
                raise BatchMismatchError(
                    f"what the model returns{where} has shape {tuple(shape)} for one variant and "
                    f"{tuple(tensor.shape)} for {count}: variants in one batch cannot be told apart"
                )
            self._long.add(len(tensor))
        self._count = count
        self._output = output
        # What each variant has, without these objects.
        self._light = self._split(tree_map(lambda _: _PLACEHOLDER, output, alone.kinds)) if alone.kinds else []

    def compute_metric(self, metric: Any, variant: int) -> float:
        """Give one variant's output to a metric, and return its number."""
        if self._light:
            try:
                return to_number(metric(self._light[variant]))
            except _PlaceholderError:
                self._light = []
        return to_number(metric(self.select(variant)))

    def select(self, variant: int) -> Any:
        """Return the output of one variant."""
        return self._slice(self._output, variant)

    def _slice(self, value: Any, variant: int) -> Any:
        def take(tensor: Tensor) -> Tensor:
            if not self._has_samples(tensor):
                return tensor
            rows = len(tensor) // self._count
            return tensor[variant * rows : (variant + 1) * rows]

        return tree_map(take, value)

    def _split(self, value: Any) -> list[Any]:
        """Return what each variant has of a value, in containers of its own; quicker than for one after the other."""
        if value is None or value is _PLACEHOLDER:
            return [value] * self._count
        if isinstance(value, Tensor):
            return [*value.chunk(self._count)] if self._has_samples(value) else [value] * self._count
        if isinstance(value, OrderedDict) and value and hasattr(type(value), "__dataclass_fields__"):
            items, beside = ([self._split(item) for item in held.values()] for held in (value, vars(value)))
            rows = zip(*items, strict=True), zip(*beside, strict=True)
            return [
                rebuild_model_output(
                    value, dict(zip(value, one, strict=True)), dict(zip(vars(value), other, strict=True))
                )
                for one, other in zip(*rows, strict=True)
            ]
        return [self._slice(value, variant) for variant in range(self._count)]

    def _has_samples(self, tensor: Tensor) -> bool:
        return bool(tensor.dim()) and len(tensor) > 0 and len(tensor) in self._long


def _list_object_types(value: Any) -> tuple[type, ...]:
    """List the types of the objects with tensors in them that are no containers."""
    if value is None or isinstance(value, (Tensor, bool, int, float, str)):
        return ()
    if isinstance(value, Mapping):
        return tuple(kind for item in value.values() for kind in _list_object_types(item))
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return tuple(kind for item in value for kind in _list_object_types(item))
    return (type(value),) if find_tensors(value) else ()


def to_number(result: Any) -> float:
    """Return a metric's result as a number; a tensor or an array with one element may have any shape.

    Example:
        >>> to_number(torch.ones(1, 1))
        1.0

    Raises:
        TypeError: it is none.
        ValueError: it is several.

    """
    shape = getattr(result, "shape", None) or ()
    if prod(shape) != 1 or getattr(getattr(result, "dtype", None), "is_complex", False):
        kind = f" and dtype {result.dtype}" if isinstance(result, Tensor) else ""
        raise ValueError(
            f"the metric returned {'a tensor' if kind else 'an array'} of shape {tuple(shape)}{kind}; it has to return "
            "one real number for one run, such as output[0, -1, 5] or output.mean()"
        )
    if shape and hasattr(result, "item"):  # one number, with axes around it
        result = result.item()
    try:
        return float(result)
    except (TypeError, ValueError):
        raise TypeError(
            f"the metric returned {type(result).__name__}; it gets what the model returns, and has to return a number "
            "or a tensor with one element"
        ) from None


def _list_tensors(output: Any) -> list[tuple[tuple[int | str, ...], Tensor]]:
    """List path and tensor of what is compared; inside of objects, which takes longer, where there is nothing else."""
    return list(tensors(output)) or [((number,), tensor) for number, tensor in enumerate(find_tensors(output))]


def measure_gap(one: Any, other: Any) -> float:
    """Return the largest difference between two outputs, as a share of the largest value in the same tensor.

    Example:
        >>> measure_gap(torch.tensor([1.0, 100.0]), torch.tensor([2.0, 100.0]))
        0.01

    """
    largest = 0.0
    found, known = _list_tensors(one), _list_tensors(other)
    if [(path, tensor.shape) for path, tensor in found] != [(path, tensor.shape) for path, tensor in known]:
        return float("inf")
    for (_, a), (_, b) in zip(found, known, strict=True):
        if torch.equal(a, b):
            continue
        if not a.is_floating_point() and not a.is_complex():
            return float("inf")
        gap = float((a - b).abs().max())
        if math.isfinite(gap):  # nearly always: nothing is infinite or NaN
            largest = max(largest, gap / size if (size := float(b.abs().max())) else math.inf)
            continue
        apart = ~((a == b) | (a.isnan() & b.isnan()))
        if not apart.any():
            continue
        gap = float((a - b).abs()[apart].double().max())
        size = float(b[b.isfinite()].abs().double().max()) if b.isfinite().any() else 0.0
        share = gap / size if size else float("inf")
        largest = max(largest, share if share == share else float("inf"))
    return largest
