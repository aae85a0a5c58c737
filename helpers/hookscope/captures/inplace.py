"""Detect in-place writes to a tensor, without keeping its memory alive."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from hookscope.captures.call import Call

__all__ = ["Overwrites", "VersionWatch", "watch"]


class VersionWatch:
    """Watches one tensor; created by `watch`.

    Attributes:
        counter: its `_version` counts the writes to the tensor and to its views.
        version: the count when the watch began.
        call: the call that returned the tensor; set by `Overwrites` only.

    """

    __slots__ = ("_tensor", "call", "counter", "version")

    call: Call

    def __init__(self, tensor: Tensor, counter: Tensor | _Outlived) -> None:
        self._tensor = weakref.ref(tensor)
        self.counter, self.version = counter, counter._version

    def written(self) -> bool:
        """Return whether the tensor, or a view of it, was written to since the watch began."""
        return self.counter._version != self.version

    def operation(self) -> str | None:
        """Return the name of the tensor's autograd node, for example `ReluBackward0`."""
        if (tensor := self._tensor()) is None:
            return None
        try:
            node = tensor.grad_fn
        except RuntimeError:  # torch refuses for a view made under no_grad and written to with grad
            return None
        return None if node is None else str(node.name())


def watch(tensor: Tensor) -> VersionWatch | None:
    """Watch a tensor for later writes.

    torch counts writes (`Tensor._version`) in a counter that a tensor shares with the result of `detach()`. If the
    `.data` of this result is replaced, it keeps the counter but not the memory.

    Args:
        tensor: any tensor; it is not kept alive.

    Returns:
        None if torch does not count writes, as for inference tensors and for tensors without memory.

    Example:
        >>> ones = torch.ones(3)
        >>> eye = watch(ones)
        >>> before = eye.written()
        >>> _ = ones.view(-1)[:1].add_(1)
        >>> before, eye.written()
        (False, True)

    """
    if tensor.is_inference():
        return None
    if type(tensor) is Tensor and tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested):
        counter = tensor.detach()
        counter.data = _nothing(tensor.device)
        return VersionWatch(tensor, counter)
    return VersionWatch(tensor, _Outlived(tensor)) if _has_storage(tensor) else None


def _has_storage(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError, ValueError):  # ValueError: an uninitialized parameter
        return False
    return True


class _Outlived:
    """Counts like `Tensor._version` until the tensor is gone; for kinds of tensors that cannot have an alias."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._last = weakref.ref(tensor), tensor._version

    @property
    def _version(self) -> int:
        if (tensor := self._tensor()) is not None:
            self._last = tensor._version
        return self._last


@cache
def _nothing(device: torch.device | str) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(0, device=device)


class Overwrites:
    """Finds the outputs of a pass that were overwritten after their layer returned them, and the cause of each.

    The result is stored in the `overwritten_by` of the calls.
    """

    def __init__(self) -> None:
        self._watched: list[VersionWatch] = []
        self._recent: list[VersionWatch] = []  # the last of them

    def add(self, tensor: Tensor, call: Call) -> None:
        """Watch an output of a call."""
        try:
            eye = watch(tensor)
        except (RuntimeError, TypeError):  # a kind of tensor that has neither a version nor an alias
            return
        if eye is None:
            return
        eye.call = call
        self._watched.append(eye)
        self._recent.append(eye)
        if len(self._recent) > _RECENT:
            del self._recent[0]

    def look(self, call: Call, last: Call | None, inside: bool) -> None:
        """Note which of the latest outputs were written to since the last check.

        Args:
            call: the call that begins, or has just ended.
            last: the last call that returned before.
            inside: whether the write happened inside `call`; otherwise it happened between `last` and `call`.

        """
        for eye in self._recent:
            if eye.counter._version != eye.version:  # written(), without the call: this runs for every layer
                self._recent = [other for other in self._recent if other is not eye]
                between = f"{_named(eye)} between {last.label if last else 'it'} and {call.label}"
                eye.call.overwritten_by = eye.call.overwritten_by or (
                    f"layer {call.label} ({call.type})" if inside else between
                )
                with suppress(ValueError):  # another thread saw it, too
                    self._watched.remove(eye)

    def close(self, last: Call | None) -> None:
        """Check all outputs for the last time.

        Args:
            last: the call that returned last.

        """
        for eye in self._watched:
            if eye.counter._version != eye.version:
                when = f"after {eye.call.label}, the last layer captured" if eye.call is last else "some calls later"
                eye.call.overwritten_by = eye.call.overwritten_by or f"{_named(eye)} {when}"
        self._watched.clear()
        self._recent.clear()


def _named(eye: VersionWatch) -> str:
    node = eye.operation()
    return f"an in-place operation ({node})" if node else "an in-place operation"


_RECENT = 3  # of the latest outputs are looked at for writes at every call; all are at the end
