"""Measure how many bytes of tensors a pass needs at its peak."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakBytes"]


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of the tensors that operations make inside the block, for as long as each is there.

    Attributes:
        peak: the largest sum of bytes at any time.
        pausing: while it is true, what is made does not count.

    Example:
        >>> import torch
        >>> with PeakBytes() as counted:
        ...     x = torch.ones(1000)
        ...     x = x + 1
        >>> counted.peak
        8000

    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self.pausing = False
        self._now = 0
        self._sizes: dict[weakref.ref[Any], tuple[int, int]] = {}
        self._known: set[int] = set()  # where the memory of these tensors is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if self.pausing:
            return returned
        # Most operations return one tensor, and are given tensors and numbers: to take trees apart takes longer.
        for tensor in (returned,) if isinstance(returned, Tensor) else tree_leaves(returned):
            storage = _get_storage(tensor) if isinstance(tensor, Tensor) else None
            if storage is None or (where := storage.data_ptr()) in self._known or _is_given(where, args, kwargs):
                continue
            self._known.add(where)
            self._now += storage.nbytes()
            self._sizes[weakref.ref(storage, self._release)] = where, storage.nbytes()
        if self._now > self.peak:
            self.peak = self._now
        return returned

    def _release(self, storage: weakref.ref[Any]) -> None:
        where, size = self._sizes.pop(storage)
        self._known.discard(where)
        self._now -= size


def _is_given(where: int, args: Any, kwargs: Any) -> bool:
    """Whether an operation was given a tensor with this memory: a view of what was there before is no new memory."""
    for each in args if not kwargs else tree_leaves((args, kwargs)):
        if isinstance(each, Tensor):
            held = _get_storage(each)
            if held is not None and held.data_ptr() == where:
                return True
        elif isinstance(each, (list, tuple, dict)) and _is_given(where, tree_leaves(each), None):
            return True
    return False


def _get_storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a kind of tensor without
        return None
