"""Forecast what a capture will keep, by a pass that computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hookscope.captures.call import Wanted
from hookscope.captures.form import Form, Stats

__all__ = ["forecast"]


def forecast(
    model: nn.Module,
    wanted: Wanted,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    capturing: Callable[[Callable[[Tensor], Stats]], Any],
) -> int:
    """Count the bytes that one pass keeps at most; see `Capture.estimate`.

    Args:
        model: the model.
        wanted: what is kept.
        args: the inputs of the pass.
        kwargs: likewise.
        capturing: makes a capture of the same layers that gives every tensor to a function.

    Raises:
        RuntimeError: the model's path depends on values.

    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    form = wanted.form
    if not isinstance(form, Form):
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
        ):
            # Fakes take the place of parameters and buffers: one written to in place would be really written to.
            state: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            stand_ins: dict[str, Tensor] = {name: fake.from_tensor(tensor) for name, tensor in state.items()}
            functional_call(model, stand_ins, args, dict(kwargs))
    except Exception as error:
        raise RuntimeError(
            f"no forecast: {type(model).__name__} does not run on fake tensors ({type(error).__name__}); its path may "
            "depend on values. Capture with keep='stats' or max_bytes=... instead"
        ) from error
    return total
