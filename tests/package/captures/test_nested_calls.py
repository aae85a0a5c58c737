"""A model that calls itself runs one pass, and layers can be nested deeply."""

from __future__ import annotations

import torch
from torch import nn

from hookscope import capture
from tests.shared.awkward_models import Net


def test_a_model_that_calls_itself_runs_one_pass() -> None:
    net = Net(lambda self, x, n=3: self(self.layer(x), n - 1) if n else self.layer(x), layer=nn.Linear(4, 4))
    with capture(net) as seen:
        for _ in range(2):
            net(torch.ones(1, 2, 4))
    assert [call.run for call in seen.calls] == [1] * 4 + [2] * 4


def test_layers_nested_deeply_are_captured_where_plain_hooks_are() -> None:
    net: nn.Module = nn.Linear(4, 4)
    for _ in range(225):
        net = nn.Sequential(net)
    with capture(net) as seen:
        y = net(torch.ones(1, 4))
    assert torch.equal(seen.calls[0].output, y)
