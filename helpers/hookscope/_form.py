"""In which form a captured tensor is kept: whole, a sample of it, in another dtype or place, or as statistics only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookscope._keep import keep

_PIECE = 1 << 18  # elements; 1 MB of float32

__all__ = ["Form", "Stats", "bytes_of", "stats_of"]


class Stats(NamedTuple):
    """What is left of a tensor when only its statistics are kept.

    Attributes:
        shape: shape of the tensor.
        dtype: its dtype, for example `torch.float32`.
        mean: of the finite values; nan if there are none.
        std: their population standard deviation, likewise.
        mean_abs: the mean of their absolute values, likewise.
        min: the lowest finite value.
        max: the highest finite value.
        zeros: how many values are exactly 0.
        nan: how many are NaN.
        inf: how many are infinite.

    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float
    std: float
    mean_abs: float
    min: float
    max: float
    zeros: int
    nan: int
    inf: int


def stats_of(tensor: Tensor) -> Stats:
    """Compute the statistics of a tensor; nothing of it is kept.

    Args:
        tensor: any real tensor, on any device. Complex numbers count by their absolute value.

    Example:
        >>> stats_of(torch.tensor([0.0, 3.0, float("nan")]))[2:]
        (1.5, 1.5, 1.5, 0.0, 3.0, 1, 1, 0)

    """
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_quantized:
        values = values.dequantize()
    flat = values.reshape(-1)
    nan = inf = zeros = 0
    low, high = float("inf"), -float("inf")
    shift = shifted = squares = absolute = 0.0
    finite = 0
    with torch.no_grad():
        # In pieces that fit the cache: reductions over a whole activation are slow, and need room for a second one.
        for piece in torch.split(flat, _PIECE) if len(flat) else ():
            part = piece.abs() if piece.is_complex() else piece
            zeros += _count_true(part == 0)
            if part.dtype in (torch.float16, torch.bfloat16):
                part = part.float()  # half precision overflows in a sum
            elif not part.is_floating_point():
                part = part.double()  # integers beyond 2**24 do not fit float32
            ends = torch.aminmax(part)
            least, most = float(ends.min), float(ends.max)
            # NaN and infinities show in the extremes, so they are looked for only if there are some.
            if not abs(least) < float("inf") or not abs(most) < float("inf"):
                nan += _count_true(part.isnan())
                inf += _count_true(part.isinf())
                part = part[part.isfinite()]
                if not len(part):
                    continue
                ends = torch.aminmax(part)
                least, most = float(ends.min), float(ends.max)
            if not finite:
                shift = float(part.mean())
            # Sums of what is left after a shift near the mean: nothing cancels in the variance.
            rest = part - shift
            shifted += float(rest.sum())
            squares += float(torch.dot(rest, rest))
            absolute += float(torch.linalg.vector_norm(part, 1))
            finite += len(part)
            low, high = min(low, least), max(high, most)
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not finite:
        return Stats(shape, dtype, *(float("nan"),) * 5, zeros, nan, inf)
    off = shifted / finite
    std = max(squares / finite - off * off, 0.0) ** 0.5
    return Stats(shape, dtype, shift + off, std, absolute / finite, low, high, zeros, nan, inf)


def _count_true(flags: Tensor) -> int:
    # NumPy counts booleans many times faster than torch does on a CPU.
    return int(np.count_nonzero(flags.numpy())) if flags.device.type == "cpu" else int(flags.sum())


@dataclass(frozen=True)
class Form:
    """How to keep a tensor.

    Attributes:
        sample: keep these samples only, along the first axis, which stays; None keeps all.
        dtype: convert floating tensors to this dtype; None leaves them.
        device: move to this device; None leaves them.
        at_once: copy at once, not only when somebody is about to write.

    """

    sample: slice | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    at_once: bool = False

    def __call__(self, tensor: Tensor, not_lazily: Collection[int] = ()) -> Tensor:
        """Return a detached tensor in this form that nothing reaches that is done to `tensor` later.

        Raises:
            IndexError: there is no such sample.

        """
        part = tensor.detach()
        if self.sample is not None and part.dim():
            part = part[self.sample]
            if not len(part):
                raise IndexError(f"sample={self._asked()} picks nothing of a tensor of shape {tuple(tensor.shape)}")
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else None
        if dtype in (None, part.dtype) and self.device in (None, part.device):
            return part.clone() if self.at_once else keep(part, not_lazily)
        return part.to(device=self.device, dtype=dtype, copy=True)

    def bytes_of(self, tensor: Tensor) -> int:
        """Count the bytes that keeping this tensor takes at most; copy-on-write may take less."""
        part = tensor if self.sample is None or not tensor.dim() else tensor[self.sample]
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else part.dtype
        return bytes_of(part.shape, dtype)

    def _asked(self) -> str:
        start, stop = (self.sample.start, self.sample.stop) if self.sample else (None, None)
        return str(start) if stop is not None and start is not None and stop == start + 1 else f"{start}:{stop}"


def bytes_of(shape: Iterable[int], dtype: torch.dtype) -> int:
    """Count the bytes of a dense tensor.

    Example:
        >>> bytes_of((1, 64, 112, 112), torch.float32)
        3211264

    """
    return math.prod(shape) * torch.empty(0, dtype=dtype, device="cpu").element_size()
