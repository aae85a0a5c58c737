"""Hooks come off however the block ends, and what was captured until then can be read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census
from hookscope.captures.call import NotCapturedError
from tests.shared import awkward
from tests.shared.awkward import RAISED, Do, Net, cloning
from tests.shared.captured import X, assert_same_calls, small


@pytest.mark.parametrize("stop", [ValueError("stop"), KeyboardInterrupt()])
def test_hooks_come_off_and_the_error_carries_what_was_captured(stop):
    def fail(x):
        raise stop

    net = nn.Sequential(nn.Linear(1, 1), Do(fail), nn.Linear(1, 1))
    with pytest.raises(type(stop)) as caught, capture(net) as seen:
        net(torch.ones(1, 1))
    assert caught.value.capture is seen
    assert "2 calls were captured before this error, the last one in 1" in caught.value.__notes__[0]
    assert seen["0"].output.shape == (1, 1)
    with pytest.raises(NotCapturedError, match="call 1 raised"):
        _ = seen["1"].output
    assert len(census(net)) == 0


def test_two_captures_nest_and_one_can_be_entered_again():
    net = small()
    with torch.no_grad(), capture(net, "0") as outer:
        with capture(net, "0", "2") as inner:
            net(X)
        net(X)
    assert len(outer["0"].calls) == 2
    assert len(inner["0"].calls) == 1
    with pytest.raises(RuntimeError, match="already open"), outer, outer:
        pass
    with torch.no_grad(), outer:
        net(X * 2)
    assert outer["0"].output.item() == -8
    assert len(census(net)) == 0


class StopEarlyError(Exception):
    """Raised by a layer on purpose."""


def failing(when: int) -> Net:
    def explode(x: torch.Tensor) -> torch.Tensor:
        model.count += 1
        if model.count == when:
            raise StopEarlyError
        return x * 2

    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.relu(self.explode(self.a(x)))
        return x

    model = Net(run, a=nn.Linear(4, 4), explode=awkward.Do(explode), relu=nn.ReLU(inplace=True))
    model.count = 0
    return model


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_exception_in_forward_leaves_no_hook_and_keeps_what_was_there(when: int, gradients: bool) -> None:
    torch.manual_seed(0)
    model = failing(when)
    with pytest.raises(StopEarlyError), cloning(model) as reference:
        model(torch.ones(2, 4))
    model.count = 0
    with pytest.raises(StopEarlyError), capture(model, gradients=gradients) as seen:
        model(torch.ones(2, 4))
    assert len(census(model)) == 0
    assert [call.output is RAISED for call in reference] == [False] * (3 * when - 2) + [True]
    assert seen.order == ["a", "explode", "relu"] * (when - 1) + ["a", "explode"]
    assert_same_calls(seen, reference, gradients=False, inputs=False)


# --- an exception anywhere in a block, also one that is no Exception
