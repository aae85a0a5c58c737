"""Modules that are added to the model while it runs are not captured; a note says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census
from tests.shared.awkward_models import Net

X = torch.ones(1, 2)


def made_in_forward() -> nn.Module:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.new = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        return self.new(self.fc(x))

    return nn.Sequential(Net(run, fc=nn.Linear(2, 2)))


def test_leaves_that_forward_makes_are_noted_and_not_captured() -> None:
    net = made_in_forward()
    said = pytest.warns(UserWarning, match="layer 0.new.0: a Linear was added to the model inside the block")
    with said, capture(net) as seen:
        net(X), net(X)
    assert seen.order == ["0.fc", "0.fc"]
    assert seen.notes == tuple(
        f"layer 0.new.{i}: a {kind} was added to the model inside the block, so it is not captured. Call the model "
        "once before capture(...), or use hookscope.record"
        for i, kind in enumerate(("Linear", "Tanh"))
    )
    assert len(census(net)) == 0


def test_one_that_takes_the_place_of_a_chosen_layer_is_noted_and_no_other() -> None:
    net = made_in_forward()
    net(X)
    with pytest.warns(UserWarning, match="layer 0.new.1: a Tanh was added"), capture(net, "0.new.1") as seen:
        net(X)
    assert seen.order == []
    assert "removed from the model or replaced" in seen.uncalled["0.new.1"]
    with capture(net, "0.fc") as seen:
        net(X)
    assert (seen.order, seen.notes) == (["0.fc"], ())


def test_a_module_that_is_put_into_another_model_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    with capture(net) as seen:
        other = nn.Sequential(nn.Tanh())
        other(net(X))
    assert (seen.order, seen.notes) == (["0"], ())
    assert len(census(other)) == 0
