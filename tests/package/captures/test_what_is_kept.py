"""A capture keeps every output, input and gradient as it was at its moment, in the structure it came in."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError, capture
from tests.shared.awkward_models import Do
from tests.shared.capture_runs import X, make_small_net


def test_gradients_add_up_over_passes_as_in_tensor_grad():
    net = make_small_net()
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    loss.backward()  # after the block it is not kept
    assert seen["1"].grad.item() == 6
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        torch.autograd.grad(loss, net[0].weight)
    assert seen["1"].grad.item() == 3
    assert net[0].weight.grad is not None
    assert net[0].weight.grad.tolist() == [[9, 27]]


def test_inference_mode_gives_usable_outputs():
    net = make_small_net()
    with torch.inference_mode(), capture(net) as seen:
        net(X)
    output = seen["0"].output
    assert output.item() == -4
    assert not output.is_inference()
    (output * torch.ones(1, requires_grad=True)).sum().backward()


def test_other_containers_are_followed_too():
    class Slotted:
        __slots__ = ("inner", "unset")

        def __init__(self, inner):
            self.inner = inner

    made = []

    def forward(x):
        y = x + 1
        made.append((deque([y], maxlen=3), Slotted(y), y.numpy().copy()))
        return made[0]

    net = Do(forward)
    with torch.no_grad(), capture(net) as seen:
        queue, _, array = net(torch.zeros(2))
        queue[0].zero_()
        array[:] = 9
        queue.append(5)
    kept_queue, kept_slotted, kept_array = seen[""].output
    assert kept_queue[0].tolist() == kept_slotted.inner.tolist() == kept_array.tolist() == [1, 1]
    assert (len(kept_queue), kept_queue.maxlen) == (1, 3)


@pytest.mark.parametrize("stats", [False, True])
def test_a_lazy_layer_may_get_its_parameters_inside_the_block(stats: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3), nn.ReLU(inplace=True))
    with capture(model, stats=stats) as seen:
        result = model(torch.ones(2, 4))
    assert seen.order == ["0", "1", "2"]
    if not stats:
        assert torch.equal(seen["1"].output.relu(), result)


def test_a_layer_can_be_asked_for_by_itself() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with capture(net, net[0], "1") as seen:
        net(torch.ones(1, 2))
    assert seen[net[0]].output is seen["0"].output
    assert net[1] in seen
    assert seen.get(net[1]).name == "1"
    assert net[2] not in seen
    assert seen.get(net[2]) is None
    with pytest.raises(LayerNotFoundError, match="layer '2' was not chosen"):
        seen[net[2]]
    with pytest.raises(LayerNotFoundError, match="this Tanh is not in the model"):
        seen[nn.Tanh()]
    with pytest.raises(LayerNotFoundError, match=r"copy without its model\. Pass the name of a layer"):
        copy.copy(seen)[net[0]]
