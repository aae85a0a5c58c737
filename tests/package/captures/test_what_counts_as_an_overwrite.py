"""What was overwritten is found and named, at no cost in memory."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import capture
from hookscope.captures.inplace import watch
from tests.shared.awkward_models import Net
from tests.shared.capture_runs import Between


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


def relu_(t: Tensor) -> Tensor:
    return F.relu_(t)


@pytest.mark.parametrize("copy", [True, False])
def test_a_write_by_a_function_is_named_by_its_node_and_its_neighbours(copy: bool) -> None:
    with capture(Between(relu_), copy=copy) as seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"first": "an in-place operation (ReluBackward0) between first and second"}
    with torch.no_grad(), seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"first": "an in-place operation between first and second"}


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
    def run(self: nn.Module, x: Tensor) -> Tensor:
        outputs = [layer(x) for layer in self.layers]
        outputs[0].zero_()
        return outputs[-1]

    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])
    with torch.no_grad(), capture(Net(run, layers=layers)) as seen:
        seen._model(torch.ones(2, 4))
    assert seen.overwritten == {"layers.0": "an in-place operation some calls later"}
