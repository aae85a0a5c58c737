"""Estimate how much a capture will keep, with a pass that computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Wanted
from hookscope.captures.stats import Stats
from hookscope.captures.storage_options import StorageOptions
from hookscope.preserve import ModuleAttributes

__all__ = ["estimate_bytes", "fake_parameters", "format_bytes"]


def format_bytes(number: float) -> str:
    """Format a number of bytes for people.

    Example:
        >>> format_bytes(6400), format_bytes(3 << 30)
        ('6.2 KiB', '3.0 GiB')

    """
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{number:,.0f} bytes"


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def estimate_bytes(
    model: nn.Module,
    wanted: Wanted,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    capturing: Callable[[Callable[[Tensor], Stats]], Any],
) -> int:
    """Return the maximum number of bytes that one pass keeps; see `Capture.estimate`.

    Args:
        model: the model.
        wanted: the options of the capture.
        args: the positional arguments of the model.
        kwargs: the keyword arguments of the model.
        capturing: creates a capture of the same layers that passes every tensor to a function.

    Raises:
        RuntimeError: the model cannot run without values.

    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    form = wanted.form
    if not isinstance(form, StorageOptions):
        return 0
    total = 0

    def count(tensor: Tensor) -> Stats:
        nonlocal total
        twice = wanted.gradients and tensor.requires_grad
        total += form.bytes_of(tensor) * (2 if twice else 1)
        return Stats(tuple(tensor.shape), tensor.dtype, *(0.0,) * 5, 0, 0, 0)

    try:
        with (
            torch.random.fork_rng(devices=[]),
            FakeTensorMode(allow_non_fake_inputs=True) as fake,
            capturing(count),
            fake_parameters(model, fake.from_tensor),
        ):
            model(*args, **kwargs)
    except Exception as error:
        raise RuntimeError(
            f"cannot estimate the size, because {type(model).__name__} does not run on tensors without values "
            f"({type(error).__name__}). Capture with stats=True or max_bytes=... instead"
        ) from error
    return total


@contextmanager
def fake_parameters(model: nn.Module, fake: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace parameters and buffers by fake ones, because in-place writes would change the real ones."""
    # Not torch.func.functional_call, which leaves its tensors in a module that the model holds under two names.
    held: list[MutableMapping[str, Any]] = [
        into
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for into in (module._parameters, module._buffers)
    ]
    before = [dict(into) for into in held]
    fakes: dict[int, Tensor] = {}
    own = ModuleAttributes(model.modules())  # a pass may leave a fake there
    try:
        for into, was in zip(held, before, strict=True):
            for name, tensor in was.items():
                if tensor is not None:
                    if id(tensor) not in fakes:
                        fakes[id(tensor)] = fake(tensor)
                    into[name] = fakes[id(tensor)]
        yield
    finally:
        for into, was in zip(held, before, strict=True):
            into.clear()
            into.update(was)
        own.restore()
