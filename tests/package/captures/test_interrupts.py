"""An interrupt at any line that entering, a pass, backward and leaving execute leaves no hook on."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, record
from hookscope.captures.call import Slot
from tests.shared.interrupts import Run, places
from tests.shared.patience import PATIENCE
from tests.shared.recorded import hooks_on

X = torch.ones(2, 4)


def made() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))


def everything() -> tuple[nn.Module, Run]:
    net = made()

    def run() -> None:
        with capture(net, "*", gradients=True, inputs=True):
            net(X).sum().backward()

    return net, run


def entered_again_and_stopped() -> tuple[nn.Module, Run]:
    net = made()

    def run() -> None:
        seen = capture(net, "0", stop=True)
        for _ in range(2):
            with seen:
                net(X)

    return net, run


def statistics() -> tuple[nn.Module, Run]:
    net = made()

    def run() -> None:
        with capture(net, keep="stats", gradients=True):
            net(X).sum().backward()

    return net, run


def assert_nothing_stays(found: int, stayed: list[str], least: int) -> None:
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > least
    assert not stayed, stayed


@pytest.mark.parametrize("make", [everything, entered_again_and_stopped, statistics])
def test_an_interrupt_at_any_line_leaves_no_hook(make: Any) -> None:
    assert_nothing_stays(*places(make, hooks_on, 29), 35)


@pytest.mark.slow
@pytest.mark.parametrize("make", [everything, entered_again_and_stopped, statistics])
def test_an_interrupt_at_each_line_leaves_no_hook(make: Any) -> None:
    assert_nothing_stays(*places(make, hooks_on, 1), 500)


def test_a_capture_that_ends_inside_a_recording_that_began_in_it_leaves_no_hook() -> None:
    net = made()
    seen, recording = capture(net), record(net, kinds="forward")
    seen.__enter__()
    recording.__enter__()
    seen.__exit__(None, None, None)
    net(X)
    recording.__exit__(None, None, None)
    assert hooks_on(net) == hooks_on(made())
    assert seen.order == []


def test_an_interrupt_while_a_gradient_is_added_lets_the_next_backward_pass():
    """At each line of it: a lock that stays closed would let every later backward wait, in all captures."""
    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)

    def backward(seen: list[Tensor]) -> None:
        with capture(net, "0", gradients=True) as found:
            y = net(x)
            y.sum().backward(retain_graph=True)
            y.sum().backward()
        seen.append(found["0"].grad)

    left, lines = -1, 0

    def each_line(frame, event, arg):
        nonlocal left, lines
        if event == "line":
            lines, left = lines + 1, left - 1
            if left == 0:
                raise KeyboardInterrupt
        return each_line

    def calls(frame, event, arg):
        return each_line if frame.f_code is Slot.add.__code__ else None

    before = sys.gettrace()
    seen: list[Tensor] = []
    try:
        sys.settrace(calls)
        backward(seen)
        assert lines > 10
        for place in range(1, lines + 1):
            left = place
            sys.settrace(calls)  # the one that raised is off
            with contextlib.suppress(KeyboardInterrupt):
                backward([])
    finally:
        sys.settrace(before)
    thread = threading.Thread(target=backward, args=(seen,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert torch.equal(seen[0], seen[1])
