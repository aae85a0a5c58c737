"""gradient_flow: the numbers, call by call, and what it says when there are none."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookscope import capture, gradient_flow
from hookscope.captures.call import NotCapturedError
from tests.shared.awkward_models import Do, Net
from tests.shared.fake_clock import count_python_calls


def doubling() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(inplace=True))
    nn.init.constant_(net[0].weight, 2.0)
    return net


@pytest.mark.parametrize("stats", [False, True])
def test_numbers_come_in_call_order_and_are_those_of_the_moment(stats):
    net = doubling()
    with capture(net, gradients=True, stats=stats) as seen:
        net(torch.tensor([[3.0], [-1.0]])).sum().backward()
    flow = gradient_flow(seen)
    first, second = flow.rows
    assert (first["call"], first["mean |x|"], first["max |x|"], first["% zeros"]) == ("0", 4, 6, 0)
    assert (first["mean |grad|"], first["max |grad|"], first["grad % zeros"]) == (0.5, 1, 50)
    assert (second["call"], second["mean |x|"], second["% zeros"]) == ("1", 3, 50)
    assert "from 3 (1) to 4 (0)" in flow.alt
    assert flow.png.startswith(b"\x89PNG")


def test_nan_inf_dead_and_missing_are_said():
    net = nn.Sequential(Do(lambda x: ((x * float("nan"), torch.tensor([float("inf"), 2.0])), {"dead": 0 * x}, None, 5)))
    net.dead = nn.Threshold(5.0, 0.0)

    def forward(x):
        net.dead(x)
        return net[0](x)

    net.forward = forward
    with capture(net) as seen:
        net(torch.tensor([1.0]))
    dead, odd = gradient_flow(seen).rows
    assert (dead["call"], dead["% zeros"], dead["mean |x|"]) == ("dead", 100, 0)
    assert odd["note"] == "1 NaN in the output, 1 inf in the output"
    assert odd["max |x|"] == 2
    assert "mean |grad|" not in odd
    assert "activation all zeros at dead" in gradient_flow(seen).alt


@pytest.mark.parametrize("stats", [False, True])
def test_the_note_names_the_layer_whose_gradient_is_the_first_nan(stats):
    # The derivative of the root is infinite at 0. Times 0, it is NaN.
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), Do(lambda x: (0 * x).sqrt()), nn.Linear(2, 2))
    with capture(net, gradients=True, stats=stats) as seen:
        net(torch.ones(1, 2)).sum().backward()
    flow = gradient_flow(seen)
    (note,) = flow.notes
    assert "in the gradient of '1'. The gradients of all later calls are finite" in note
    assert f"note: {note}" in repr(flow)
    assert "in the gradient of" in flow.to_html()
    assert all(torch.isfinite(net[3].weight.grad).flatten())


def test_the_note_names_the_layer_whose_output_is_the_first_nan():
    net = nn.Sequential(nn.Linear(2, 2), Do(lambda x: 0 * x / 0), nn.Linear(2, 2))
    with capture(net) as seen:
        net(torch.ones(1, 2))
    (note,) = gradient_flow(seen).notes
    assert note == "the first NaN or infinite value of the forward pass is in the output of '1'"


def test_the_note_says_where_weights_are_already_spoiled():
    net = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2))
    nn.init.constant_(net[0].weight, math.nan)
    with capture(net, gradients=True) as seen:
        net(torch.tensor([0])).sum().backward()
    (note,) = gradient_flow(seen).notes
    assert "in the output of '0'. Its weights have such values, too" in note


def test_without_later_gradients_the_note_names_the_operations_behind_the_layer():
    net = nn.Sequential(nn.Linear(2, 2))
    with capture(net, gradients=True) as seen:
        (0 * net(torch.ones(1, 2))).sqrt().sum().backward()
    (note,) = gradient_flow(seen).notes
    assert note.endswith("in the gradient of '0'. Look at the operations that use its output")


@pytest.mark.parametrize("calls", [1, 3, 9, 10])
def test_nothing_of_a_narrow_picture_is_cut(calls):
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(calls)])
    with capture(net, gradients=True) as seen:
        net(torch.randn(2, 4)).sum().backward()
    pixels = np.asarray(Image.open(io.BytesIO(gradient_flow(seen).png)).convert("L"))
    for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
        assert edge.min() == 255


def test_an_empty_capture_is_refused():
    with capture(doubling()) as seen:
        pass
    with pytest.raises(NotCapturedError, match="no calls; layer '0' was not called, and neither was the model"):
        gradient_flow(seen)
    attention = nn.MultiheadAttention(2, 1)
    with capture(attention, "out_proj") as seen:
        attention(*[torch.ones(1, 1, 2)] * 3)
    with pytest.raises(NotCapturedError, match=r"layer 'out_proj' was not called: nn\.MultiheadAttention uses"):
        gradient_flow(seen)


def loop(times: int) -> Net:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = getattr(self, LONG)(x)
        return x

    return Net(run, **{LONG: nn.ReLU()})


LONG = "a_layer_with_a_name_that_is_much_too_long_for_an_axis_and_goes_on_and_on"


@pytest.mark.slow
@pytest.mark.filterwarnings("error")  # matplotlib's, about labels for which there is no room
def test_thousands_of_calls_are_shortened_with_a_word_at_little_cost():
    def shown(times: int) -> dict[str, str]:
        with capture(loop(times), stats=True) as seen:
            seen._model(torch.ones(2))
        picture = gradient_flow(seen)
        assert len(picture.rows) == times
        return picture._repr_mimebundle_() | {"of the capture": seen._repr_mimebundle_()["text/html"]}

    many = shown(3000)  # and matplotlib is imported
    assert count_python_calls(lambda: shown(1600)) < 2 * count_python_calls(lambda: shown(400))
    for text in (many["text/html"].partition("</figure>")[2], many["text/plain"], many["of the capture"]):
        assert len(text) < 200_000
        assert "and 2,600 more rows" in text


def test_a_layer_that_was_called_thousands_of_times_shows_some_calls_and_says_so():
    relu = nn.ReLU()
    with capture(relu) as seen:
        for _ in range(300):
            relu(torch.ones(1))
    shown = repr(seen[""]).splitlines()
    assert len(shown) == 201
    assert shown[-1] == "… and 100 more calls, see .calls"
