"""Thirty thousand calls take seconds, and what a profile does grows as the calls do, no faster."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import profile
from hookscope.interp.profiles import passes, spans
from tests.package.interp.profiles.test_what_layers_cost import X, net, quick
from tests.shared.awkward_models import Net
from tests.shared.fake_clock import Clock, TimedLayer


def test_passes_that_take_long_are_fewer_unless_asked_for(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(importlib.import_module("hookscope.interp.profiles.profile"), "time", clock)
    monkeypatch.setattr(passes, "time", clock)
    quick, slow = (nn.Sequential(*net(), TimedLayer(clock, seconds * 10**9 + 1, 1)) for seconds in (0, 1))
    assert len(profile(quick, X).forward.runs) == 10
    costs = profile(slow, X)
    assert len(costs.forward.runs) == len(costs["0"].backward_self.runs) == 3
    assert "of 3 passes without hooks" in repr(costs)
    assert len(profile(slow, X, repeats=5).forward.runs) == 5


@pytest.mark.parametrize("shared", [True, False], ids=["one layer", "many layers"])
def test_work_grows_as_the_calls_do(shared: bool):
    few, many = (_lines_run(nn.Sequential(*_layers(count, shared))) for count in (200, 400))
    assert many < 2.2 * few


def _layers(count: int, shared: bool) -> list[nn.Module]:
    one = nn.Tanh()
    return [one if shared else nn.Tanh() for _ in range(count)]


def _lines_run(model: nn.Module) -> int:
    """Count the lines of the room that run, without a clock: each turn of a loop is one."""
    room, count = str(Path(spans.__file__).parent), 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(room) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        quick(model, torch.ones(1, requires_grad=True))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
def test_thirty_thousand_calls_are_counted_right():
    model = Net(lambda self, x: [x := self.linear(x) for _ in range(30_000)][-1], linear=nn.Linear(4, 4))
    costs = profile(model, torch.ones(1, 4))
    assert (costs["linear"].calls, costs["linear"].flops) == (30_000, 30_000 * 2 * 4 * 4)
    assert costs["linear"].backward_flops == (2 * 30_000 - 1) * 2 * 4 * 4  # the input of the first needs no gradient
