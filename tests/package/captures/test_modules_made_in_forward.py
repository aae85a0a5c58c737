"""Leaves that come into the model while it runs are captured under the name that they get."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census
from tests.shared.awkward import Net

X = torch.ones(1, 2)


def made_in_forward() -> nn.Module:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.new = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        return self.new(self.fc(x))

    return nn.Sequential(Net(run, fc=nn.Linear(2, 2)))


@pytest.mark.filterwarnings("ignore:hookscope")
def test_leaves_that_forward_makes_are_captured_named_and_noted() -> None:
    net = made_in_forward()
    with capture(net, gradients=True) as seen:
        first = net(X)
        last = net(X)
        (first + last).sum().backward()
    assert seen.order == ["0.fc", "0.new.0", "0.new.1"] * 2
    assert torch.equal(seen["0.new.1#1"].output, first)
    assert torch.equal(seen["0.new.1#2"].output, last)
    assert torch.equal(seen["0.new.1#1"].grad, torch.ones(1, 2))
    assert seen.notes == tuple(
        f"layer 0.new.{i}: a {kind} came into the model inside the block" for i, kind in enumerate(("Linear", "Tanh"))
    )
    assert seen.uncalled == {}
    assert len(census(net)) == 0


@pytest.mark.filterwarnings("ignore:hookscope")
def test_the_one_that_takes_the_place_of_a_chosen_layer_is_captured_and_no_other() -> None:
    net = made_in_forward()
    net(X)
    with capture(net, "0.new.1") as seen:
        out = net(X)
    assert seen.order == ["0.new.1"]
    assert torch.equal(seen["0.new.1"].output, out)
    with capture(net, "0.fc") as seen:
        net(X)
    assert (seen.order, seen.notes) == (["0.fc"], ())
    with capture(net, stop=True) as seen:
        net(X)
    assert seen.stopped == "0.new.1"
    assert len(census(net)) == 0


@pytest.mark.filterwarnings("ignore:hookscope")
def test_a_capture_entered_again_starts_afresh_and_keeps_no_module_alive() -> None:
    net = made_in_forward()
    seen = capture(net)
    for _ in range(2):
        with seen:
            net(X)
        assert seen.order == ["0.fc", "0.new.0", "0.new.1"]
    with seen:
        net(X)
        kept = [*seen._record._also]
        assert kept == [*net[0].new]
        net(X)
        del kept[:]
        assert [*seen._record._also] == [*net[0].new]


def test_a_module_that_is_put_into_another_model_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    with capture(net) as seen:
        other = nn.Sequential(nn.Tanh())
        other(net(X))
    assert (seen.order, seen.notes) == (["0"], ())
    assert len(census(other)) == 0
