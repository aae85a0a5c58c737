"""A capture is pickled and copied as what it kept: without the model, and readable where that is not."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from hookscope import capture, explain, gradient_flow


@pytest.mark.parametrize("again", [lambda seen: pickle.loads(pickle.dumps(seen)), copy.deepcopy, copy.copy])
def test_a_copy_can_be_read_and_not_entered(again):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.ModuleList([nn.ReLU()]))[:2]
    net.unused = nn.ReLU()
    with capture(net, gradients=True, inputs=True) as seen:
        net[1](net[0](torch.ones(1, 3))).sum().backward()
    read = again(seen)
    assert repr(read) == repr(seen)
    assert read.order == seen.order
    assert read.overwritten == seen.overwritten == {"0": "layer 1 (ReLU)"}
    assert read.uncalled == seen.uncalled
    for name in seen:
        assert torch.equal(read[name].output, seen[name].output)
        assert torch.equal(read[name].grad, seen[name].grad)
        assert torch.equal(read[name].args[0], seen[name].args[0])
    assert gradient_flow(read).rows == gradient_flow(seen).rows
    with pytest.raises(RuntimeError, match="a copy without its model"):
        read.__enter__()


def test_a_pickle_has_the_size_of_what_was_kept():
    net = nn.Sequential(nn.Linear(1000, 1000))
    with capture(net) as seen:
        net(torch.ones(1, 1000))
    assert 4000 < len(pickle.dumps(seen)) < 10_000


def test_an_open_capture_is_not_copied():
    with capture(nn.ReLU()) as seen, pytest.raises(RuntimeError, match="after the with block"):
        pickle.dumps(seen)


def test_a_copy_says_that_its_code_needs_the_model():
    with capture(nn.Sequential(nn.ReLU())) as seen:
        seen._model(torch.ones(1))
    with pytest.raises(TypeError, match="without its model"):
        explain(pickle.loads(pickle.dumps(seen)))
