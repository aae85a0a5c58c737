"""What was overwritten is found and named, at no cost in memory, and copied before on the next pass."""

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import capture
from hookscope.captures.writes import watch
from tests.shared.awkward import cloning
from tests.shared.captured import Between


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.add_(1),
        lambda t: t.view(-1)[:1].add_(1),
        lambda t: F.relu_(t),
        lambda t: t.detach().zero_(),
        lambda t: t.__setitem__(0, 0.0),
        lambda t: torch.add(t, 1, out=t),
        lambda t: t.T.mul_(2),
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_way_of_writing_is_seen(write: Any, mode: Any) -> None:
    with mode():
        tensor = torch.randn(3, 4)
        kept = tensor._lazy_clone()
        eye = watch(tensor, kept)
        assert eye is not None
        _ = tensor + 1
        assert not eye.written()
        write(tensor)
        assert eye.written()


def test_watching_holds_no_memory_and_outlives_the_tensor() -> None:
    tensor = torch.randn(1000)
    storage = weakref.ref(tensor.untyped_storage())
    alive = weakref.ref(tensor)
    eye = watch(tensor)
    assert eye is not None
    tensor.add_(1)
    del tensor
    assert alive() is None
    assert storage() is None
    assert eye.written()
    assert eye.operation() is None


def test_nothing_is_said_where_nothing_can_be_known() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        assert watch(tensor, tensor.clone()) is None
        assert watch(tensor) is None


def relu_(t: Tensor) -> Tensor:
    return F.relu_(t)


@pytest.mark.parametrize("keep", ["tensors", "copies"])
def test_a_write_by_a_function_is_named_by_its_node_and_its_neighbours(keep: Any) -> None:
    with capture(Between(relu_), keep=keep) as seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"first": "an in-place operation (ReluBackward0) between first and second"}
    with torch.no_grad(), seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"first": "an in-place operation between first and second"}


def test_a_write_in_inference_mode_is_found() -> None:
    with torch.inference_mode(), capture(Between(nn.ReLU(inplace=True))) as seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"first": "layer between (ReLU)"}


def test_a_write_after_the_last_layer_is_placed_there() -> None:
    with capture(Between(relu_), "first") as seen:
        result = seen._model(torch.ones(2, 4))
    assert result.grad_fn is not None, "while the graph lives, the node has a name"
    assert seen.overwritten == {"first": "an in-place operation (ReluBackward0) after first, the last layer captured"}
    with capture(Between(relu_), "second") as seen:
        result = seen._model(torch.ones(2, 4)).neg_()
    assert seen.overwritten == {"second": "an in-place operation (NegBackward0) after second, the last layer captured"}
    assert torch.equal(result, -seen["second"].output)


def test_a_write_much_later_claims_no_place() -> None:
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            outputs = [layer(x) for layer in self.layers]
            outputs[0].zero_()
            return outputs[-1]

    with torch.no_grad(), capture(Late()) as seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"layers.0": "an in-place operation some calls later"}


# --- copied before it is overwritten


@pytest.mark.parametrize("gradients", [False, True])
def test_what_an_in_place_layer_will_overwrite_is_copied_before(gradients: bool) -> None:
    block = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8))
    model = nn.Sequential(block, nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    x = torch.randn(4, 4, 34, 34)
    with torch.set_grad_enabled(gradients), cloning(model) as calls:
        model(x)
    for _ in range(3):  # at first by the layer's look at what it is given, then because it is known
        with torch.set_grad_enabled(gradients), capture(model, lambda name, module: True) as seen:
            model(x)
        for call in calls:
            torch.testing.assert_close(seen[call.layer].output, call.output, rtol=0, atol=0)
        assert torch.equal(seen["0"].output, seen["0.1"].output)
        assert seen.overwritten == {"0.1": "layer 1 (ReLU)", "0": "layer 1 (ReLU)"}
        shared = torch._C._data_address(seen["0"].output) == torch._C._data_address(seen["0.1"].output)
        assert shared or seen._hooks._at_once


def test_what_was_overwritten_is_remembered_for_the_model_and_forgotten_with_it() -> None:
    from hookscope.captures.writes import _known

    model = Between(relu_)
    with torch.no_grad():
        with capture(model):
            model(torch.ones(2, 4))
        assert _known[model] == {"first"}
        with capture(model, "second"):
            model(torch.ones(2, 4))
        assert _known[model] == {"first"}  # nothing was learned about it
        with capture(model) as seen:
            output = model(torch.ones(2, 4))
        assert not torch._C._is_cow_tensor(seen["first"].output)
        assert torch.equal(seen["second"].output, output)
        model.between = nn.Identity()
        with capture(model, "first", "second"):
            model(torch.ones(2, 4))
        assert not _known[model]
    count = len(_known)
    del model, seen
    gc.collect()
    assert len(_known) < count
