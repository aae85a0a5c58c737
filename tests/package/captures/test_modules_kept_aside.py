"""A capture of all says which modules the model holds without listing them, and does not look during the pass."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

from hookscope import capture
from tests.shared.awkward_models import Net

X = torch.ones(1, 2)


def aside(kept: object) -> Net:
    """Build a model that calls what it keeps in a plain container."""

    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for block in kept.values() if isinstance(kept, dict) else kept:
            x = block(x)
        return self.fc(x)

    return Net(run, fc=nn.Linear(2, 2), blocks=kept)


@pytest.mark.parametrize("kind", [list, tuple, lambda layers: dict(enumerate(layers))], ids=["list", "tuple", "dict"])
def test_modules_in_a_plain_container_are_noted(kind: object) -> None:
    net = nn.Sequential(aside(kind([nn.Linear(2, 2), nn.Tanh()])))
    seen = capture(net)
    assert seen.notes == ()  # nothing ran
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with seen:
            net(X)
    assert seen.order == ["0.fc"]
    (note,) = seen.notes
    assert note.startswith("layer 0 keeps 2 modules in its attribute 'blocks' that are not in the model: their calls ")
    assert note in repr(seen)
    assert note in seen._repr_mimebundle_()["text/html"].replace("&#x27;", "'")
    assert pickle.loads(pickle.dumps(seen)).notes == (note,)


def test_those_that_the_model_lists_are_not() -> None:
    net = aside(())
    net.blocks = [net.fc, net.fc]
    with capture(net) as seen:
        net(X)
    assert seen.notes == ()


def test_a_capture_of_chosen_layers_says_nothing_of_others() -> None:
    net = nn.Sequential(aside([nn.Tanh()]), nn.ReLU())
    with capture(net, "1") as seen:
        net(X)
    assert seen.notes == ()
    with capture(net) as seen:
        net(X)
    assert "layer 0 keeps a module in its attribute 'blocks' that is not in the model" in seen.notes[0]
