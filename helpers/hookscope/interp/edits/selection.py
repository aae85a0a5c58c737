"""Say which values of a tensor are meant: an index, some samples, some attention heads."""

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
    """Write an index into a tensor where it is to be used later: ``at[:, 3]`` is the index of ``tensor[:, 3]``.

    Give it to the methods of `edit`: ``at[:, -1]`` is the last position of every sample, ``at[0, :, 4:8]`` a row of
    four columns, ``at[..., mask]`` where a boolean tensor is true.

    Example:
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
    """Which values of a tensor are meant.

    Attributes:
        steps: indices, each into what the one before it has picked; without any, the whole tensor.
        text: how that was written.
        by_sample: whether the first of them picks samples.
        width: how long the last axis of the tensor has to be; 0 if that does not matter.

    """

    steps: tuple[Any, ...]
    text: str
    by_sample: bool = False
    width: int = 0

    @classmethod
    def of(
        cls, index: Any, samples: Any, columns: list[int] | None = None, said: str = "", width: int = 0
    ) -> Selection:
        """Check what was given, and make a selection of it.

        Args:
            index: into the tensor; an ellipsis for all of it.
            samples: which samples; None for all.
            columns: places on the last axis, those of some heads; None for all.
            said: how these were written.
            width: how many values all heads have together; 0 without heads.

        Raises:
            TypeError: it is no index.
            ValueError: it picks nothing, whatever the tensor.

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
        """Select only these places on axis 1, and nothing else of it."""
        beside = places == list(range(places[0], places[-1] + 1))
        step = (slice(None), slice(places[0], places[-1] + 1) if beside else places)
        first = int(self.by_sample)
        return Selection((*self.steps[:first], step, *self.steps[first:]), self.text, self.by_sample, self.width)

    def cut(self, tensor: Tensor) -> Tensor:
        """Return the values that are meant: the tensor itself, a view of it, or a copy."""
        if self.width and (not tensor.dim() or tensor.shape[-1] != self.width):
            raise IndexError(f"all heads have {self.width} values together, side by side on the last axis")
        for step in self.steps:
            if not tensor.is_cpu:
                _must_fit(step, tensor.shape)
            tensor = tensor[step]
        return tensor

    def put(self, tensor: Tensor, new: Tensor) -> Tensor:
        """Return a copy of the tensor with other values where they are meant."""
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
    """How many axes of a tensor an item of an index is for."""
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
            raise ValueError(f"{index_text(index)} picks nothing: its {type(item).__name__} is empty")
        if all(isinstance(each, (int, list)) for each in item):
            return
    elif not isinstance(item, bool) and hasattr(item, "__index__"):
        _check_size(operator.index(item), index_text(index))
        return
    raise TypeError(
        f"{item!r} is no index into a tensor; write at[...] with numbers, slices, lists or tensors, such as at[:, 3]"
    )


def _check_slice(item: slice, text: str) -> None:
    ends = [end for end in (item.start, item.stop, item.step) if end is not None]
    if any(isinstance(end, bool) or not hasattr(end, "__index__") for end in ends):
        raise TypeError(f"{text}: give whole numbers as the ends of a slice, such as at[:, 2:5]")
    first, last, step = item.start, item.stop, item.step
    if step is not None and step < 1:
        raise ValueError(f"{text}: torch slices forwards only; give a step from 1")
    if first is not None and last is not None and (first < 0) == (last < 0) and first >= last:
        raise ValueError(f"{text} picks nothing: its slice is empty")


def _check_size(number: int, text: str) -> None:
    if abs(number) >= 1 << 62:
        raise IndexError(f"{text}: no tensor is so long")


def numbers_in(given: Any) -> list[int]:
    """List whole numbers, of which one or several were given.

    Raises:
        TypeError: they are none; True and False are none, since a mask would else be taken for the numbers 1 and 0.

    """
    items = given.tolist() if isinstance(given, Tensor) else given
    items = list(items) if isinstance(items, Iterable) and not isinstance(items, (str, bytes)) else [items]
    if any(isinstance(item, bool) for item in items):
        raise TypeError
    return [operator.index(item) for item in items]


def parse_samples(samples: Any, name: str = "samples", what: str = "samples") -> Any:
    """Check which samples, or what else there is a number of, were asked for; a slice, or a list of their numbers."""
    text = f"{name}={samples!r}"
    if isinstance(samples, slice):
        _check_slice(samples, text)
        return samples
    try:
        numbers = numbers_in(samples)
    except TypeError:
        raise TypeError(f"{text}: give the numbers of {what}, such as {name}=[1], or a slice") from None
    if not numbers:
        raise ValueError(f"{name} picks nothing: it is empty")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{text} names one of the {what} twice")
    for number in numbers:
        _check_size(number, text)
    return numbers
