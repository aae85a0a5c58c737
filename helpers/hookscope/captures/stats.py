"""Statistics of a tensor, which a capture can keep instead of the tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Stats", "compute_stats", "shape_of", "unknown_stats"]

_PIECE = 1 << 18  # elements; 1 MB of float32


class Stats(NamedTuple):
    """The statistics of a tensor.

    If the tensor has no values, as on the device `meta`, everything but shape and dtype is nan.

    Attributes:
        shape: the shape of the tensor.
        dtype: the dtype of the tensor, for example `torch.float32`.
        mean: the mean of the finite values; nan if there are none.
        std: the population standard deviation of the finite values; nan if there are none.
        mean_abs: the mean of the absolute finite values; nan if there are none.
        min: the smallest finite value.
        max: the largest finite value.
        zeros: the number of values that are exactly 0.
        nan: the number of NaN values.
        inf: the number of infinite values.

    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float
    std: float
    mean_abs: float
    min: float
    max: float
    zeros: float
    nan: float
    inf: float


def compute_stats(tensor: Tensor) -> Stats:
    """Compute the statistics of a tensor, without keeping the tensor.

    Args:
        tensor: any tensor, on any device. For complex values, the absolute values are used.

    Example:
        >>> compute_stats(torch.tensor([0.0, 2.0, float("nan")]))[2:]
        (1.0, 1.0, 1.0, 0.0, 2.0, 1, 1, 0)

    """
    flat = _flat(tensor.detach())
    if flat.is_meta or isinstance(flat, FakeTensor):
        return unknown_stats(tensor)
    found = _Sums()
    # In pieces that fit the cache: reductions over a whole activation are slow, and need room for a second one.
    # Detached, and not under no_grad: an interrupt at its end would leave gradients off.
    for piece in (flat,) if flat.numel() <= _PIECE else torch.split(flat, _PIECE):
        found.add(piece.abs() if piece.is_complex() else piece)
    return Stats(shape_of(tensor), tensor.dtype, *found.result())


def unknown_stats(tensor: Tensor) -> Stats:
    """Return the statistics of a tensor without values: shape and dtype, and NaN for the rest."""
    return Stats(shape_of(tensor), tensor.dtype, *(math.nan,) * 8)


def _flat(values: Tensor) -> Tensor:
    """Return the numbers of any kind of tensor along one axis."""
    if values.is_nested:
        parts = [part.reshape(-1) for part in values.unbind()]
        return torch.cat(parts) if parts else torch.empty(0)
    if hasattr(values, "to_local"):  # a DTensor: the whole would have to be gathered from other processes
        values = values.to_local()
    if values.is_meta:
        return values
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_quantized:
        values = values.dequantize()
    if values.is_floating_point() and values.dtype.itemsize == 1:
        values = values.float()  # float8 has hardly any operations
    return values.reshape(-1)


def shape_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return the shape of a tensor, with `"?"` for a ragged dimension.

    Example:
        >>> shape_of(torch.ones(2, 3))
        (2, 3)

    """
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        return tuple(side if type(side) is int else "?" for side in tensor.shape)
    sides: list[Any] = []
    for axis in range(tensor.dim()):
        try:
            sides.append(tensor.size(axis))
        except RuntimeError:  # ragged
            sides.append("?")
    return tuple(sides)


class _Sums:
    """Statistics of the pieces of a tensor, put together."""

    def __init__(self) -> None:
        self.zeros = self.nan = self.inf = self.finite = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = self.absolute = 0.0
        self.root = 0.0  # of the summed squares of the distances from the mean, which may be too large for a float

    def add(self, part: Tensor) -> None:
        """Add one piece: real numbers along one axis."""
        if not part.numel():
            return
        if part.dtype in (torch.float16, torch.bfloat16):
            part = part.float()  # half precision overflows in a sum
        elif not part.is_floating_point():
            part = part.double()  # integers beyond 2**24 do not fit float32
        low, high = map(float, torch.aminmax(part))
        # What cannot be there is not looked for: NaN and infinities show in the extremes, zeros and signs too.
        if not (low > -math.inf and high < math.inf):
            self.nan += _count(part.isnan())
            self.inf += _count(part.isinf())
            part = part[part.isfinite()]
            if not part.numel():
                return
            low, high = map(float, torch.aminmax(part))
        if low <= 0 <= high:
            self.zeros += _zeros(part)
        count = part.numel()
        mean, root = _moments(part) if low < high else (low, 0.0)
        # Two means and two sums of squares into one: Chan, Golub and LeVeque, 1979.
        off, together = mean - self.mean, self.finite + count
        self.root = math.hypot(self.root, root, off * math.sqrt(self.finite * count / together))
        self.mean += off * count / together
        self.absolute += abs(mean) * count if low >= 0 or high <= 0 else _sum(part.abs())
        self.finite = together
        self.low, self.high = min(self.low, low), max(self.high, high)

    def result(self) -> tuple[float, float, float, float, float, int, int, int]:
        """Return the fields of `Stats` after shape and dtype."""
        counts = self.zeros, self.nan, self.inf
        if not self.finite:
            return (math.nan,) * 5 + counts
        std = self.root / math.sqrt(self.finite)
        return self.mean, std, self.absolute / self.finite, self.low, self.high, *counts


def _moments(part: Tensor) -> tuple[float, float]:
    """Return the mean, and the root of the summed squares of the distances from it."""
    count = part.numel()
    total, dot = float(part.sum()), float(torch.dot(part, part))
    least = torch.finfo(part.dtype).tiny / torch.finfo(part.dtype).eps * count  # below it squares have lost digits
    if not (math.isfinite(total) and least < dot < math.inf):
        if part.dtype is not torch.float64:
            return _moments(part.double())
        scale = 2.0 ** (math.frexp(float(part.abs().max()))[1] - 1)
        mean, root = _moments(part / scale)
        return mean * scale, root * scale
    mean = total / count
    squares = dot - total * mean
    # The difference of two large numbers keeps few digits: far from zero, measure from the mean instead.
    if total * mean > 16 * squares:
        rest = part.double() - mean  # far enough from zero, float32 has no place for the mean
        slip = float(rest.sum())
        mean, squares = mean + slip / count, float(torch.dot(rest, rest)) - slip * slip / count
    return mean, math.sqrt(max(squares, 0.0))


def _sum(part: Tensor) -> float:
    total = float(part.sum())
    return total if math.isfinite(total) else float(part.double().sum())


def _zeros(part: Tensor) -> int:
    # NumPy compares and counts several times faster than torch does on a CPU. Not by part.numpy(): after that, the
    # model could not resize the memory of its own tensor.
    return int(np.count_nonzero(np.from_dlpack(part) == 0)) if part.device.type == "cpu" else _count(part == 0)


def _count(flags: Tensor) -> int:
    return int(np.count_nonzero(flags.numpy())) if flags.device.type == "cpu" else int(flags.sum())
