"""In which form a captured tensor is kept: whole, a sample of it, in another dtype or place, or as statistics only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from hookscope.captures.buffers import Buffers
from hookscope.captures.keep import is_wrapped, unwrapped

_PIECE = 1 << 18  # elements; 1 MB of float32

__all__ = ["Form", "Stats", "bytes_of", "kept_otherwise", "shape_of", "stats_of"]


class Stats(NamedTuple):
    """What is left of a tensor when only its statistics are kept.

    Of a tensor without values, as on the device `meta`, all but shape and dtype is nan.

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
    zeros: float
    nan: float
    inf: float


def stats_of(tensor: Tensor) -> Stats:
    """Compute the statistics of a tensor; nothing of it is kept.

    Args:
        tensor: any real tensor, on any device. Complex numbers count by their absolute value.

    Example:
        >>> stats_of(torch.tensor([0.0, 2.0, float("nan")]))[2:]
        (1.0, 1.0, 1.0, 0.0, 2.0, 1, 1, 0)

    """
    if is_wrapped(tensor):
        with unwrapped(tensor) as inside:
            return stats_of(inside)
    flat = _flat(tensor.detach())
    if flat.is_meta or isinstance(flat, FakeTensor):
        return _unknown(tensor)
    found = _Sums()
    # In pieces that fit the cache: reductions over a whole activation are slow, and need room for a second one.
    # Detached, and not under no_grad: an interrupt at its end would leave gradients off.
    for piece in (flat,) if flat.numel() <= _PIECE else torch.split(flat, _PIECE):
        found.add(piece.abs() if piece.is_complex() else piece)
    return Stats(shape_of(tensor), tensor.dtype, *found.result())


def _unknown(tensor: Tensor) -> Stats:
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
    """Return the shape of a tensor, `"?"` for a ragged side.

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


def kept_otherwise(
    tensor: Tensor, form: Form | Callable[[Tensor], Stats], error: Exception, say: Callable[[str], None]
) -> Tensor | Stats:
    """Keep a tensor as well as it goes, where it cannot be kept in the form that was asked for.

    Args:
        tensor: the tensor.
        form: what was asked for.
        error: what torch raised about it.
        say: is told what was done.

    """
    kind = _kind_of(tensor)
    if not isinstance(form, Form):
        say(f"torch has no statistics of a {kind} ({type(error).__name__}); they are NaN")
        return _unknown(tensor)
    try:
        kept = tensor.detach().clone()
    except Exception:  # whatever a class of somebody else's raises
        say(f"a {kind} cannot be copied ({type(error).__name__}); only its shape is kept")
        return torch.empty(tensor.shape if not tensor.is_nested else (), dtype=tensor.dtype, device="meta")
    say(f"a {kind} is kept whole and as it is: torch refuses what was asked for ({type(error).__name__})")
    return kept


def _kind_of(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_quantized:
        return "quantized tensor"
    return "tensor" if tensor.layout is torch.strided else f"{str(tensor.layout).removeprefix('torch.')} tensor"


class _Sums:
    """Statistics of the pieces of a tensor, put together."""

    def __init__(self) -> None:
        self.zeros = self.nan = self.inf = self.finite = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = self.absolute = 0.0
        self.root = 0.0  # of the summed squares of the distances from the mean, which may be too large for a float

    def add(self, part: Tensor) -> None:
        """Take one piece, one axis, real numbers."""
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
    # NumPy compares and counts several times faster than torch does on a CPU.
    return int(np.count_nonzero(part.numpy() == 0)) if part.device.type == "cpu" else _count(part == 0)


def _count(flags: Tensor) -> int:
    return int(np.count_nonzero(flags.numpy())) if flags.device.type == "cpu" else int(flags.sum())


@dataclass(frozen=True)
class Form:
    """How to keep a tensor.

    Attributes:
        sample: keep these samples only, along the first axis, which stays; None keeps all.
        dtype: convert floating tensors to this dtype; None leaves them.
        device: move to this device; None leaves them.
        copy: copy the tensor; False keeps a reference where `refers_to` says so.

    """

    sample: slice | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    copy: bool = True

    def __call__(self, tensor: Tensor, buffers: Buffers | None = None) -> Tensor:
        """Return a detached copy of a tensor in this form.

        Args:
            tensor: any detached tensor.
            buffers: memory to copy into.

        """
        if is_wrapped(tensor):
            with unwrapped(tensor) as inside:
                return self(inside, buffers)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # autograd refuses the tensors that are made in that mode
                return self(tensor, buffers)
        part = self.part_of(tensor)
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else part.dtype
        if (self.device is None or self.device == part.device) and dtype is part.dtype:
            copy = buffers.copy(part) if buffers is not None else None
            return part.clone() if copy is None else copy
        return part.to(device=self.device, dtype=dtype, copy=True)

    def part_of(self, tensor: Tensor) -> Tensor:
        """Return the samples of a tensor that are to be kept."""
        return tensor if self.sample is None or not tensor.dim() else tensor[self.sample]

    def refers_to(self, tensor: Tensor) -> bool:
        """Whether a tensor is kept by reference: torch counts the writes to it, and nothing has to be converted."""
        return (
            not self.copy
            and type(tensor) in (Tensor, nn.Parameter)
            and tensor.layout is torch.strided
            and not (tensor.is_quantized or tensor.is_nested or tensor.is_inference() or is_wrapped(tensor))
            and (self.device is None or self.device == tensor.device)
            and (self.dtype is None or self.dtype is tensor.dtype or not tensor.is_floating_point())
        )

    def bytes_of(self, tensor: Tensor) -> int:
        """Count the bytes that keeping this tensor takes ."""
        try:
            part = self.part_of(tensor)
        except (RuntimeError, TypeError):  # sparse and nested tensors are not sliced
            part = tensor
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else part.dtype
        return bytes_of((part.numel(),) if part.is_nested else part.shape, dtype)

    def picks_nothing(self, tensor: Tensor, kept: object) -> bool:
        """Whether the samples asked for are not in a tensor, of which `kept` was made."""
        if self.sample is None or not tensor.dim() or not isinstance(kept, Tensor) or kept.is_nested:
            return False
        return not kept.shape[:1].numel()

    def asked(self) -> str:
        """Write the samples that are wanted, as they were asked for."""
        start, stop = (self.sample.start, self.sample.stop) if self.sample else (None, None)
        one = stop is not None and start is not None and stop == start + 1
        return f"sample={start if one else f'{start}:{stop}'}"


def bytes_of(shape: Iterable[int], dtype: torch.dtype) -> int:
    """Count the bytes of a dense tensor.

    Example:
        >>> bytes_of((1, 64, 112, 112), torch.float32)
        3211264

    """
    return math.prod(shape) * torch.empty(0, dtype=dtype, device="cpu").element_size()
