"""Measure by how much calls were changed, without waiting for a GPU and without keeping something of every call."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from hookscope.captures.keep import is_wrapped

__all__ = ["Sizes"]

_MANY = 64  # calls whose measures wait to be read
_FEW = 1 << 14  # values that are kept until then: to look through them takes a small model's time
# In which a difference is computed: in their own, 3 - 5 is 254 as uint8, and 40,000 + 40,000 infinite as float16.
_NARROW = (
    dict.fromkeys((torch.int64, torch.uint64), torch.float64)
    | dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16), torch.int32)
    | dict.fromkeys((torch.int32, torch.uint32), torch.int64)
    | {torch.float16: torch.float32}
)
# float8, quantized: torch does not compute with them; on some devices not in float64.
_CANNOT = (RuntimeError, NotImplementedError, TypeError)


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

    _largest, _unknown = 0.0, False

    def __init__(self) -> None:
        self.calls: set[int] = set()
        self._changed: set[int] = set()
        # By call: old and new values, one after the other in one tensor, or what was measured of them.
        self._waiting: list[tuple[int, Tensor | tuple[Tensor, Tensor]]] = []

    def add(self, call: int, old: Tensor, new: Tensor) -> None:
        """Measure a call; one whose gradient comes twice is one call."""
        self.calls.add(call)
        if old.is_nested:
            self._unknown = True
            return
        # What else cannot be measured is found when it is read: each question takes a part of a small model's pass.
        kept: Tensor | tuple[Tensor, Tensor]
        try:
            if old.numel() > _FEW:
                kept = _measured(old.detach(), new.detach())
            else:
                # Copied, for the model may write to both: that is one operation, and to measure takes eight.
                kept = both = torch.cat((old, new)) if old.dim() else torch.stack((old, new))
                if both.requires_grad:
                    kept = both.detach()
        except _CANNOT:
            self._unknown = True
            return
        self._waiting.append((call, kept))
        if len(self._waiting) >= _MANY:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        with unset_fake_temporarily():  # what was kept is real
            for call, kept in waiting:
                one = kept[0] if isinstance(kept, tuple) else kept
                if is_wrapped(one) or one.layout is not torch.strided or one.is_meta or isinstance(one, FakeTensor):
                    self._unknown = True  # the last two have no values
                    continue
                if not one.numel():
                    continue
                try:
                    largest, unchanged = kept if isinstance(kept, tuple) else _measured(*kept.chunk(2))
                    change = float(largest)
                except _CANNOT:
                    self._unknown = True
                    continue
                if not bool(unchanged):
                    self._changed.add(call)
                self._largest = change if math.isnan(change) or change > self._largest else self._largest

    def row(self) -> dict[str, object]:
        """Return what the table of edits says: how many calls were changed, and the largest change of a value."""
        self._read()
        if self._unknown:
            return {"calls changed": len(self.calls), "largest change": "not measured"}
        return {"calls changed": len(self._changed), "largest change": self._largest if self.calls else ""}


def _measured(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the size of the largest change, and whether there is none, without waiting for a GPU."""
    same = new == old  # also where they are infinite, so that there is no difference
    if old.dtype in _NARROW:
        old, new = old.to(_NARROW[old.dtype]), new.to(_NARROW[old.dtype])
    differences = (new - old).abs() if old.is_complex() else new - old
    # Not torch.dist, nor a norm: for infinity they take ten times as long.
    ends = torch.stack(torch.aminmax(differences.masked_fill(same, 0)))
    return ends.abs().max(), same.all()
