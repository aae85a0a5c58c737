"""Both ends of a module: the gradients are torch's own in all sixteen states, and hidden until the pass is run."""

from __future__ import annotations

import re
import warnings
from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from hookscope_course.figures import BothEnds
from hookscope_course.figures.both_ends.figure import ENDS, GATES, INPUTS, _place

STATES = [
    ([*stops], [*plain])
    for many in range(3)
    for stops in combinations(GATES, many)
    for few in range(3)
    for plain in combinations(INPUTS, few)
]


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0]))

    def forward(self, x1, x2):
        return x1 * x2 * self.W


def by_hand(stops, plain):
    """Run with the closed gates' hooks only, written by hand; the figure has a hook in each gate."""
    product = Product()
    x1 = torch.tensor([2.0], requires_grad="x1" not in plain)
    x2 = torch.tensor([3.0], requires_grad="x2" not in plain)
    if "stop_output" in stops:
        product.register_full_backward_pre_hook(lambda module, grad_output: (0 * grad_output[0],))
    if "stop_input" in stops:
        product.register_full_backward_hook(
            lambda module, grad_input, grad_output: tuple(None if grad is None else 0 * grad for grad in grad_input)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        product(x1, x2).backward()
    return {
        name: None if tensor.grad is None else tensor.grad.item()
        for name, tensor in zip(ENDS, (x1, x2, product.W), strict=True)
    }


@pytest.mark.parametrize(("stops", "plain"), STATES, ids=str)
def test_each_state_is_what_torch_does(stops, plain):
    figure = BothEnds()
    figure.stops, figure.plain = stops, plain
    ends = by_hand(stops, plain)
    figure.mark(*[name for name, value in ends.items() if not value])
    assert figure.run() == "3 of 3 right."
    assert figure.gradients == ends
    assert figure.gradients == ends
    assert figure.alt in figure.summary() or "3 of 3" in figure.summary()
    # What the page has is the same, and every reason that names a number names torch's.
    key = ",".join([*stops, *plain])
    found = figure._passes[key]
    assert dict(zip(ENDS, found["ends"], strict=True)) == ends
    for name, reason in zip(ENDS, found["reasons"], strict=True):
        for said in re.findall(r"= (\d+)\.$", reason):
            assert float(said) == ends[name]
        dark = bool(re.search(r"does not require grad|made that 0|returns zeros", reason))
        assert dark == (not ends[name])
    for name, value in ends.items():
        assert f"{name} is {'None' if value is None else f'{value:g}'}" in found["said"]


def test_there_are_sixteen_states():
    assert len(STATES) == len(BothEnds()._passes) == 16


def test_what_the_hooks_are_given_on_the_way():
    figure = BothEnds()
    plain = figure._passes[""]
    assert (plain["y"], plain["arrives"], plain["goes_in"]) == (30, 1, 1)
    assert list(plain["made"]) == list(plain["goes_on"]) == [15, 10]
    stopped = figure._passes["stop_input"]
    assert (list(stopped["made"]), list(stopped["goes_on"])) == ([15, 10], [0, 0])
    assert figure._passes["stop_output"]["goes_in"] == 0
    assert list(figure._passes["x2"]["made"]) == [15, 0], "zeros for an input that does not require grad"
    assert list(figure._passes["x1,x2"]["made"]) == [None, None]


def test_a_wrong_mark_gets_its_reason():
    figure = BothEnds()
    figure.stops = ["stop_input"]
    figure.mark("W.grad")
    assert figure.run() == (
        "0 of 3 right.\n"
        "x1.grad is 0: what stop_input returns goes on to x1, and it returns zeros.\n"
        "x2.grad is 0: what stop_input returns goes on to x2, and it returns zeros.\n"
        "W.grad is 6: W.grad is computed from grad_output; stop_input changes only what leaves the module."
    )


def test_another_gate_or_input_asks_anew():
    figure = BothEnds()
    figure.mark("W.grad")
    figure.run()
    figure.stops = ["stop_output"]
    assert (figure.ran, figure.marks) == (False, [])
    figure.run()
    figure.plain = ["x2"]
    assert (figure.ran, figure.marks) == (False, [])
    figure.run()
    figure.start_over()
    assert (figure.stops, figure.plain, figure.marks, figure.ran) == ([], [], [], False)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_gate_bars_its_rail_only_when_it_is_closed(narrow):
    layout = _place(narrow)
    for x, y, _, h, lift in layout["gates"].values():
        top, bottom = y - h / 2, y + h / 2
        crossed = [points for points in (rail["points"] for rail in layout["rails"]) if _crosses(points, x)]
        ways = [height for points in crossed for height in [_crosses(points, x)]]
        assert any(top < at < bottom for at in ways), "closed, it bars a rail"
        assert not any(top - lift <= at <= bottom - lift for at in ways), "open, it bars none"


def _crosses(points, x):
    for (x0, y0), (x1, y1) in pairwise(points):
        if min(x0, x1) <= x <= max(x0, x1) and x0 != x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None
