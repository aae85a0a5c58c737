"""Measure by how much calls were changed, without waiting for a GPU and without keeping something of every call."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from hookscope.captures.keep import is_wrapped

__all__ = ["Sizes"]

_MANY = 64  # calls whose measures wait to be read
_FEW = 1 << 14  # values whose differences are kept until then: to look through them takes a small model's time
_CANNOT = (RuntimeError, NotImplementedError)  # float8, quantized: torch does not compute with them


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
        self._waiting: list[tuple[int, Tensor]] = []

    def add(self, call: int, old: Tensor, new: Tensor) -> None:
        """Measure a call; one whose gradient comes twice is one call."""
        self.calls.add(call)
        try:
            difference = _difference(old, new)
            if difference is not None and difference.numel() > _FEW:
                difference = _ends(difference)
        except _CANNOT:
            difference = None
        if difference is None:
            self._unknown = True
            return
        self._waiting.append((call, difference))
        if len(self._waiting) >= _MANY:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call, difference in waiting:
            try:
                change = float(_ends(difference).abs().max())  # of a not-a-number it is one
            except _CANNOT:
                self._unknown = True
                continue
            if change != 0:
                self._changed.add(call)
            self._largest = change if math.isnan(change) or change > self._largest else self._largest

    def row(self) -> dict[str, object]:
        """Return what the table of edits says: how many calls were changed, and the largest change of a value."""
        self._read()
        if self._unknown:
            return {"calls changed": len(self.calls), "largest change": "not measured"}
        return {"calls changed": len(self._changed), "largest change": self._largest if self.calls else ""}


def _difference(old: Tensor, new: Tensor) -> Tensor | None:
    """Return by how much each value has changed; None where that cannot be said."""
    if is_wrapped(old) or is_wrapped(new) or old.is_nested or old.layout is not torch.strided or not old.numel():
        return None
    if old.is_meta or isinstance(old, FakeTensor):
        return None  # they have no values
    if new.requires_grad or old.requires_grad:
        old, new = old.detach(), new.detach()
    if old.is_floating_point():
        return new - old
    if old.dtype is torch.bool:
        return (old != new).byte()
    if old.is_complex():
        return (new - old).abs()
    return new.long() - old.long()  # not as uint8, in which 3 - 5 is 254


def _ends(difference: Tensor) -> Tensor:
    """Return the smallest and the largest difference, without waiting for a GPU."""
    # Not torch.dist, nor a norm: for infinity they take ten times as long.
    return torch.stack(torch.aminmax(difference))
