"""A capture used many times takes no more memory, and what is written to its tensors reaches nobody."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
import torch
from torch import nn

from hookscope import capture
from tests.shared.awkward_models import Do, Net, Own, deep_clone, difference, tensors_in
from tests.shared.capture_runs import make_small_net


@pytest.mark.slow
def test_memory_is_flat_over_many_passes():
    """A leak grows in every hundred passes; a list that Python or torch keeps for later grows once."""
    import tracemalloc

    net = make_small_net()
    seen = capture(net, gradients=True, inputs=True)
    tensors, nbytes = [], []
    gc.collect()
    tracemalloc.start()
    for turn in range(401):
        with seen:
            net(torch.tensor([[1.0, 3.0]])).sum().backward()
        if turn and turn % 100 == 0:
            gc.collect()
            tensors.append(sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects()))
            nbytes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(set(tensors)) == 1
    assert min(after - before for before, after in pairwise(nbytes)) < 5_000, nbytes


def test_what_is_done_to_the_capture_does_not_reach_the_model() -> None:
    weight = Own(lambda self: (self.weight, self.seen))
    model = Net(lambda self, x: self.b(x) + self.own()[0].sum(), own=weight, b=nn.Linear(4, 3))
    x = torch.randn(2, 4)
    with capture(model, inputs=True) as seen:
        output = model(x)
    before = deep_clone((dict(model.state_dict()), output, x))
    for call in seen.calls:
        for tensor in tensors_in((call.output, call.args, call.kwargs)):
            tensor.fill_(7)
    assert not difference((dict(model.state_dict()), output, x), before)


def test_the_gradient_of_a_view_whose_base_was_edited_in_place() -> None:
    """Torch before 2.15 kills Python where such a view gets a hook before anybody has read its grad_fn."""

    def first_of_ten_times(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        view = y[:1]
        y.mul_(10)
        return view

    x = torch.ones(3, requires_grad=True)
    net = nn.Sequential(Do(first_of_ten_times))
    with capture(net, gradients=True) as seen:
        (5 * net(x)).sum().backward()
    assert seen["0"].grad.tolist() == [5.0]
    assert x.grad is not None
    assert x.grad.tolist() == [100.0, 0.0, 0.0]
