"""A census lists the hooks of edits."""

from __future__ import annotations

import torch
from torch import nn

from hookscope import census, edit

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def test_a_census_lists_edits() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with edit(net) as e:
        e.set("1", 0)
        found = [entry for entry in census(net) if entry.callable == "hookscope.edit"]
        assert [(entry.layer, entry.kind) for entry in found if entry.layer] == [("1", "forward_pre"), ("1", "forward")]
        assert "hookscope.edit" in repr(census(net))
        net(X)
    assert not len(census(net))
