"""Modules that are not in the model when a recording begins: made in a forward, put in there, kept in a list."""

from __future__ import annotations

import torch
from torch import nn

from hookscope import record
from tests.shared.awkward_models import Net
from tests.shared.recording_helpers import list_hooks

X = torch.ones(1, 2)


def made_in_forward() -> nn.Module:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.new = nn.Linear(2, 2)
        return nn.Tanh()(self.new(self.fc(x)))

    return nn.Sequential(Net(run, fc=nn.Linear(2, 2)))


def test_a_module_that_forward_makes_is_named_and_logged_whole() -> None:
    net = made_in_forward()
    before = list_hooks(net)
    with record(net) as recording:
        for _ in range(2):
            net(X).sum().backward()
    forward = [label for label in recording.order("forward") if "new" in label]
    assert forward == ["forward 0.new", "forward 0.new #2"]
    backward = [label for label in recording.order("full_backward") if "new" in label]
    assert backward == ["full_backward 0.new", "full_backward 0.new #2"]
    assert any("Layer 0.new (Linear) was added to the model inside the block" in note for note in recording.notes)
    assert not any(list_hooks(net[0].new)[-6]), "the layer made last has no hook left"
    del net[0].new
    assert list_hooks(net) == before


def test_a_module_that_is_not_in_the_model_is_named_after_the_layer_that_calls_it() -> None:
    net = made_in_forward()
    with record(net) as recording:
        net(X)
        net(X)
    name = "Tanh (in forward of 0)"
    seen = [(e.kind, e.name, e.call, e.depth) for e in recording.events if e.type == "Tanh"]
    assert seen == [(kind, name, call, 2) for call in (1, 2) for kind in ("forward_pre", "forward")]
    assert any(note.startswith(f"{name} is not a submodule of the model") for note in recording.notes)


def test_layers_in_a_plain_list_fire_full_backward_from_their_second_call_on() -> None:
    hidden = nn.Linear(2, 2)
    net = Net(lambda self, x: hidden(hidden(self.fc(x))), fc=nn.Linear(2, 2))
    net(X).sum().backward()
    expected = hidden.weight.grad.clone()
    hidden.weight.grad = None
    before = list_hooks(net, hidden)
    with record(net) as recording:
        net(X).sum().backward()
    name = "Linear (in forward of the root)"
    assert [label for label in recording.order("forward") if name in label] == [f"forward {name}", f"forward {name} #2"]
    assert [label for label in recording.order("full_backward") if name in label] == [f"full_backward {name} #2"]
    assert list_hooks(net, hidden) == before
    assert torch.equal(hidden.weight.grad, expected)


def test_what_is_called_beside_the_model_or_where_layers_are_chosen_is_not_logged() -> None:
    net = made_in_forward()
    with record(net) as recording:
        nn.Sigmoid()(net(X))
    assert "Sigmoid" not in {event.type for event in recording.events}
    with record(net, "0.fc", "0.new") as recording:
        net(X)
    assert recording.order("forward") == ["forward 0.fc", "forward 0.new"]


def test_no_more_modules_are_taken_up_than_events_are_logged() -> None:
    net = made_in_forward()
    with record(net, max_events=5) as recording:
        for _ in range(3):
            net(X)
    assert len(recording.events) == 5
    assert len(net[0].new._forward_hooks) == 0
