"""With copy=True nothing reaches what was kept; with copy=False a tensor that was overwritten is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import OverwrittenError, capture
from hookscope.captures import NotCapturedError
from tests.shared.awkward_models import Do
from tests.shared.capture_runs import X, make_small_net
from tests.shared.table_checks import for_each

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda y: y.add_(1),
    "a row": lambda y: y.__setitem__(0, 9.0),
    "of a view": lambda y: y[:1].fill_(9),
    "transposed": lambda y: y.T.mul_(2),
    "detached": lambda y: y.detach().zero_(),
    "out=": lambda y: torch.add(y, 1, out=y),
    "set_": lambda y: y.set_(torch.zeros(3)),
    "resize_": lambda y: y.resize_(100).fill_(99),
    "an optimizer": lambda y: torch._foreach_add_([y], 1),
}


@for_each(WRITES)
def test_a_reference_is_refused_where_torch_counts_writes(name: str) -> None:
    layer = Do(lambda x: x * 2)
    for samples in (None, slice(0, 1)):
        with torch.no_grad(), capture(layer, copy=False, samples=samples) as seen:
            output = layer(torch.ones(2, 2))
            assert seen[""].output[0].tolist() == [2, 2]
            WRITES[name](output)
        with pytest.raises(OverwrittenError, match=r"the output of layer '\(root\)' was overwritten"):
            _ = seen[""].output


def test_the_error_names_the_layer_and_who_wrote_and_says_what_to_type() -> None:
    net = make_small_net()
    with torch.no_grad(), capture(net, inputs=True, copy=False) as seen:
        net(X)
    assert seen.overwritten == {"0": "layer 1 (ReLU)"}
    with pytest.raises(
        OverwrittenError, match=r"output of layer '0' was overwritten later, by layer 1 \(ReLU\).* copy=True"
    ):
        _ = seen["0"].output
    with pytest.raises(OverwrittenError, match=r"an input of layer '1' was overwritten later: .* copy=True"):
        _ = seen["1"].args
    assert seen["1"].output.tolist() == [[0]]
    assert seen["0"].args[0].tolist() == X.tolist()
    assert hookscope.OverwrittenError is OverwrittenError


def test_the_second_of_two_calls_is_named() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    with torch.no_grad(), capture(net, copy=False) as seen:
        net(torch.ones(1, 2)), net(torch.ones(1, 2))
    with pytest.raises(OverwrittenError, match=r"output of call '0#2' was overwritten later, by layer 1#2 \(ReLU\)"):
        _ = seen["0"].calls[1].output


def test_a_reference_shares_the_memory_and_a_copy_does_not() -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad(), capture(layer, copy=False) as seen, capture(layer) as copied:
        y = layer(torch.ones(2, 2))
    assert seen[""].output.data_ptr() == y.data_ptr() != copied[""].output.data_ptr()
    assert not seen[""].output.requires_grad


def test_what_torch_counts_no_writes_to_is_copied() -> None:
    net = make_small_net()
    with torch.inference_mode(), capture(net, copy=False) as seen:
        net(X)
    assert seen["0"].output.item() == -4
    net = nn.Sequential(Do(lambda x: torch.eye(2).to_sparse()), Do(lambda x: x._values().zero_()))
    with capture(net, copy=False) as seen:
        net(X)
    assert seen["0"].output.to_dense().tolist() == [[1, 0], [0, 1]]


def test_a_converted_output_is_nobody_elses() -> None:
    net = make_small_net()
    with torch.no_grad(), capture(net, copy=False, dtype=torch.float64) as seen:
        net(X)
    assert seen["0"].output.item() == -4


def test_gradients_are_copies_also_beside_references() -> None:
    net, leaf = make_small_net(), torch.tensor([[1.0, 3.0]], requires_grad=True)
    with capture(net, gradients=True, copy=False) as seen:
        y = net(leaf)
        for _ in range(2):
            y.sum().backward(retain_graph=True)
    assert [seen[name].grad.item() for name in "012"] == [6, 6, 2]


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_references_keeps_what_is_right_and_refuses_the_rest(how: Any) -> None:
    net = make_small_net()
    with torch.no_grad(), capture(net, copy=False) as seen:
        y = net(X)
    again = how(seen)
    y.fill_(5)
    assert again["2"].output.item() == 0
    with pytest.raises(
        NotCapturedError, match="kept as a reference, and was overwritten before the capture was copied"
    ):
        _ = again["0"].output


def test_a_picture_of_what_was_overwritten_is_refused() -> None:
    net = make_small_net()
    with torch.no_grad(), capture(net, copy=False) as seen:
        net(X)
    with pytest.raises(OverwrittenError, match="output of layer '0'"):
        hookscope.gradient_flow(seen)
