"""Check what a capture is asked to keep when it is asked, not in the middle of a pass."""

from __future__ import annotations

import torch
from torch import nn

from hookscope.captures.call import Wanted
from hookscope.captures.stats import compute_stats
from hookscope.captures.storage_options import StorageOptions
from hookscope.layers import Modules

__all__ = ["check_bytes", "check_options"]


def check_options(
    modules: Modules,
    *,
    gradients: bool,
    inputs: bool,
    copy: bool,
    stats: bool,
    samples: int | slice | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    max_bytes: float | None,
    stop: bool | int,
) -> Wanted:
    """Return what is wanted; see `capture` for the options and for what is raised."""
    for name, flag in {"gradients": gradients, "inputs": inputs, "copy": copy, "stats": stats}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}={flag!r}: give True or False; layers are named before, as capture(model, 'conv1')")
    form = StorageOptions(_samples(samples), _dtype(dtype), _device(device), copy)
    if stats and form != StorageOptions():
        raise ValueError("stats=True keeps no tensors: leave out copy, samples, dtype and device")
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    calls = _calls(modules, stop, gradients)
    return Wanted(gradients, inputs, compute_stats if stats else form, max_bytes, calls)


def check_bytes(name: str, given: object, least: int = 0) -> None:
    """Refuse what is no number of bytes.

    Raises:
        TypeError: it is no number.
        ValueError: it is less than `least`, or NaN.

    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name}={given!r}: give a number of bytes, as {name}=1_000_000")
    if not given >= least:  # NaN, too
        raise ValueError(f"{name}={given!r}: give a number of bytes from {least}")


def _samples(samples: object) -> slice | None:
    if isinstance(samples, bool) or not isinstance(samples, int | slice | None):
        raise TypeError(f"samples={samples!r}: give the number of a sample, as samples=0, or a slice")
    if isinstance(samples, int):
        if samples < 0:
            raise ValueError(f"samples={samples}: count samples from 0")
        return slice(samples, samples + 1)
    if samples is None:
        return None
    for part in (samples.start, samples.stop, samples.step):
        if isinstance(part, bool) or not isinstance(part, int | None):
            raise TypeError(f"samples={samples!r}: give a slice of whole numbers, as samples=slice(0, 4)")
    if samples.step is not None and samples.step < 1:
        raise ValueError(f"samples={samples!r}: torch slices forwards only; give a step from 1")
    first, last = samples.start or 0, samples.stop
    if last is not None and (first < 0) == (last < 0) and first >= last:
        raise ValueError(f"samples={samples!r} keeps nothing: give a slice that has samples, as samples=slice(0, 4)")
    return samples


def _dtype(dtype: object) -> torch.dtype | None:
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"dtype={dtype!r}: give a torch.dtype, as dtype=torch.float16")
    if dtype is not None:
        try:
            torch.empty(0, device="cpu").to(dtype)
        except (RuntimeError, TypeError) as error:  # that of a quantized tensor
            raise TypeError(f"dtype={dtype!r}: torch does not convert to it; give another, as torch.float16") from error
        if not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(
                f"dtype={dtype!r}: it cannot hold floating-point values, such as 0.7; give a floating-point dtype, "
                "as dtype=torch.float16"
            )
    return dtype


def _device(device: object) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError, ValueError) as error:  # the last of a number that is too large
        raise TypeError(f"device={device!r}: give a torch.device or its name, as device='cpu'") from error
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # one that is not there
        raise ValueError(f"device={device!r}: torch cannot use it here; {str(error).partition(chr(10))[0]}") from error
    return torch.device(found)


def _calls(modules: Modules, stop: object, gradients: bool) -> int:
    """Return after how many calls of each layer the pass ends; 0 for not at all."""
    if stop is False:
        return 0
    if not isinstance(stop, int):
        raise TypeError(f"stop={stop!r}: give True, or how many calls of each layer to wait for, as stop=2")
    if stop < 1:
        raise ValueError(f"stop={stop!r}: give True, or how many calls of each layer to wait for, from 1")
    if gradients:
        raise ValueError("stop=True ends the pass before there is anything to call backward() on; leave out gradients")
    if nn.DataParallel in modules.kinds:
        raise ValueError("nn.DataParallel runs its layers in threads, which stop=True does not end; give its .module")
    return int(stop)
