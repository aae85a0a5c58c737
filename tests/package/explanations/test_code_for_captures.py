"""The code that `explain` writes for a capture, run on its own, finds what the capture found: for awkward models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import capture, explain
from hookscope.captures.form import Stats
from hookscope.captures.result import Capture
from tests.shared.awkward import MODELS, Do, tensors_in
from tests.shared.explained import assert_same, checked, of_call, run, watched

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like


def assert_same_stats(found: Any, expected: Stats, where: str) -> None:
    assert list(found) == list(Stats._fields), where
    for key, value in found.items():
        known = getattr(expected, key)
        same = math.isclose(value, known, rel_tol=1e-4, abs_tol=1e-6) if isinstance(value, float) else value == known
        assert same or (value != value and known != known), f"{where}: {key} is {value}, not {known}"


LEFT_OUT = {"transformer with kwargs", "vgg16", "densenet121", "vit_b_16", "mobilenet_v3_small"}

EACH = [name for name in MODELS if name not in LEFT_OUT and (not name.startswith("a view over") or "mul_" in name)]


@pytest.mark.parametrize("name", EACH)
def test_a_capture_that_has_run(name: str) -> None:
    build, quiet = MODELS[name], "faster" in name
    options = {"gradients": not quiet}

    seen = watched(build(), lambda model: capture(model, **options), backward=not quiet)
    model, args, _ = build()
    code = checked(seen)
    assert_same(run(code, model, args), seen, gradients=not quiet, inputs=False)
    assert ("# Came into the model while it ran" in code) == bool(seen._hooks.arrived)


@pytest.mark.parametrize("name", EACH[::2])
def test_a_capture_of_inputs(name: str) -> None:
    seen = watched(MODELS[name](), lambda model: capture(model, inputs=True), backward=False)
    model, args, _ = MODELS[name]()
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=True)


@pytest.mark.parametrize("name", ["LSTM tuple", "dict output", "nested outputs", "torch.return_types", "resnet18"])
@pytest.mark.parametrize("inputs", [False, True])
def test_a_capture_that_has_not_run_is_ready_for_structures(name: str, inputs: bool) -> None:
    model, args, _ = MODELS[name]()
    code = checked(capture(model, gradients=True, inputs=inputs))
    seen = watched(MODELS[name](), lambda model: capture(model, gradients=True, inputs=inputs))
    assert_same(run(code, model, args), seen, gradients=True, inputs=inputs)


def test_there_are_enough_models() -> None:
    assert len(EACH) > 60


@pytest.mark.parametrize("name", ["conv, then relu in place", "LSTM tuple", "integers", "zero-dimensional", "resnet18"])
@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0},
        {"sample": slice(0, 2)},
        {"dtype": torch.float16},
        {"device": "cpu"},
        {"sample": 1, "dtype": torch.float64, "device": "cpu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("ran", [False, True])
def test_forms(name: str, options: dict[str, Any], ran: bool) -> None:
    def make(model: nn.Module) -> Capture:
        return capture(model, gradients=True, inputs=True, **options)

    seen = watched(MODELS[name](), make)
    model, args, _ = MODELS[name]()
    code = checked(seen if ran else make(model))
    names = run(code, model, args)
    assert_same(names, seen, gradients=True, inputs=True)
    tensor = next(t for outputs in names["outputs"].values() for t in tensors_in(outputs))
    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), "more is held than is kept"


@pytest.mark.parametrize("name", ["resnet18", "LSTM tuple", "NaN and inf", "no elements", "integers", "complex"])
@pytest.mark.parametrize("ran", [False, True])
def test_statistics(name: str, ran: bool) -> None:
    def make(model: nn.Module) -> Capture:
        return capture(model, gradients=True, inputs=True, stats=True)

    seen = watched(MODELS[name](), make)
    model, args, _ = MODELS[name]()
    names = run(checked(seen if ran else make(model)), model, args)
    assert names["order"] == seen.order

    def flat(value: Any) -> list[Any]:
        if isinstance(value, Stats) or (isinstance(value, dict) and "mean_abs" in value):
            return [value]
        items = value.values() if isinstance(value, dict) else value
        return [found for item in items for found in flat(item)] if isinstance(value, (tuple, list, dict)) else []

    compared = 0
    for layer in seen.values():
        for number, call in enumerate(layer.calls):
            pairs = [
                (names["stats"][call.layer][number], of_call(call, "stats")),
                (names["grad_stats"][call.layer][number], of_call(call, "grad_stats")),
                (names["received"][call.layer][number], (call.args, call.kwargs)),
            ]
            for found, known in pairs:
                for one, other in zip(flat([found]), flat([known]), strict=True):
                    assert_same_stats(one, other, call.label)
                    compared += 1
    assert compared > 4


def test_a_complex_result_runs_backward_as_well() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x.to(torch.complex64)))
    inputs = (torch.ones(1, 2),)
    with capture(model, gradients=True) as seen:
        model(*inputs).real.sum().backward()
    found: dict[str, object] = {"model": model, "inputs": inputs}
    exec(str(explain(seen)), found)
    assert torch.equal(found["grads"]["1"][0], seen["1"].grad)
