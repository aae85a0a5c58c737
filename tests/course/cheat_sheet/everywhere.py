"""Demonstrations of the hooks on every optimizer, and on what becomes part of a module."""

from __future__ import annotations

import torch
from torch import nn

from tests.course.cheat_sheet import Row, optimizer_of, shows


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
