"""Check what a capture is asked to keep, before the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.form import Form, Stats, stats_of

__all__ = ["form_of"]


def form_of(keep: Any, sample: Any, dtype: Any, device: Any, max_bytes: Any) -> Form | Callable[[Tensor], Stats]:
    """Return in which form tensors are kept, from the options of `capture`, which are checked."""
    if keep not in ("tensors", "copies", "stats"):
        raise ValueError(f"keep={keep!r}: give 'tensors', 'copies' or 'stats'")
    # Here, not in the middle of a pass, where torch would say it in its own words.
    if not isinstance(sample, int | slice | None) or isinstance(sample, bool):
        raise TypeError(f"sample={sample!r}: give the number of a sample, as sample=0, or a slice")
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"dtype={dtype!r}: give a torch.dtype, as dtype=torch.float16")
    if not isinstance(max_bytes, int | float | None):
        raise TypeError(f"max_bytes={max_bytes!r}: give a number of bytes, as max_bytes=1_000_000")
    if isinstance(sample, int):
        if sample < 0:
            raise ValueError(f"sample={sample}: count samples from 0")
        sample = slice(sample, sample + 1)
    form = Form(sample, dtype, _device(device), at_once=keep == "copies")
    if keep == "stats" and form != Form():
        raise ValueError("keep='stats' keeps no tensors: leave out sample, dtype and device")
    return stats_of if keep == "stats" else form


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"device={device!r}: give a torch.device or its name, as device='cpu'") from error
