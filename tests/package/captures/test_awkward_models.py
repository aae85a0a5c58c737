"""What `capture` keeps is what a clone at the moment the layer returned holds, for every awkward model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import leaves
from hookscope.captures.capture import capture
from tests.shared import awkward
from tests.shared.awkward import MODELS, cloning, deep_clone, difference
from tests.shared.captured import MODES, check, play

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, checkpoints and the like


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_every_call_is_kept_and_nothing_else_changes(name: str, mode: str) -> None:
    error = check(MODELS[name], mode, gradients=mode == "grad", inputs=False, fused=name in awkward.FUSED)
    assert not error


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_kept_as_they_were_before_the_layer_ran(name: str) -> None:
    check(MODELS[name], "grad", gradients=False, inputs=True, fused=name in awkward.FUSED)


@pytest.mark.parametrize("name", list(MODELS)[awkward.PEERS :])
def test_the_reference_is_the_same_every_time(name: str) -> None:
    first, second = (play(MODELS[name], "grad", lambda model: cloning(model, gradients=True)) for _ in range(2))
    assert first.seen
    assert not difference(first.seen, second.seen)


@contextlib.contextmanager
def holding(model: nn.Module) -> Iterator[list[tuple[str, Any, Any]]]:
    """Hold every output as it is, beside a clone of it: what differs at the end was overwritten."""
    held: list[tuple[str, Any, Any]] = []
    counts: dict[str, int] = {}

    def hold(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            counts[name] = counts.get(name, 0) + 1
            held.append((f"{name}#{counts[name]}", output, deep_clone(output)))

        return hook

    handles = [layer.register_forward_hook(hold(name)) for name, layer in leaves(model).items()]
    yield held
    for handle in handles:
        handle.remove()


# --- what was overwritten, and gradients that come more than once


@pytest.mark.parametrize("name", list(MODELS)[: awkward.PEERS])
def test_overwritten_names_every_output_that_changed(name: str) -> None:
    held = play(MODELS[name], "no_grad", holding).seen
    seen = play(MODELS[name], "no_grad", capture).seen
    changed = {label.removesuffix("#1") for label, output, clone in held if difference(output, clone)}
    assert changed <= set(seen.overwritten)
    in_place = {call.label for call in seen.calls if call.label in seen.overwritten}
    assert set(seen.overwritten) == in_place
    if name in ("shared conv called twice", "LSTM tuple", "an unused layer", "vit_b_16"):
        assert not seen.overwritten
    if name == "vgg16":
        assert len(seen.overwritten) == 15  # as measured for the tools that keep references


def test_gradients_of_several_backward_passes_add_up() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.ones(2, 4)
    with capture(model, gradients=True) as seen:
        output = model(x)
        output.sum().backward(retain_graph=True)
        once = seen["0"].grad
        once = once.clone()
        output.sum().backward()
    assert torch.equal(seen["0"].grad, 2 * once)
    assert torch.equal(seen["1"].grad, torch.full((2, 4), 2.0))
