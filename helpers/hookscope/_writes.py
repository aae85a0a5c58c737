"""Notice that a tensor has been written to in place, without holding on to its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from hookscope._keep import is_wrapped, shares_memory, storage_of

__all__ = ["Watch", "watch"]


class Watch:
    """An eye on one tensor; made by `watch`.

    Attributes:
        stamp: function that returns another number after each write.
        first: what it returned at the beginning.

    """

    __slots__ = ("_tensor", "first", "stamp")

    def __init__(self, tensor: Tensor, stamp: Callable[[], int]) -> None:
        self._tensor = weakref.ref(tensor)
        self.stamp, self.first = stamp, stamp()

    def written(self) -> bool:
        """Whether the tensor, or a view of it, has been written to since."""
        return self.stamp() != self.first

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
        if not (isinstance(kept, Tensor) and shares_memory(kept)):
            return None
        alias = tensor.detach()
        # Not data_ptr(), which makes the copy that copy-on-write puts off.
        return Watch(tensor, lambda: int(torch._C._data_address(alias)))  # type: ignore[attr-defined]
    if type(tensor) is Tensor and not is_wrapped(tensor) and tensor.layout is torch.strided:
        counter = tensor.detach()
        counter.data = _nothing(tensor.device)
        return Watch(tensor, lambda: counter._version)
    if is_wrapped(tensor) or storage_of(tensor) is None:
        return None
    reference = weakref.ref(tensor)
    first = tensor._version
    return Watch(tensor, lambda: first if (alive := reference()) is None else alive._version)


@cache
def _nothing(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(0, device=device)
