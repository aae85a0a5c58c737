"""How a captured tensor is kept: copied or not, whole or a sample of it, in another dtype or on another device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hookscope.captures.stats import Stats, unknown_stats

__all__ = ["StorageOptions", "bytes_of", "keep_fallback"]


def keep_fallback(
    tensor: Tensor, form: StorageOptions | Callable[[Tensor], Stats], error: Exception, say: Callable[[str], None]
) -> Tensor | Stats:
    """Store a tensor as well as possible if it cannot be stored in the requested form.

    Args:
        tensor: the tensor.
        form: the requested form.
        error: the error that torch raised.
        say: called with a note that names the replacement.

    """
    kind = _kind_of(tensor)
    if not isinstance(form, StorageOptions):
        say(f"torch cannot compute statistics of a {kind} ({type(error).__name__}), so they are NaN")
        return unknown_stats(tensor)
    try:
        kept = tensor.detach().clone()
    except Exception:  # whatever a class of somebody else's raises
        say(f"a {kind} cannot be copied ({type(error).__name__}), so only its shape is kept")
        return torch.empty(tensor.shape if not tensor.is_nested else (), dtype=tensor.dtype, device="meta")
    say(f"torch cannot slice or convert a {kind} ({type(error).__name__}), so all of it is kept unchanged")
    return kept


def _kind_of(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_quantized:
        return "quantized tensor"
    return "tensor" if tensor.layout is torch.strided else f"{str(tensor.layout).removeprefix('torch.')} tensor"


@dataclass(frozen=True)
class StorageOptions:
    """How to store a tensor.

    Attributes:
        samples: which samples to keep on the first axis; None keeps all.
        dtype: convert floating-point tensors to this dtype; None does not convert them.
        device: move tensors to this device; None does not move them.
        copy: whether to copy the tensor; if False, a reference is stored when `refers_to` allows it.

    """

    samples: slice | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    copy: bool = True

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return a copy of a detached tensor in this form."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # autograd refuses the tensors that are made in that mode
                return self(tensor)
        part = self.part_of(tensor)
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else part.dtype
        if (self.device is None or self.device == part.device) and dtype is part.dtype:
            return part.clone()
        return part.to(device=self.device, dtype=dtype, copy=True)

    def part_of(self, tensor: Tensor) -> Tensor:
        """Return the samples of a tensor that will be kept."""
        return tensor if self.samples is None or not tensor.dim() else tensor[self.samples]

    def refers_to(self, tensor: Tensor) -> bool:
        """Return whether a tensor is stored by reference: torch counts the writes to it, and it needs no conversion."""
        return (
            not self.copy
            and type(tensor) in (Tensor, nn.Parameter)
            and tensor.layout is torch.strided
            and not (tensor.is_quantized or tensor.is_nested or tensor.is_inference())
            and (self.device is None or self.device == tensor.device)
            and (self.dtype is None or self.dtype is tensor.dtype or not tensor.is_floating_point())
        )

    def bytes_of(self, tensor: Tensor) -> int:
        """Return how many bytes the stored tensor takes."""
        try:
            part = self.part_of(tensor)
        except (RuntimeError, TypeError):  # sparse and nested tensors are not sliced
            part = tensor
        dtype = self.dtype if self.dtype is not None and part.is_floating_point() else part.dtype
        return bytes_of((part.numel(),) if part.is_nested else part.shape, dtype)

    def picks_nothing(self, tensor: Tensor, kept: object) -> bool:
        """Return whether a tensor has none of the requested samples; `kept` is the part that was stored."""
        if self.samples is None or not tensor.dim() or not isinstance(kept, Tensor) or kept.is_nested:
            return False
        return not kept.shape[:1].numel()

    def asked(self) -> str:
        """Return the requested samples as text, such as ``samples=0``."""
        start, stop = (self.samples.start, self.samples.stop) if self.samples else (None, None)
        one = stop is not None and start is not None and stop == start + 1
        return f"samples={start if one else f'{start}:{stop}'}"


def bytes_of(shape: Iterable[int], dtype: torch.dtype) -> int:
    """Return the size of a dense tensor in bytes.

    Example:
        >>> bytes_of((1, 64, 112, 112), torch.float32)
        3211264

    """
    return math.prod(shape) * torch.empty(0, dtype=dtype, device="cpu").element_size()
