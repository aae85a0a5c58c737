"""Memory that is used again: copying into it is several times cheaper than into new pages."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.captures.keep import lazy_clone

__all__ = ["Pool"]


class Pool:
    """Tensors whose memory may be written over.

    Whoever still holds a tensor that was offered does not notice: what the pool takes is a copy-on-write copy, so
    that writing to it moves it elsewhere. If nobody does, which is the rule, writing costs no new memory.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[object, ...], list[Tensor]] = {}

    def offer(self, tensor: Tensor) -> None:
        """Take the memory of a detached tensor, if it is on the CPU and of the ordinary kind."""
        if not tensor.is_cpu or tensor.is_inference() or _overlaps(tensor):
            return
        if (copy := lazy_clone(tensor)) is not None:
            self._free.setdefault((copy.shape, copy.stride(), copy.dtype), []).append(copy)

    def copy(self, tensor: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Copy a detached tensor into memory of the pool, as `dtype`; None if there is none for it."""
        if not self._free or not tensor.is_cpu or tensor.layout is not torch.strided or type(tensor) is not Tensor:
            return None
        free = self._free.get((tensor.shape, tensor.stride(), dtype))
        try:
            return free.pop().copy_(tensor) if free else None
        except IndexError:  # another thread has taken it
            return None

    def nbytes(self) -> int:
        """Count the bytes that are held."""
        return sum(tensor.nbytes for tensors in list(self._free.values()) for tensor in list(tensors))

    def clear(self) -> None:
        """Let the memory go."""
        self._free.clear()


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements may share memory, as those of `expand()` do: torch does not copy into that."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_contiguous():
        return False
    reach = 0  # what the axes inside of this one span
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
