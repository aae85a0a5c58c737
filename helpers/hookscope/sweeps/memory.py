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
        self._now = 0
        self._sizes: dict[weakref.ref[Any], tuple[int, int]] = {}
        self._known: set[int] = set()  # where the memory of these tensors is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        given = None
        # Most operations return one tensor, and are given tensors and numbers: to take trees apart takes longer.
        for tensor in (returned,) if isinstance(returned, Tensor) else tree_leaves(returned):
            if not isinstance(tensor, Tensor):
                continue
            storage = _storage(tensor)
            if storage is None or (where := storage.data_ptr()) in self._known:
                continue
            if given is None:  # a view of what was there before is no new memory
                flat = not kwargs and not any(isinstance(each, (list, tuple, dict)) for each in args)
                leaves = args if flat else tree_leaves((args, kwargs))
                tensors = (each for each in leaves if isinstance(each, Tensor))
                given = {held.data_ptr() for each in tensors if (held := _storage(each)) is not None}
            if where not in given:
                self._known.add(where)
                self._now += storage.nbytes()
                self._sizes[weakref.ref(storage, self._gone)] = where, storage.nbytes()
        self.peak = max(self.peak, self._now)
        return returned

    def _gone(self, storage: weakref.ref[Any]) -> None:
        where, size = self._sizes.pop(storage)
        self._known.discard(where)
        self._now -= size


def _storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a kind of tensor without
        return None
