"""What a capture says of itself, of what it did not keep, and of models and options that it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, gradient_flow
from hookscope.captures.call import NotCapturedError
from hookscope.layers import LayerNotFoundError
from tests.shared.awkward_models import Net
from tests.shared.capture_runs import make_small_net


def test_a_layer_that_was_not_called_and_a_name_that_is_none():
    net = Net(lambda self, x: self.used(x), used=nn.Linear(1, 1), unused=nn.Linear(1, 1))
    with capture(net, nn.Linear) as seen:
        net(torch.ones(1, 1))
    assert list(seen) == ["used"]
    assert list(seen.uncalled) == ["unused"]
    assert seen.get("unused") is None
    assert "unused" not in seen
    for asked in ("unused", net.unused):
        with pytest.raises(NotCapturedError, match="layer 'unused' was not called"):
            seen[asked]
    for ask in (seen.__getitem__, lambda name: capture(net, name)):
        with pytest.raises(LayerNotFoundError, match="did you mean 'used' or 'unused'"):
            ask("uset")


def test_a_layer_called_twice_has_no_single_value():
    relu = nn.ReLU()
    with capture(nn.Sequential(relu, relu)) as seen:
        seen._model(torch.ones(1))
    for what in ("output", "grad", "args", "kwargs", "stats", "grad_stats"):
        with pytest.raises(NotCapturedError, match=rf"called 2 times\. .*seen\['0'\]\.calls\[0\]\.{what}$"):
            getattr(seen["0"], what)


def test_its_table_gives_each_output_once_with_its_gradient_kept_too():
    net = make_small_net()
    with capture(net, gradients=True) as seen:
        net(torch.ones(1, 2)).sum().backward()
    assert [row["output"] for row in seen.table().rows] == ["(1, 1)"] * 3
    with capture(nn.LSTM(1, 2), gradients=True) as seen:
        seen._model(torch.ones(3, 1, 1))[0].sum().backward()
    assert seen.table().rows[0]["output"] == "(3, 1, 2), (1, 1, 2), (1, 1, 2)"


def test_it_shows_itself_as_a_table_with_escaped_names():
    net = nn.Module()
    evil = "<img src=x onerror=alert(1)>"
    net.add_module(evil, nn.ReLU(inplace=True))
    net.forward = net._modules[evil].__call__
    with capture(net, nn.ReLU) as seen:
        net(torch.ones(2))
    assert repr(seen).splitlines()[0] == "Module: 1 call of 1 layer"
    html = seen._repr_mimebundle_()["text/html"]
    assert "&lt;img" in html
    assert "<img" not in html


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stats": True, "samples": 0}, r"stats=True keeps no tensors\. Leave out copy, samples, dtype and device"),
        ({"stats": True, "copy": False}, "Leave out copy"),
        ({"samples": -1}, "Count samples from 0"),
        ({"stop": True, "gradients": True}, "Leave out gradients=True"),
    ],
)
def test_contradictory_options_are_refused_early(options, message):
    with pytest.raises(ValueError, match=message):
        capture(make_small_net(), **options)


def test_gradient_flow_says_what_it_draws():
    with pytest.raises(TypeError, match=r"draws a capture, not a model. Write `with hookscope.capture\(model"):
        gradient_flow(nn.ReLU())


def test_a_prompt_completes_and_lists_the_layers_that_were_called():
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    with capture(net) as seen:
        net(torch.ones(1, 1))
    assert seen._ipython_key_completions_() == ["0", "1"]
    assert repr(seen.keys()) == "dict_keys(['0', '1'])"


def test_a_layer_that_was_not_chosen_and_a_layer_as_an_attribute_are_told_how_to_be_had():
    net = nn.Sequential()
    net.add_module("first", nn.Linear(1, 1))
    net.add_module("last", nn.ReLU())
    with capture(net, "last") as seen:
        net(torch.ones(1, 1))
    with pytest.raises(LayerNotFoundError, match=r"layer 'first' was not chosen. Add it: capture\(model"):
        seen["first"]
    with pytest.raises(AttributeError, match=r"no attribute 'last'; for the layer, write \['last'\]"):
        seen.last  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        seen.other  # noqa: B018


def test_a_capture_that_was_never_entered_says_so():
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    seen = capture(net, "0")
    net(torch.ones(1, 1))
    assert repr(seen) == (
        "Sequential: nothing was captured, because the with block of this capture never ran. Call the model inside it"
    )
    for chosen_or_not in ("0", "1", net[0]):
        with pytest.raises(NotCapturedError, match="was not captured: the with block of this capture never ran"):
            seen[chosen_or_not]
    with pytest.raises(LayerNotFoundError, match="no layer '2'"):
        seen["2"]
    with seen:
        pass
    with pytest.raises(NotCapturedError, match="layer '0' was not called, and neither was the model"):
        seen["0"]


def test_a_layer_that_was_replaced_is_said_to_be():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    seen = capture(net)
    net[0] = nn.Linear(2, 2)
    with seen:
        net(torch.ones(1, 2))
    with pytest.raises(NotCapturedError, match=r"removed from the model or replaced after capture\(...\)"):
        _ = seen["0"].output
