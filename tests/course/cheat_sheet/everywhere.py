"""Demonstrations of the hooks on every module and every optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.course.cheat_sheet import Noting, Row, X, optimizer_of, shows, x_that_requires


@shows("register_module_forward_pre_hook", fires="before its own", returns="as above")
def forward_pre_hook(row: Row) -> None:
    module = Noting()
    module.register_forward_pre_hook(lambda module, args: module.seen.append(args[0].item()))
    with row.put_on(lambda module, args: (10 * args[0],)):
        assert module(X) == 60
    assert module.seen == [30, "forward"]
    assert module(X) == 6


@shows("register_module_forward_hook", fires="before its own", returns="as above")
def forward_hook(row: Row) -> None:
    handle = row.put_on(lambda module, args, output: 10 * output)
    try:
        net = nn.Sequential(Noting())  # made later
        net[0].register_forward_hook(lambda module, args, output: module.seen.append(output.item()))
        assert net(X) == 600, "ten times for the layer, and ten times for the model"
        assert net[0].seen == ["forward", 60]
    finally:
        row.take_off(handle)
    assert net(X) == 6


@shows("register_module_full_backward_pre_hook", fires="before its own", returns="as above")
def full_backward_pre_hook(row: Row) -> None:
    module, x = Noting(), x_that_requires()
    module.register_full_backward_pre_hook(lambda module, grad_output: module.seen.append(grad_output[0].item()))
    with row.put_on(lambda module, grad_output: (10 * grad_output[0],)):
        module(x).backward()
    assert module.seen == ["forward", 10]
    assert [x.grad, module.weight.grad] == [20, 30]


@shows("register_module_full_backward_hook", fires="before its own", returns="as above")
def full_backward_hook(row: Row) -> None:
    flag, module, x = nn.modules.module._global_is_full_backward_hook, Noting(), x_that_requires()
    module.register_full_backward_hook(lambda module, grad_input, _: module.seen.append(grad_input[0].item()))
    try:
        with row.put_on(lambda module, grad_input, grad_output: (10 * grad_input[0],)):
            module(x).backward()
    finally:
        nn.modules.module._global_is_full_backward_hook = flag  # torch keeps it, and would refuse the other kind
    assert module.seen == ["forward", 20]
    assert x.grad == 20


@shows("register_module_backward_hook", fires="outdated", returns="as above")
def backward_hook(row: Row) -> None:
    flag, layer, sizes = nn.modules.module._global_is_full_backward_hook, nn.Bilinear(1, 1, 1), []
    nn.modules.module._global_is_full_backward_hook = None
    try:
        handle = row.put_on(lambda module, grad_input, grad_output: sizes.append([grad.shape for grad in grad_input]))
        with handle, pytest.warns(FutureWarning, match="full_backward"):
            layer(x_that_requires(), X).backward()
    finally:
        nn.modules.module._global_is_full_backward_hook = flag
    assert sizes == [[(1, 1), (1,)]], "of the last operation, which adds the bias"


@shows("register_optimizer_step_pre_hook", fires="before its own", returns="as above")
def step_pre_hook(row: Row) -> None:
    weight, seen = nn.Parameter(torch.tensor(2.0)), []
    optimizer = optimizer_of(weight)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append([*kwargs]))
    with row.put_on(lambda optimizer, args, kwargs: (args, {"closure": None})):
        optimizer.step()
    assert [seen, weight.item()] == [[["closure"]], -1]


@shows("register_optimizer_step_post_hook", fires="after its own", returns="as above")
def step_post_hook(row: Row) -> None:
    weight, seen = nn.Parameter(torch.tensor(2.0)), []
    optimizer = optimizer_of(weight)
    optimizer.register_step_post_hook(lambda *given: seen.append("own"))
    with row.put_on(lambda optimizer, args, kwargs: seen.append(weight.item()) or "a value"):
        optimizer.step()
    assert seen == ["own", -1]


@shows(
    "register_module_module_registration_hook",
    fires="when a module is assigned",
    returns="another module",
)
def module_registration_hook(row: Row) -> None:
    net, relu = nn.Module(), nn.ReLU()
    with row.put_on(lambda module, name, submodule: relu if name == "act" else None):
        net.act, net.other = nn.Sigmoid(), nn.Sigmoid()
    assert net.act is relu
    assert type(net.other) is nn.Sigmoid


@shows(
    "register_module_parameter_registration_hook",
    fires="when a parameter is assigned",
    returns="another parameter",
)
def parameter_registration_hook(row: Row) -> None:
    net, other = nn.Module(), nn.Parameter(torch.ones(1))
    with row.put_on(lambda module, name, parameter: other):
        net.weight = nn.Parameter(torch.zeros(1))
    assert net.weight is other


@shows(
    "register_module_buffer_registration_hook",
    fires="when a buffer is registered",
    returns="another buffer",
)
def buffer_registration_hook(row: Row) -> None:
    net, other = nn.Module(), torch.ones(1)
    with row.put_on(lambda module, name, buffer: other):
        net.register_buffer("mean", torch.zeros(1))
    assert net.mean is other
