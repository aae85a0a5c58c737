"""Check the options of a capture when it is created, and not in the middle of a pass."""

from __future__ import annotations

import torch
from torch import nn

from hookscope.captures.call import Wanted
from hookscope.captures.stats import compute_stats
from hookscope.captures.tensor_copies import StorageOptions
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
    """Check the options and return them; `capture` documents the options and the errors."""
    for name, flag in {"gradients": gradients, "inputs": inputs, "copy": copy, "stats": stats}.items():
        if not isinstance(flag, bool):
            raise TypeError(
                f"{name}={flag!r} is not a bool. Pass True or False. Layers are positional: capture(model, 'conv1')"
            )
    form = StorageOptions(_samples(samples), _dtype(dtype), _device(device), copy)
    if stats and form != StorageOptions():
        raise ValueError("stats=True keeps no tensors. Leave out copy, samples, dtype and device")
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    calls = _calls(modules, stop, gradients)
    return Wanted(gradients, inputs, compute_stats if stats else form, max_bytes, calls)


def check_bytes(name: str, given: object, least: int = 0) -> None:
    """Check that a value is a valid number of bytes.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is less than `least`, or NaN.

    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name}={given!r} is not a number. Pass a number of bytes, such as {name}=1_000_000")
    if not given >= least:  # NaN, too
        raise ValueError(f"{name}={given!r} is too small. Pass {least} or more bytes")


def _samples(samples: object) -> slice | None:
    if isinstance(samples, bool) or not isinstance(samples, int | slice | None):
        raise TypeError(f"samples={samples!r} is not an index. Pass an integer, such as samples=0, or a slice")
    if isinstance(samples, int):
        if samples < 0:
            raise ValueError(f"samples={samples} is negative. Count samples from 0")
        return slice(samples, samples + 1)
    if samples is None:
        return None
    for part in (samples.start, samples.stop, samples.step):
        if isinstance(part, bool) or not isinstance(part, int | None):
            raise TypeError(f"samples={samples!r} is not a slice of integers. Pass one, such as samples=slice(0, 4)")
    if samples.step is not None and samples.step < 1:
        raise ValueError(f"samples={samples!r} has a step below 1, which torch does not support. Pass 1 or more")
    first, last = samples.start or 0, samples.stop
    if last is not None and (first < 0) == (last < 0) and first >= last:
        raise ValueError(f"samples={samples!r} selects no samples. Pass a larger slice, such as samples=slice(0, 4)")
    return samples


def _dtype(dtype: object) -> torch.dtype | None:
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"dtype={dtype!r} is not a dtype. Pass one, such as dtype=torch.float16")
    if dtype is not None:
        try:
            torch.empty(0, device="cpu").to(dtype)
        except (RuntimeError, TypeError) as error:  # that of a quantized tensor
            text = f"torch cannot convert tensors to dtype={dtype!r}. Pass another one, such as torch.float16"
            raise TypeError(text) from error
        if not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(
                f"dtype={dtype!r} cannot hold floating-point values such as 0.7. Pass a floating-point dtype, such as "
                "dtype=torch.float16"
            )
    return dtype


def _device(device: object) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError, ValueError) as error:  # the last of a number that is too large
        raise TypeError(f"device={device!r} is not a device. Pass a torch.device or its name, such as 'cpu'") from error
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # one that is not there
        reason = str(error).partition(chr(10))[0]
        raise ValueError(f"torch cannot use device={device!r} on this machine: {reason}") from error
    return torch.device(found)


def _calls(modules: Modules, stop: object, gradients: bool) -> int:
    """Return the number of calls of each layer after which the pass ends; 0 if it does not end early."""
    if stop is False:
        return 0
    if not isinstance(stop, int):
        raise TypeError(f"stop={stop!r} is not a number of calls. Pass True, or a number of calls per layer, such as 2")
    if stop < 1:
        raise ValueError(f"stop={stop!r} is too small. Pass True, or at least 1 call per layer")
    if gradients:
        raise ValueError("stop=True ends the pass early, so there is no loss for backward(). Leave out gradients=True")
    if nn.DataParallel in modules.kinds:
        raise ValueError("stop=True cannot end the threads of nn.DataParallel. Pass the model in its .module")
    return int(stop)
