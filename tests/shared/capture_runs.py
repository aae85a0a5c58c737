"""A model to capture, with numbers for the head; and a run beside the naive reference and an unwatched one."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import census
from hookscope.captures.call import NotCapturedError
from hookscope.captures.capture import capture
from hookscope.captures.result import Capture
from tests.shared.awkward_models import RAISED, Call, Case, cloning, deep_clone, difference, loss_of, seed, tensors_in


def make_small_net() -> nn.Sequential:
    """y = relu(-1 * (1 + 1)) overwritten in place, then 3 * it."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(inplace=True), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net[0].weight, 2.0)
    nn.init.constant_(net[2].weight, 3.0)
    return net


X = torch.tensor([[1.0, -3.0]])  # net[0] gives -4, the ReLU 0


class Between(nn.Module):
    """Two linear layers and something between them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(x)))


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
}


@dataclasses.dataclass
class RunResult:
    """Everything that a run left behind."""

    output: Any
    strides: list[tuple[int, ...]]
    gradients: list[Any]
    state: dict[str, Any]
    random: list[Any]
    flags: dict[str, Any]
    hooks: int
    error: str
    seen: Any


def run_watched(
    build: Callable[[], Case],
    mode: str,
    watch: Callable[[nn.Module], AbstractContextManager[Any]],
    *,
    spoil: bool = False,
) -> RunResult:
    """Build a model and run it, forward and (in mode grad) backward, inside `watch(model)`.

    Args:
        build: how to build it.
        mode: one of `MODES`.
        watch: the block.
        spoil: write zeros, after the block, to all that is the model's or the caller's: what was kept stays.

    """
    model, args, kwargs = build()
    hooks = len(census(model))
    output, error = None, ""
    seed(1)
    watching = watch(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(MODES[mode]())
        seen = None
        try:
            with watching as seen:
                output = model(*args, **kwargs)
                loss = loss_of(output)
                if loss.requires_grad:
                    loss.backward()
        except Exception as raised:  # compared with what the model raises unwatched
            error = f"{type(raised).__name__}: {raised}"
    results = [t for t in tensors_in(output) if t.layout == torch.strided]
    trained = [*model.parameters(), *tensors_in((args, kwargs))]
    played = RunResult(
        output=deep_clone(output),
        strides=[t.stride() for t in results],
        gradients=[(t.requires_grad, t.grad) for t in trained],
        state=deep_clone(dict(model.state_dict())) | {f"arg {i}": t.clone() for i, t in enumerate(tensors_in(args))},
        random=[torch.get_rng_state(), hash(random.getstate())],
        flags={name: (module.training, type(module).__name__) for name, module in model.named_modules()},
        hooks=len(census(model)) - hooks,
        error=error,
        seen=seen,
    )
    if spoil:
        for tensor in (*trained, *model.buffers(), *tensors_in(output)):
            with torch.inference_mode(), contextlib.suppress(RuntimeError):  # several values in one place
                tensor.zero_()
    return played


def assert_same_calls(seen: Capture, reference: list[Call], *, gradients: bool, inputs: bool) -> None:
    assert seen.order == [call.layer for call in reference]
    counts: dict[str, int] = {}
    for expected in reference:
        counts[expected.layer] = counts.get(expected.layer, 0) + 1
        call = seen[expected.layer].calls[expected.number - 1]
        where = f"{call.layer}#{call.number}"
        assert (call.layer, call.number) == (expected.layer, expected.number)
        if inputs:
            assert not difference((call.args, call.kwargs), expected.inputs, f"{where}: inputs")
        if expected.output is RAISED:
            with pytest.raises(NotCapturedError):
                _ = call.output
            continue
        assert not difference(call.output, expected.output, where)
        assert not any(tensor.requires_grad for tensor in tensors_in(call.output)), f"{where} is not detached"
        if gradients and tensors_in(expected.grad):
            assert not difference(call.grad, expected.grad, f"gradient of {where}")
        else:
            with pytest.raises(NotCapturedError):
                _ = call.grad
    assert {name: len(seen[name].calls) for name in seen} == counts


def assert_same_run(actual: RunResult, expected: RunResult) -> None:
    assert actual.error == expected.error
    for quality in ("output", "strides", "gradients", "state", "random", "flags"):
        assert not difference(getattr(actual, quality), getattr(expected, quality), quality)


def compare_runs(build: Callable[[], Case], mode: str, *, gradients: bool, inputs: bool, fused: bool = False) -> str:
    """Compare a captured run with a cloned and with an unwatched one; returns the error that all three raised."""
    plain = run_watched(build, mode, contextlib.nullcontext)
    cloned = run_watched(build, mode, lambda model: cloning(model, gradients))
    captured = run_watched(build, mode, lambda model: capture(model, gradients=gradients, inputs=inputs), spoil=True)
    assert_same_run(captured, cloned if fused else plain)
    assert captured.hooks == 0
    assert_same_calls(captured.seen, cloned.seen, gradients=gradients, inputs=inputs)
    return plain.error
