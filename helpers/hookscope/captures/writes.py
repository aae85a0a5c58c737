"""Notice that a tensor has been written to in place, without holding on to its memory."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call
from hookscope.captures.keep import is_wrapped, keep, same_memory, shares_memory, storage_of

__all__ = ["Overwrites", "Watch", "expected", "watch"]


class Watch:
    """An eye on one tensor; made by `watch`.

    Attributes:
        counter: its `_version` counts the writes to the tensor and to views of it.
        version: what it was at the beginning.
        call: the call that returned the tensor; set by `Overwrites` only.

    """

    __slots__ = ("_tensor", "call", "counter", "version")

    call: Call

    def __init__(self, tensor: Tensor, counter: Tensor | _Moved | _Outlived) -> None:
        self._tensor = weakref.ref(tensor)
        self.counter, self.version = counter, counter._version

    def written(self) -> bool:
        """Whether the tensor, or a view of it, has been written to since."""
        return self.counter._version != self.version

    def operation(self) -> str | None:
        """Name the last operation on the tensor as its node in the graph does, for example `ReluBackward0`."""
        if (tensor := self._tensor()) is None:
            return None
        try:
            node = tensor.grad_fn
        except RuntimeError:  # torch refuses for a view made under no_grad and written to with grad
            return None
        return None if node is None else str(node.name())


def watch(tensor: Tensor, kept: object = None) -> Watch | None:
    """Keep an eye on a tensor that may be written to later.

    torch counts writes (`Tensor._version`) in a counter that a tensor shares with what `detach()` makes of it. Given
    other `.data`, such an alias still has the counter, and none of the memory.

    Inference tensors have no counter. There the address tells, if `kept` is a copy-on-write copy of `tensor`: a
    write moves one of the two.

    Args:
        tensor: any tensor; it is not kept alive, unless it is an inference tensor that shares its memory with `kept`.
        kept: what `hookscope.captures.keep.keep` made of it.

    Returns:
        None if nothing can be known: an inference tensor that was copied at once, or a tensor without memory.

    Example:
        >>> ones = torch.ones(3)
        >>> eye = watch(ones)
        >>> before = eye.written()
        >>> _ = ones.view(-1)[:1].add_(1)
        >>> before, eye.written()
        (False, True)

    """
    if is_wrapped(tensor):
        return None
    if tensor.is_inference():
        return Watch(tensor, _Moved(tensor)) if isinstance(kept, Tensor) and shares_memory(kept) else None
    dense = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if type(tensor) is Tensor and dense:
        counter = tensor.detach()
        counter.data = _nothing(tensor.device)
        return Watch(tensor, counter)
    return None if storage_of(tensor) is None else Watch(tensor, _Outlived(tensor))


class _Moved:
    """Counts like `Tensor._version`: by the address, for a tensor that shares its memory until one is written to."""

    def __init__(self, tensor: Tensor) -> None:
        self._alias = tensor.detach()

    @property
    def _version(self) -> int:
        # Not data_ptr(), which makes the copy that copy-on-write puts off.
        return int(torch._C._data_address(self._alias))  # type: ignore[attr-defined]


class _Outlived:
    """Counts like `Tensor._version`, and stops when the tensor is gone: for kinds that no alias can be made of."""

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


_NOTHING = _nothing("cpu")


class Overwrites:
    """Which outputs of a pass were written to after their layer had returned them, and by what.

    Attributes:
        found: the calls whose output was written to, each with by what.

    """

    def __init__(self) -> None:
        self.found: dict[Call, str] = {}
        self._watched: list[Watch] = []
        self._recent: list[Watch] = []  # the last of them

    def add(self, tensor: Tensor, kept: object, call: Call) -> None:
        """Keep an eye on an output of a call, of which `kept` has the values."""
        try:
            eye = watch(tensor, kept)
        except (RuntimeError, TypeError):  # a kind of tensor that has neither a version nor an alias
            return
        if eye is not None:
            self._add(eye, call)

    def add_ordinary(self, tensor: Tensor, alias: Tensor, call: Call) -> None:
        """Do the same in fewer steps for a tensor that `is_ordinary`."""
        alias.data = _NOTHING
        self._add(Watch(tensor, alias), call)

    def _add(self, eye: Watch, call: Call) -> None:
        eye.call = call
        self._watched.append(eye)
        self._recent.append(eye)
        if len(self._recent) > _RECENT:
            del self._recent[0]

    def look(self, call: Call, last: Call | None, inside: bool) -> None:
        """Note which of the latest outputs have been written to since the last look.

        Args:
            call: the call that begins, or has just ended.
            last: the last call that returned before.
            inside: whether the write was inside `call`; else it was between `last` and it.

        """
        for eye in self._recent:
            if eye.counter._version != eye.version:  # written(), without the call: this runs for every layer
                self._recent = [other for other in self._recent if other is not eye]
                between = f"{_named(eye)} between {last.label if last else 'it'} and {call.label}"
                self.found.setdefault(eye.call, f"layer {call.label} ({call.type})" if inside else between)
                with suppress(ValueError):  # another thread saw it, too
                    self._watched.remove(eye)

    def copy_before(self, tensor: Any) -> None:
        """Copy what is about to be overwritten now, with all threads; copy-on-write would do it with one."""
        if not isinstance(tensor, Tensor) or tensor.numel() < _LARGE or tensor.is_inference():
            return
        copy: Tensor | None = None
        for eye in self._recent:
            for slot in eye.call.slots():
                kept = slot.value
                if isinstance(kept, Tensor) and same_memory(kept, tensor):
                    # What shares memory now, as the outputs of a layer and of its container, goes on sharing it.
                    again = copy is not None and copy.shape == kept.shape and copy.stride() == kept.stride()
                    slot.value = copy = keep(copy) if copy is not None and again else kept.clone()

    def close(self, model: nn.Module, last: Call | None) -> None:
        """Look at all outputs for the last time, and remember for the next pass of the model.

        Args:
            model: whose pass it was.
            last: the call that returned last.

        """
        for eye in self._watched:
            if eye.counter._version != eye.version:
                when = f"after {eye.call.label}, the last layer captured" if eye.call is last else "some calls later"
                self.found.setdefault(eye.call, f"{_named(eye)} {when}")
        known = _known.setdefault(model, set())
        if known:
            known -= {eye.call.label for eye in self._watched}
        known |= {call.label for call in self.found}
        self._watched.clear()
        self._recent.clear()


def expected(model: nn.Module) -> set[str]:
    """Guess the labels of the calls whose output will be overwritten: those for which it was in the last pass."""
    return _known.get(model, set())


def _named(eye: Watch) -> str:
    node = eye.operation()
    return f"an in-place operation ({node})" if node else "an in-place operation"


_LARGE = 1 << 15  # elements; torch copies fewer with one thread anyway
_RECENT = 3  # of the latest outputs are looked at for writes at every call; all are at the end
_known: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
