"""Select values of a tensor: by an index, by samples, by attention heads."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.explanations.code import index_text

__all__ = ["Selection", "at", "numbers_in", "parse_samples"]


class At:
    """Write an index now, and use it later: ``at[:, 3]`` is the index in ``tensor[:, 3]``.

    Pass it to the methods of `edit`. ``at[:, -1]`` selects the last position of every sample, ``at[0, :, 4:8]`` four
    columns of the first sample, and ``at[..., mask]`` the values where a boolean tensor is true.

    Example:
        >>> import torch
        >>> at[:, 3]
        (slice(None, None, None), 3)
        >>> torch.arange(6).reshape(2, 3)[at[:, -1]]
        tensor([2, 5])

    """

    def __getitem__(self, index: Any) -> Any:
        return index

    def __repr__(self) -> str:
        return "at"


at = At()


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected values of a tensor.

    Attributes:
        steps: indices, each into the result of the previous one; empty for the whole tensor.
        text: the selection as the user wrote it.
        by_sample: whether the first index selects samples.
        width: the required length of the last axis; 0 if any length is allowed.

    """

    steps: tuple[Any, ...]
    text: str
    by_sample: bool = False
    width: int = 0

    @classmethod
    def of(
        cls, index: Any, samples: Any, columns: list[int] | None = None, said: str = "", width: int = 0
    ) -> Selection:
        """Check the arguments, and create a selection.

        Args:
            index: the index into the tensor; an ellipsis for all of it.
            samples: which samples; None for all.
            columns: indices on the last axis, for some of the heads; None for all.
            said: the heads as the user wrote them.
            width: the number of values of all heads together; 0 without heads.

        Raises:
            TypeError: `index` is not an index.
            ValueError: it selects nothing from any tensor.

        """
        if index is Ellipsis and samples is None and columns is None:
            return _ALL
        steps = [] if samples is None else [parse_samples(samples)]
        text = "" if samples is None else f" samples={samples!r}"
        if columns is not None:
            first, last = columns[0], columns[-1]
            beside = columns == list(range(first, last + 1))
            steps.append((..., slice(first, last + 1) if beside else columns))
        if index is not Ellipsis:
            for item in index if isinstance(index, tuple) else (index,):
                _check(item, index)
            steps.append(index)
            text = f" {index_text(index)}{text}"
        return cls(tuple(steps), text + said, samples is not None, width)

    def at_places(self, places: list[int]) -> Selection:
        """Select only these indices on axis 1."""
        beside = places == list(range(places[0], places[-1] + 1))
        step = (slice(None), slice(places[0], places[-1] + 1) if beside else places)
        first = int(self.by_sample)
        return Selection((*self.steps[:first], step, *self.steps[first:]), self.text, self.by_sample, self.width)

    def cut(self, tensor: Tensor) -> Tensor:
        """Return the selected values: the tensor itself, a view of it, or a copy."""
        if self.width and (not tensor.dim() or tensor.shape[-1] != self.width):
            raise IndexError(f"the last axis must hold the {self.width} values of all heads")
        for step in self.steps:
            if not tensor.is_cpu:
                _must_fit(step, tensor.shape)
            tensor = tensor[step]
        return tensor

    def put(self, tensor: Tensor, new: Tensor) -> Tensor:
        """Return a copy of the tensor with new values in the selected positions."""
        return _put(tensor, self.steps, new)


_ALL = Selection((), "")


def _must_fit(step: Any, shape: torch.Size) -> None:
    """Refuse numbers in a list that are out of bounds, as torch does on the CPU: a GPU ends the whole process."""
    items = step if isinstance(step, tuple) else (step,)
    axis = 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            axis = len(shape) - sum(map(_axes, items[place + 1 :]))
            continue
        if isinstance(item, (list, Tensor)) and axis < len(shape):
            numbers = torch.as_tensor(item, device="cpu")
            if numbers.dtype not in _MASKS and not bool(((-shape[axis] <= numbers) & (numbers < shape[axis])).all()):
                raise IndexError(f"index out of bounds for dimension {axis} with size {shape[axis]}")
        axis += _axes(item)


def _axes(item: Any) -> int:
    """Return how many axes of a tensor an item of an index selects from."""
    return item.dim() if isinstance(item, Tensor) and item.dtype in _MASKS else 1


_MASKS = (torch.bool, torch.uint8)


def _put(tensor: Tensor, steps: tuple[Any, ...], new: Tensor) -> Tensor:
    if not steps:
        return new
    # A copy, always: others may hold the tensor, or what it is a view of, or autograd may have saved it.
    copy = tensor.clone()
    copy[steps[0]] = _put(tensor[steps[0]], steps[1:], new) if len(steps) > 1 else new
    return copy


def _check(item: Any, index: Any) -> None:
    if isinstance(item, slice):
        _check_slice(item, index_text(index))
        return
    if item is Ellipsis:
        return
    if isinstance(item, Tensor):
        if item.dtype in (torch.bool, torch.uint8, torch.int32, torch.int64):
            return
    elif isinstance(item, (list, range)):
        if not item:
            raise ValueError(f"{index_text(index)} selects nothing, because its {type(item).__name__} is empty")
        if all(isinstance(each, (int, list)) for each in item):
            return
    elif not isinstance(item, bool) and hasattr(item, "__index__"):
        _check_size(operator.index(item), index_text(index))
        return
    raise TypeError(f"{item!r} is not an index. Use at[...] with integers, slices, lists or tensors, such as at[:, 3]")


def _check_slice(item: slice, text: str) -> None:
    ends = [end for end in (item.start, item.stop, item.step) if end is not None]
    if any(isinstance(end, bool) or not hasattr(end, "__index__") for end in ends):
        raise TypeError(f"{text}: the ends of a slice must be integers, such as at[:, 2:5]")
    first, last, step = item.start, item.stop, item.step
    if step is not None and step < 1:
        raise ValueError(f"{text} has a step below 1, which torch does not support. Use 1 or more")
    if first is not None and last is not None and (first < 0) == (last < 0) and first >= last:
        raise ValueError(f"{text} selects nothing, because its slice is empty")


def _check_size(number: int, text: str) -> None:
    if abs(number) >= 1 << 62:
        raise IndexError(f"{text} is too large for any tensor")


def numbers_in(given: Any) -> list[int]:
    """Return one or several integers as a list.

    Raises:
        TypeError: a value is not an integer. Booleans are refused, because a mask would turn into the indices 1 and 0.

    """
    items = given.tolist() if isinstance(given, Tensor) else given
    items = list(items) if isinstance(items, Iterable) and not isinstance(items, (str, bytes)) else [items]
    if any(isinstance(item, bool) for item in items):
        raise TypeError
    return [operator.index(item) for item in items]


def parse_samples(samples: Any, name: str = "samples", what: str = "samples") -> Any:
    """Check which samples (or heads) are selected; return a slice or a list of indices."""
    text = f"{name}={samples!r}"
    if isinstance(samples, slice):
        _check_slice(samples, text)
        return samples
    try:
        numbers = numbers_in(samples)
    except TypeError:
        raise TypeError(f"{text} does not select {what}. Pass integers, such as {name}=[1], or a slice") from None
    if not numbers:
        raise ValueError(f"{name} is empty, so it selects nothing")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{text} names the same one of the {what} twice")
    for number in numbers:
        _check_size(number, text)
    return numbers
