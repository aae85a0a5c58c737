"""Demonstrations of the hooks that fire in a forward or a backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.course.cheat_sheet import Noting, Row, X, shows, x_that_requires


@shows(
    "module.register_forward_pre_hook",
    fires="at a call, before `forward`",
    returns="the new `args`, or one argument",
    trap="a list is taken for one argument",
)
def forward_pre_hook(row: Row) -> None:
    module = Noting()
    handle = row.put_on(lambda module, args: module.seen.append(args), module=module)
    assert module(X) == 6
    assert module.seen == [(X,), "forward"]
    row.take_off(handle)
    module(X)
    assert module.seen[2:] == ["forward"]
    for replacement in ((10 * X,), 10 * X):
        with row.put_on(lambda module, args, it=replacement: it, module=module):
            assert module(X) == 60
    got: list[object] = []
    identity = nn.Identity()
    with row.put_on(lambda module, args: [args[0], args[0]], module=identity):
        got.append(identity(X))
    assert isinstance(got[0], list)
    # One argument that is a tuple is taken apart, as a packed sequence is; in a tuple it arrives whole.
    pair = (X, X)
    with identity.register_forward_pre_hook(lambda module, args: pair), pytest.raises(TypeError, match="were given"):
        identity(X)
    with identity.register_forward_pre_hook(lambda module, args: (pair,)):
        assert identity(X) is pair


@shows(
    "module.register_forward_hook",
    fires="at a call, after `forward`",
    returns="the new output",
    trap="a direct `forward(x)` skips it",
)
def forward_hook(row: Row) -> None:
    module = Noting()
    handle = row.put_on(lambda module, args, output: module.seen.append((*args, output.item())), module=module)
    module(X)
    assert module.seen == ["forward", (X, 6)]
    module.forward(X)
    assert module.seen[2:] == ["forward"]
    other = Noting()
    other(X)
    assert other.seen == ["forward"], "it is on one module"
    row.take_off(handle)
    module(X)
    assert module.seen[3:] == ["forward"]
    with row.put_on(lambda module, args, output: 10 * output, module=module):
        assert module(X) == 60


@shows(
    "module.register_full_backward_pre_hook",
    fires="before the output's gradient enters the module",
    returns="the new `grad_output`, a tuple",
    trap="returning a tensor is an error",
)
def full_backward_pre_hook(row: Row) -> None:
    module, seen = Noting(), []
    module.weight.register_hook(lambda grad: seen.append("weight"))
    handle = row.put_on(lambda module, grad_output: seen.append(grad_output[0].item()), module=module)
    module(x_that_requires()).backward()
    assert seen == [1, "weight"]
    row.take_off(handle)
    module(x_that_requires()).backward()
    assert seen[2:] == ["weight"]
    module.zero_grad()
    x = x_that_requires()
    with row.put_on(lambda module, grad_output: (10 * grad_output[0],), module=module):
        module(x).backward()
    assert [x.grad, module.weight.grad] == [20, 30]
    for size in (1, 3):
        with row.put_on(lambda module, grad_output: grad_output[0], module=module), pytest.raises(RuntimeError):
            module(torch.ones(size, 1, requires_grad=True)).sum().backward()


@shows(
    "module.register_full_backward_hook",
    fires="when the gradients of the inputs are there",
    returns="the new `grad_input`, a tuple",
    trap="an in-place `ReLU` right behind it is an error",
)
def full_backward_hook(row: Row) -> None:
    module, seen = Noting(), []
    module.weight.register_hook(lambda grad: seen.append("weight"))
    handle = row.put_on(
        lambda module, grad_input, grad_output: seen.append((grad_input[0], grad_output[0].item())), module=module
    )
    module(x_that_requires()).backward()
    assert seen == ["weight", (torch.tensor([[2.0]]), 1)]
    seen.clear()
    with pytest.warns(UserWarning, match="no inputs require gradients"):
        module(X).backward()
    assert seen == [(None, 1), "weight"]
    row.take_off(handle)
    module(x_that_requires()).backward()
    assert seen[2:] == ["weight"]
    x = x_that_requires()
    with row.put_on(lambda module, grad_input, grad_output: (10 * grad_input[0],), module=module):
        module(x).backward()
        assert x.grad == 20
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            nn.Sequential(module, nn.ReLU(inplace=True))(x)


@shows(
    "tensor.register_hook",
    fires="when the tensor's gradient is complete",
    returns="the new gradient, same shape and dtype",
    trap="on a weight: only this pass, not the sum in `.grad`",
)
def tensor_hook(row: Row) -> None:
    x, seen = x_that_requires(), []
    y = 2 * x
    handle = row.put_on(lambda grad: seen.append(grad.item()), tensor=y)
    (3 * y + 4 * y).backward(retain_graph=True)
    assert seen == [7], "once, with both uses added up"
    row.take_off(handle)
    (3 * y).backward(retain_graph=True)
    assert seen == [7]
    x.grad = None
    with row.put_on(lambda grad: 10 * grad, tensor=y):
        y.backward(retain_graph=True)
    assert x.grad == 20
    for wrong in (lambda grad: grad[0], lambda grad: grad.double()):
        with row.put_on(wrong, tensor=y), pytest.raises(RuntimeError, match=r"has changed the (size|type)"):
            y.backward(retain_graph=True)
    weight = Noting().weight
    row.put_on(lambda grad: seen.append(grad.item()), tensor=weight)
    for _ in range(2):
        (3 * weight).backward()
    assert [seen[1:], weight.grad.item()] == [[3, 3], 6]


@shows(
    "tensor.register_post_accumulate_grad_hook",
    fires="when the gradient has been added to `.grad`",
    returns="nothing; a value is an error",
    trap="a tensor that is not a leaf refuses it",
)
def post_accumulate_hook(row: Row) -> None:
    parameter, seen = Noting().weight, []
    handle = row.put_on(lambda parameter: seen.append(parameter.grad.item()), tensor=parameter)
    for _ in range(2):
        (3 * parameter).backward()
    assert seen == [3, 6]
    row.take_off(handle)
    (3 * parameter).backward()
    assert seen == [3, 6]
    with row.put_on(lambda parameter: parameter.grad, tensor=parameter), pytest.raises(RuntimeError, match="None"):
        (3 * parameter).backward()
    with pytest.raises(RuntimeError, match="non-leaf"):
        row.put_on(print, tensor=2 * parameter)


@shows(
    "graph.register_multi_grad_hook",
    fires="when the last of their gradients in this pass is there",
    returns="nothing; a value is ignored",
    trap="None for a tensor that is not reached",
)
def multi_grad_hook(row: Row) -> None:
    seen: list[object] = []
    tensors = [torch.tensor(value, requires_grad=True) for value in (2.0, 3.0)]
    for tensor in tensors:
        tensor.register_hook(lambda grad: seen.append(grad.item()))
    handle = row.put_on(lambda grads: seen.append([*grads]) or "a value", tensors=tensors)
    (tensors[0] * tensors[1]).backward()
    assert len(seen) == 3
    assert [seen[-1], [tensor.grad for tensor in tensors]] == [[3, 2]] * 2
    seen.clear()
    (4 * tensors[0]).backward()
    assert seen == [4, [4, None]]
    loss, alone = 2 * torch.tensor(1.0, requires_grad=True), []
    with torch.autograd.graph.register_multi_grad_hook([loss], alone.append):
        loss.backward()
    assert alone == []
    row.take_off(handle)
    (4 * tensors[0]).backward()
    assert seen[2:] == [4]


@shows(
    "node.register_prehook",
    fires="before the node runs, after the tensor's hooks",
    returns="the new `grad_outputs`, a tuple",
    trap="`tensor.grad` is kept before it",
)
def node_pre_hook(row: Row) -> None:
    x, seen = x_that_requires(), []
    y = 2 * x
    y.retain_grad()
    handle = row.put_on(lambda grad_outputs: seen.append("node pre-hook") or (10 * grad_outputs[0],), node=y.grad_fn)
    y.register_hook(lambda grad: seen.append("tensor"))
    x.register_hook(lambda grad: seen.append("the node has run"))
    y.backward(retain_graph=True)
    assert seen == ["tensor", "node pre-hook", "the node has run"]
    assert [x.grad, y.grad] == [20, 1]
    row.take_off(handle)
    y.backward()
    assert seen[3:] == ["tensor", "the node has run"]


@shows(
    "node.register_hook",
    fires="after the node has run",
    returns="the new `grad_inputs`, a tuple",
    trap="a leaf has no `grad_fn`",
)
def node_hook(row: Row) -> None:
    x, seen = x_that_requires(), []
    y = 2 * x
    handle = row.put_on(
        lambda grad_inputs, grad_outputs: (
            seen.append((grad_inputs[0].item(), grad_outputs[0].item())) or (10 * grad_inputs[0], *grad_inputs[1:])
        ),
        node=y.grad_fn,
    )
    y.backward(retain_graph=True)
    assert seen == [(2, 1)]
    assert x.grad == 20
    row.take_off(handle)
    y.backward()
    assert len(seen) == 1
    with pytest.raises(AttributeError):
        row.put_on(print, node=x.grad_fn)


@shows(
    "module.register_backward_hook",
    fires="when the last operation of `forward` has run backward",
    returns="the new `grad_input`, a tuple",
    trap="outdated: it sees only the last operation",
)
def legacy_backward_hook(row: Row) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            middle = 5 * x
            middle.register_hook(lambda grad: seen.append("first operation"))
            return 2 * middle

    module, x, seen = Twice(), x_that_requires(), []
    handle = row.put_on(lambda module, grad_input, grad_output: seen.append(grad_input[0].item()), module=module)
    with handle, pytest.warns(FutureWarning, match="full_backward"):
        module(x).backward()
    assert seen == [2, "first operation"]
    assert x.grad == 10
    x.grad = None
    handle = row.put_on(lambda module, grad_input, grad_output: tuple(map(ten, grad_input)), module=module)
    with handle, pytest.warns(FutureWarning, match="full_backward"):
        module(x).backward()
    assert x.grad == 100


def ten(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else 10 * grad
