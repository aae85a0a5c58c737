"""Measure by how much calls were changed, without waiting for a GPU and without keeping something of every call."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from hookscope.captures.keep import is_wrapped

__all__ = ["Sizes"]

_MANY = 64  # calls whose measures wait to be read


class Sizes:
    """The largest changes of values in the calls of a layer.

    Attributes:
        calls: the numbers of the calls that were edited.

    Example:
        >>> sizes = Sizes()
        >>> for call, change in enumerate((0.0, -2.0, 1.0)):
        ...     sizes.add(call, torch.ones(3), torch.ones(3) + change)
        >>> sizes.row()
        {'calls changed': 2, 'largest change': 2.0}

    """

    def __init__(self) -> None:
        self.calls: set[int] = set()
        self._changed: set[int] = set()
        self._largest, self._unknown = 0.0, False
        self._waiting: list[tuple[int, tuple[Tensor, ...]]] = []

    def add(self, call: int, old: Tensor, new: Tensor) -> None:
        """Measure a call; one whose gradient comes twice is one call."""
        self.calls.add(call)
        size = _largest(old, new)
        if size is None:
            self._unknown = True
            return
        self._waiting.append((call, size))
        if len(self._waiting) >= _MANY:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call, size in waiting:
            change = max(abs(float(end)) for end in size)  # of a not-a-number it is one: torch.aminmax gives two
            if change != 0:
                self._changed.add(call)
            self._largest = change if math.isnan(change) or change > self._largest else self._largest

    def row(self) -> dict[str, object]:
        """Return what the table of edits says: how many calls were changed, and the largest change of a value."""
        if self._unknown:
            return {"calls changed": len(self.calls), "largest change": "not measured"}
        self._read()
        return {"calls changed": len(self._changed), "largest change": self._largest if self.calls else ""}


def _largest(old: Tensor, new: Tensor) -> tuple[Tensor, ...] | None:
    """Measure the largest change of a value, without waiting for it: the largest and the smallest differences."""
    if is_wrapped(old) or is_wrapped(new) or old.is_nested or old.layout is not torch.strided or not old.numel():
        return None
    if old.is_meta or isinstance(old, FakeTensor):
        return None  # they have no values
    if new.requires_grad or old.requires_grad:
        old, new = old.detach(), new.detach()
    try:
        if old.is_floating_point():
            # Not torch.dist, nor a norm: for infinity they take ten times as long.
            return torch.aminmax(new - old)
        if old.dtype is torch.bool:
            return ((old != new).any(),)
        if old.is_complex():
            return ((new - old).abs().max(),)
        return torch.aminmax(new.long() - old.long())  # not as uint8, in which 3 - 5 is 254
    except (RuntimeError, NotImplementedError):  # float8, quantized: torch does not compute with them
        return None
