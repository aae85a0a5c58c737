"""Hooks come off however the block ends, and what was captured until then can be read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census
from hookscope.captures.call import NotCapturedError
from tests.shared.awkward_models import Do
from tests.shared.capture_runs import X, make_small_net


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
    with pytest.raises(NotCapturedError, match="layer '1' raised"):
        _ = seen["1"].output
    assert len(census(net)) == 0


def test_two_captures_nest_and_one_can_be_entered_again():
    net = make_small_net()
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
