"""Notice that a tensor has been written to in place, without holding on to its memory."""

from __future__ import annotations

import weakref
from functools import cache

import torch
from torch import Tensor

from hookscope._keep import is_wrapped, shares_memory, storage_of

__all__ = ["Watch", "watch"]


class Watch:
    """An eye on one tensor; made by `watch`."""

    __slots__ = ("_counter", "_tensor", "_version")

    def __init__(self, tensor: Tensor, counter: Tensor | _Moved | _Outlived) -> None:
        self._tensor = weakref.ref(tensor)
        self._counter, self._version = counter, counter._version

    def written(self) -> bool:
        """Whether the tensor, or a view of it, has been written to since."""
        return self._counter._version != self._version

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
        kept: what `hookscope._keep.keep` made of it.

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
    if tensor.is_inference():
        return Watch(tensor, _Moved(tensor)) if isinstance(kept, Tensor) and shares_memory(kept) else None
    if is_wrapped(tensor):
        return None
    if type(tensor) is Tensor and tensor.layout is torch.strided:
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
def _nothing(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(0, device=device)
