"""The code for a capture is short, its hooks come off, and it is safe from what a model does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, census, compare_backward_hooks, record
from tests.shared.awkward import Do, Net, Own
from tests.shared.explained import assert_same, checked, run, watched

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like


def test_two_layers_take_about_fifteen_lines() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    for seen in (capture(model), watched((model, (torch.ones(2, 4),), {}), capture)):
        code = checked(seen)
        assert len([line for line in code.splitlines() if line]) <= 17
        assert "output.detach().clone()" in code
        assert "register_forward_hook(" in code
        assert "handle.remove()" in code
        assert "def map_tensors" not in code


def test_what_is_kept_is_safe_from_in_place_operations() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (torch.randn(8, 4),)
    outputs = run(checked(capture(model)), model, args)["outputs"]
    assert (outputs["0"][0] < 0).any()
    assert not outputs["0"][0].requires_grad


def test_hooks_come_off_when_the_model_raises() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model, args = nn.Sequential(nn.Linear(4, 4), Do(explode), nn.Linear(4, 4)), (torch.ones(2, 4),)
    objects: list[Any] = [
        capture(model, gradients=True, inputs=True),
        capture(model, "", "**"),
        record(model, parameters=True),
        compare_backward_hooks(nn.Linear(4, 4), torch.ones(2, 4)),
    ]
    for obj in objects:
        with pytest.raises(ZeroDivisionError):
            run(checked(obj), model, args)  # asserts that no hook is left
        assert len(census(model)) == 0


def test_hooks_on_outputs_come_off_too() -> None:
    model = Net(lambda self, x: self.b(x + self.own()), own=Own(lambda self: self.weight), b=nn.Linear(4, 3))
    args = (torch.randn(2, 4),)
    seen = watched((model, args, {}), lambda model: capture(model, gradients=True))
    run(checked(seen), model, args)
    assert not model.own.weight._backward_hooks


def test_an_exception_that_the_model_catches() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        try:
            x = self.inner(x)
        except ZeroDivisionError:
            x = self.a(x)
        return self.b(x)

    inner = nn.Sequential(nn.Linear(4, 4), Do(explode))
    model, args = Net(forward, inner=inner, a=nn.Linear(4, 4), b=nn.Linear(4, 3)), (torch.ones(2, 4),)
    for which in ((), ("**",)):
        seen = watched((model, args, {}), lambda m, which=which: capture(m, *which, gradients=True))
        model.zero_grad()
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)


def test_no_backward_runs_where_none_has_run() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)
    with torch.no_grad():
        seen = watched((model, args, {}), lambda model: capture(model, gradients=True), backward=False)
        recording = watched((model, args, {}), record, backward=False)
        assert "No gradient has reached your layers" in checked(seen)
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)
        assert "No backward pass ran" in checked(recording)
        assert run(checked(recording), model, args)["events"] == [(e.kind, e.name) for e in recording.events]
