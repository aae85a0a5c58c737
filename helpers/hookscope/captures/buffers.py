"""Copy into memory of earlier captures of the model, because pages that are already mapped cost less."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Buffers"]

_LEAST = 1 << 16  # bytes; smaller copies are not slow
_MOST = 1 << 28  # bytes for each model; what a capture keeps beyond it is freed with the capture
_arrays: weakref.WeakKeyDictionary[nn.Module, dict[int, list[Any]]] = weakref.WeakKeyDictionary()


class Buffers:
    """The memory into which one pass copies.

    It consists of NumPy arrays. A tensor that is created from an array, its views, and everything else that shares its
    storage hold a reference to the array. So an array is free if only its list refers to it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._arrays = _arrays.setdefault(model, {})
        self._free: dict[int, Iterator[Any]] = {}

    def copy(self, tensor: Tensor) -> Tensor | None:
        """Copy a detached tensor. Return None if it is small or not dense, or if the buffers are full."""
        if not (type(tensor) is Tensor and tensor.is_cpu and _is_dense(tensor)) or (nbytes := tensor.nbytes) < _LEAST:
            return None
        arrays = self._arrays.setdefault(nbytes, [])
        try:
            array = next(self._free.setdefault(nbytes, _free(arrays)), None)
        except ValueError:  # another thread of this pass is looking for one
            return None
        if array is None:
            if nbytes + sum(size * len(each) for size, each in list(self._arrays.items())) > _MOST:
                return None
            arrays.append(array := np.empty(nbytes, np.uint8))
        storage = torch.from_numpy(array).untyped_storage()
        copy = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage, 0, tensor.shape, tensor.stride())
        return copy.copy_(tensor)

    def trim(self) -> None:
        """Release the memory that is free at the end of a pass; the next capture reuses the rest."""
        self._free.clear()
        for arrays in list(self._arrays.values()):
            free = set(map(id, _free(arrays)))
            arrays[:] = [array for array in arrays if id(array) not in free]


def _is_dense(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj())
    return plain and (
        tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
    )


def _references(arrays: list[Any]) -> Iterator[tuple[Any, int]]:
    for array in arrays:
        yield array, sys.getrefcount(array)


_ALONE = next(_references([np.empty(0)]))[1]  # of an array in a list; Python 3.14 counts otherwise than 3.13


def _free(arrays: list[Any]) -> Iterator[Any]:
    return (array for array, count in _references(arrays) if count == _ALONE)
