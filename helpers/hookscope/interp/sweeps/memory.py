"""Measure the peak memory of the tensors in a pass."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakBytes"]


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations make inside the block, until each is freed.

    Attributes:
        peak: the largest number of bytes at any time.

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
        self._known: set[int] = set()  # addresses of storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        # Most operations return one tensor; flattening a tree takes longer.
        for tensor in (returned,) if isinstance(returned, Tensor) else tree_leaves(returned):
            storage = _get_storage(tensor) if isinstance(tensor, Tensor) else None
            if storage is None or (address := storage.data_ptr()) in self._known or _is_given(address, args, kwargs):
                continue
            self._known.add(address)
            self._now += storage.nbytes()
            self._sizes[weakref.ref(storage, self._release)] = address, storage.nbytes()
        self.peak = max(self.peak, self._now)
        return returned

    def _release(self, storage: weakref.ref[Any]) -> None:
        address, size = self._sizes.pop(storage)
        self._known.discard(address)
        self._now -= size


def _is_given(address: int, args: Any, kwargs: Any) -> bool:
    """Return whether an argument of the operation has this memory: a view of an older tensor takes no new memory."""
    for each in tree_leaves((args, kwargs)):
        if isinstance(each, Tensor):
            storage = _get_storage(each)
            if storage is not None and storage.data_ptr() == address:
                return True
    return False


def _get_storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a tensor subclass without a storage
        return None
