"""A capture keeps every output, input and gradient as it was at its moment, in the structure it came in."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError, capture
from hookscope.captures.call import NotCapturedError
from tests.shared.awkward import Do
from tests.shared.captured import X, small

Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    logits: torch.Tensor
    extra: dict


def test_an_output_is_as_it_was_when_the_layer_returned_it():
    net = small()
    with torch.no_grad(), capture(net) as seen:
        net(X)
    assert seen["0"].output.item() == -4
    assert seen["1"].output.item() == 0
    assert seen.order == ["0", "1", "2"]
    assert list(seen) == ["0", "1", "2"]
    assert seen.overwritten == {"0": "layer 1 (ReLU)"}


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y.mul_(0),
        lambda y: y[:, 0].fill_(9),
        lambda y: y.view(-1).relu_(),
        lambda y: y.t().zero_(),
        lambda y: y.data.copy_(torch.ones_like(y)),
        lambda y: torch.add(torch.ones_like(y), 1, out=y),
        lambda y: torch.relu_(y),
        lambda y: nn.functional.relu(y, inplace=True),
        lambda y: y.index_put_((torch.tensor([0]), torch.tensor([0])), torch.tensor(5.0)),
        lambda y: y.numpy().fill(3),
        lambda y: y.untyped_storage().fill_(0),
        lambda y: y.set_(torch.zeros(1, 1)),
        lambda y: torch._foreach_add_([y], 1),
        lambda y: y.copy_(torch.zeros(1, 1)),
        lambda y: y.chunk(1)[0].exp_(),
    ],
)
def test_no_way_of_writing_in_place_reaches_what_was_kept(write):
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, -2.0)

    def forward(x):
        y = linear(x)
        write(y)
        return y + 1

    net = Do(forward)
    net.linear = linear
    with torch.no_grad(), capture(net) as seen:
        net(torch.ones(1, 1))
    assert seen["linear"].output.item() == -2


def test_an_output_is_safe_after_the_block_too():
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    with torch.no_grad(), capture(net) as seen:
        y = net(torch.ones(1, 1))
    y.zero_()
    assert seen[""].output.item() == 2
    assert y.item() == 0


def test_the_learner_may_write_to_what_was_captured():
    net = small()
    with torch.no_grad(), capture(net) as seen:
        y = net(X)
    seen["2"].output.add_(7)
    assert y.item() == 0


def test_gradients_beside_in_place_operations():
    net, x = small(), torch.tensor([[1.0, 3.0]], requires_grad=True)  # 8, 8, 24
    with capture(net, gradients=True) as seen:
        net(x).sum().backward()
    assert [seen[name].grad.item() for name in "012"] == [3, 3, 1]
    assert seen["0"].grad.requires_grad is False


def test_gradients_add_up_over_passes_as_in_tensor_grad():
    net = small()
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert seen["1"].grad.item() == 6
    with capture(net, gradients=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        torch.autograd.grad(loss, net[0].weight)
    assert seen["1"].grad.item() == 3
    assert net[0].weight.grad is not None
    assert net[0].weight.grad.tolist() == [[6, 18]]


def test_gradients_of_nested_outputs_keep_their_structure():
    def forward(x):
        return {"a": 2 * x, "b": [3 * x, (4 * x).detach()], "n": 5}

    net = nn.Sequential(Do(forward))
    with capture(net, gradients=True) as seen:
        out = net(torch.ones(1, requires_grad=True))
        (out["a"] * 10).sum().backward()
    assert seen["0"].grad == {"a": torch.tensor([10.0]), "b": [None, None], "n": 5}


@pytest.mark.parametrize(
    ("make", "same"),
    [
        (lambda x: (x, x + 1), tuple),
        (lambda x: [x, x + 1], list),
        (lambda x: {"a": x, "b": x + 1}, dict),
        (lambda x: OrderedDict(a=x, b=x + 1), OrderedDict),
        (lambda x: Pair(x, x + 1), Pair),
        (lambda x: Result(x, {"deep": (x + 1, "text")}), Result),
        (lambda x: torch.max(x, dim=0), torch.return_types.max),
    ],
)
def test_the_structure_of_an_output_is_kept(make, same):
    net = Do(make)
    with capture(net) as seen:
        out = net(torch.arange(3.0))
    kept = seen[""].output
    assert type(kept) is type(out) is same
    if same is Result:
        assert torch.equal(kept.logits, out.logits)
        assert torch.equal(kept.extra["deep"][0], out.extra["deep"][0])
        assert kept.extra["deep"][1] == "text"
        assert kept is not out
        assert kept.extra is not out.extra
    else:
        pairs = zip(kept.values(), out.values(), strict=True) if isinstance(out, dict) else zip(kept, out, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_an_object_of_unknown_type_is_followed_by_its_attributes():
    class Images:
        def __init__(self, tensors):
            self.tensors = tensors
            self.sizes = [(1, 2)]

    def forward(x):
        box.append(Images(x * 2))
        return box[0]

    box: list[Images] = []
    net = Do(forward)
    with torch.no_grad(), capture(net) as seen:
        net(torch.ones(2))
        box[0].tensors.zero_()
    assert seen[""].output.tensors.tolist() == [2, 2]
    assert seen[""].output.sizes == [(1, 2)]


def test_a_layer_called_twice_has_two_calls_and_no_single_output():
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 2.0)
    net = nn.Sequential(linear, linear)
    with capture(net, gradients=True) as seen:
        net(torch.ones(1, 1)).sum().backward()
    assert [call.output.item() for call in seen["0"].calls] == [2, 4]
    assert [call.grad.item() for call in seen["0"].calls] == [2, 1]
    assert [call.label for call in seen.calls] == ["0", "0#2"]
    for what in ("output", "grad", "args", "kwargs"):
        with pytest.raises(NotCapturedError, match=rf"called 2 times; .*seen\['0'\]\.calls\[0\]\.{what}"):
            getattr(seen["0"], what)


def test_inputs_are_as_they_were_before_an_in_place_layer_ran():
    net = small()
    with torch.no_grad(), capture(net, inputs=True) as seen:
        net(X)
    assert seen["1"].args[0].item() == -4
    assert seen["1"].kwargs == {}
    scale = Do(lambda x, by: x * by)
    with capture(scale, inputs=True) as seen:
        scale(torch.ones(1), by=torch.tensor(3.0))
    assert seen[""].kwargs["by"].item() == 3


def test_inference_mode_gives_usable_outputs():
    net = small()
    with torch.inference_mode(), capture(net) as seen:
        net(X)
    output = seen["0"].output
    assert output.item() == -4
    assert not output.is_inference()
    (output * torch.ones(1, requires_grad=True)).sum().backward()


def test_recursion_is_told_apart_by_calls():
    class Count(nn.Module):
        def forward(self, x, depth=2):
            return x if depth == 0 else self(x + 1, depth - 1) * 2

    with capture(Count()) as unused:
        pass
    assert len(unused) == 0
    net = Count()
    with capture(net) as seen:
        net(torch.zeros(1))
    assert [call.output.item() for call in seen[""].calls] == [8, 4, 2]


def test_the_layers_of_a_fused_encoder_fire():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    with pytest.warns(UserWarning, match="fused path"), torch.no_grad(), capture(layer, "linear1") as seen:
        layer(torch.randn(1, 3, 4))
    assert seen["linear1"].output.shape == (1, 3, 8)


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
    with pytest.raises(LayerNotFoundError, match="no layer '2' in this capture"):
        seen[net[2]]
    with pytest.raises(LayerNotFoundError, match="this Tanh is not in the model"):
        seen[nn.Tanh()]
    with pytest.raises(LayerNotFoundError, match="copy without its model: ask for a layer by its name"):
        copy.copy(seen)[net[0]]


def test_a_layer_that_did_not_run_says_so_when_asked_for_by_itself() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with capture(net) as seen:
        net[0](torch.ones(1, 2))
    with pytest.raises(NotCapturedError, match="layer '1' was not called"):
        seen[net[1]]
