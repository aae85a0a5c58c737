"""Where the passes of one profile do not call the same layers, its times are of the calls that were, and it is said."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hookscope import profile
from tests.shared.awkward_models import Net

X = torch.ones(4, 8)


def skip_in_turn(self: nn.Module, x: Tensor) -> Tensor:
    """Call a layer in turn: `even` in the first pass, then `odd`, and so on."""
    self.passes += 1
    return self.odd(x) if self.passes % 2 == 0 else self.even(x)


@pytest.mark.parametrize("repeats", [3, 1])
def test_a_layer_that_some_passes_skip(repeats: int) -> None:
    # In pairs of a pass without hooks, which calls `even`, and a timed one; then those that count FLOPs and bytes.
    net = Net(skip_in_turn, even=nn.Linear(8, 8), odd=nn.Linear(8, 8), passes=0)
    costs = profile(net, X, repeats=repeats, warmup=0)
    assert len(costs[""].forward.runs) == repeats
    assert len(costs["odd"].forward.runs) == repeats
    assert costs["odd"].forward.median > 0
    assert (costs["odd"].calls, costs["odd"].flops, costs["odd"].outputs) == (0, 0, 0)
    assert costs["even"].forward.runs == ()
    assert math.isnan(costs["even"].forward.median)
    assert costs["even"].flops == 2 * 4 * 8 * 8
    assert costs["even"].saved is None
    assert costs.notes[0].startswith("2 layers ('even', 'odd') ran 0 to 1 times in a pass. Times come from the passes")
    assert [layer.name for layer in costs.slowest()][-1] == "even"
    assert "even not measured" in costs.picture().alt
    assert next(row for row in costs.rows if row["layer"] == "even")["forward quartiles"] == "not measured"


def test_layers_in_a_part_that_is_compiled_get_no_times_that_are_not_theirs() -> None:
    torch._dynamo.reset()
    net = Net(lambda self, x: part(x), a=nn.Linear(8, 8), b=nn.ReLU())
    part = torch.compile(lambda x: net.b(net.a(x)), backend="eager")
    costs = profile(net, X, repeats=2)
    for name in "ab":
        assert len(costs[name].forward.runs) < 2  # of a pass in compiled code there is none
        assert all(time > 0 for time in costs[name].forward.runs)
    assert "torch.compile" in costs.notes[-1]
    with torch.compiler.set_stance("force_eager"):
        costs = profile(net, X, repeats=2)
    assert len(costs["a"].forward.runs) == 2
    assert not costs.notes
