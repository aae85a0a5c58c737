"""A recording is pickled and copied as its log, without the hooks and the model."""

import copy
import pickle

import pytest
import torch
from torch import nn

from hookscope.recordings.record import record


@pytest.mark.parametrize("again", [lambda recording: pickle.loads(pickle.dumps(recording)), copy.deepcopy])
def test_a_copy_can_be_read(again):
    net = nn.Sequential(nn.Linear(1000, 1000))
    net.unused = nn.ReLU()
    net.forward = net[0].__call__
    with record(net, "0", "unused", values=True) as recording:
        net(torch.ones(1, 1000)).sum().backward()
    read = again(recording)
    assert read.order() == recording.order()
    assert repr(read) == repr(recording)
    assert read.events == recording.events
    assert read.notes == recording.notes
    assert read.uncalled == recording.uncalled == ("unused",)
    assert repr(read.call_tree()) == repr(recording.call_tree())
    assert len(pickle.dumps(recording)) < 10_000
    with pytest.raises(RuntimeError, match="already used"):
        read.__enter__()
    with pytest.raises(RuntimeError, match="outside the with-block"):
        read.watch(torch.ones(1, requires_grad=True), "y")


def test_a_running_one_is_not_copied():
    with record(nn.ReLU()) as recording, pytest.raises(RuntimeError, match="after the with-block"):
        pickle.dumps(recording)
