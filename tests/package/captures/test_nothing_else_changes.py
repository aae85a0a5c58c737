"""A capture changes no result, no gradient and no address, and keeps nothing alive."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise

import pytest
import torch
from torch import nn

from hookscope import capture
from tests.shared import awkward
from tests.shared.awkward import Do, Net, cloning, deep_clone, difference, tensors_in
from tests.shared.captured import X, assert_same_calls, small

_THE_SAME_MEMORY = {
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view": lambda x: x.view(1, 3),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("same", _THE_SAME_MEMORY.values(), ids=_THE_SAME_MEMORY)
@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_parameters_and_buffers_keep_their_address(kind, same, grad):
    """A layer may return its own parameter, which the next optimizer step writes to."""
    net = nn.Module()
    net.position = Do(lambda: same(net.weight))
    net.weight = kind(torch.ones(3))
    net.forward = lambda: net.position() * 2
    address = net.weight.data_ptr()
    with torch.set_grad_enabled(grad), capture(net, "position") as seen:
        net()
    with torch.no_grad():
        net.weight.add_(1)
    assert net.weight.data_ptr() == address
    assert seen["position"].output.flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("same", _THE_SAME_MEMORY.values(), ids=_THE_SAME_MEMORY)
def test_the_callers_input_keeps_its_address(same, grad):
    net, x = nn.Sequential(Do(same)), torch.ones(3)
    address = x.data_ptr()
    with torch.set_grad_enabled(grad), capture(net) as seen:
        net(x)
    x.add_(1)
    assert x.data_ptr() == address
    assert seen["0"].output.flatten().tolist() == [1, 1, 1]


def test_separate_models_in_separate_threads():
    errors = []

    def work(factor):
        try:
            net = small()
            for _ in range(20):
                with torch.no_grad(), capture(net) as seen:
                    net(X * factor)
                assert seen["0"].output.item() == -4 * factor
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_memory_is_flat_over_many_passes():
    """A leak grows in every hundred passes; a list that Python or torch keeps for later grows once."""
    import tracemalloc

    net = small()
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


def test_what_happens_after_the_block_does_not_reach_the_capture() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    x = torch.randn(2, 4)
    with cloning(model) as reference:
        model(x)
    with capture(model) as seen:
        output = model(x)
    output.detach().zero_()
    x.zero_()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model(torch.ones(2, 4))
    assert_same_calls(seen, reference, gradients=False, inputs=False)


def test_what_is_done_to_the_capture_does_not_reach_the_model() -> None:
    weight = awkward.Own(lambda self: (self.weight, self.seen))
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
