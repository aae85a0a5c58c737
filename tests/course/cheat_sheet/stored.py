"""Demonstrations of the hooks around saving and loading."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.course.cheat_sheet import Noting, Row, shows

IGNORED, REFUSED = "nothing", "nothing, else an error"


def fill(module: nn.Module, value: float) -> dict[str, object]:
    nn.init.constant_(module.weight, value)
    return {}


@shows("module.register_state_dict_pre_hook", fires="before `state_dict()`", returns=IGNORED)
def state_dict_pre_hook(row: Row) -> None:
    module = Noting()
    with row.put_on(lambda module, prefix, keep_vars: fill(module, 5), module=module):
        assert module.state_dict() == {"weight": 5}
    fill(module, 2)
    assert module.state_dict() == {"weight": 2}


@shows("module.register_state_dict_post_hook", fires="after it", returns=REFUSED)
def state_dict_post_hook(row: Row) -> None:
    module = nn.Sequential(Noting())

    def rename(module: nn.Module, state_dict: dict[str, object], prefix: str, local_metadata: object) -> None:
        state_dict["renamed"] = state_dict.pop(f"{prefix}0.weight")

    handle = row.put_on(rename, module=module)
    assert [*module.state_dict()] == ["renamed"]
    row.take_off(handle)
    assert [*module.state_dict()] == ["0.weight"]
    with row.put_on(lambda *given: {}, module=module), pytest.raises(RuntimeError, match="must return None"):
        module.state_dict()


@shows("module.register_load_state_dict_pre_hook", fires="before `load_state_dict`", returns=IGNORED)
def load_state_dict_pre_hook(row: Row) -> None:
    module = Noting()

    def double(module: nn.Module, state_dict: dict[str, torch.Tensor], *rest: object) -> dict[str, object]:
        state_dict["weight"] = 2 * state_dict["weight"]
        return {}

    with row.put_on(double, module=module):
        module.load_state_dict({"weight": torch.tensor([[5.0]])})
    assert module.weight == 10


@shows("module.register_load_state_dict_post_hook", fires="after it", returns=REFUSED)
def load_state_dict_post_hook(row: Row) -> None:
    module, seen = Noting(), []

    def forgive(module: nn.Module, incompatible_keys: object) -> None:
        seen.append((module.weight.item(), [*incompatible_keys.unexpected_keys]))
        incompatible_keys.unexpected_keys.clear()

    with row.put_on(forgive, module=module):
        module.load_state_dict({"weight": torch.tensor([[5.0]]), "other": X0})
    assert seen == [(5, ["other"])]
    with row.put_on(lambda *given: {}, module=module), pytest.raises(AssertionError, match="not expected to return"):
        module.load_state_dict({"weight": X0})


X0 = torch.zeros(1, 1)


def an_optimizer() -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> dict[str, object]:
    optimizer.param_groups[0]["lr"] = rate
    return {}


@shows("optimizer.register_state_dict_pre_hook", fires="before `state_dict()`", returns=IGNORED)
def optimizer_state_dict_pre_hook(row: Row) -> None:
    optimizer = an_optimizer()
    with row.put_on(lambda optimizer: set_rate(optimizer, 5), optimizer=optimizer):
        assert optimizer.state_dict()["param_groups"][0]["lr"] == 5


@shows("optimizer.register_state_dict_post_hook", fires="after it", returns="the new `state_dict`")
def optimizer_state_dict_post_hook(row: Row) -> None:
    optimizer = an_optimizer()
    with row.put_on(lambda optimizer, state_dict: {"kept": [*state_dict]}, optimizer=optimizer):
        assert optimizer.state_dict() == {"kept": ["state", "param_groups"]}


@shows("optimizer.register_load_state_dict_pre_hook", fires="before `load_state_dict`", returns="the new `state_dict`")
def optimizer_load_state_dict_pre_hook(row: Row) -> None:
    optimizer, other = an_optimizer(), an_optimizer()
    set_rate(other, 5)
    rates = []

    def replace(optimizer: torch.optim.Optimizer, state_dict: dict[str, object]) -> dict[str, object]:
        rates.append(optimizer.param_groups[0]["lr"])
        return other.state_dict()

    with row.put_on(replace, optimizer=optimizer):
        optimizer.load_state_dict(an_optimizer().state_dict())
    assert [*rates, optimizer.param_groups[0]["lr"]] == [1, 5]


@shows("optimizer.register_load_state_dict_post_hook", fires="after it", returns=IGNORED)
def optimizer_load_state_dict_post_hook(row: Row) -> None:
    optimizer, other = an_optimizer(), an_optimizer()
    set_rate(other, 5)
    rates = []
    with row.put_on(lambda optimizer: rates.append(optimizer.param_groups[0]["lr"]) or {}, optimizer=optimizer):
        optimizer.load_state_dict(other.state_dict())
    assert [*rates, optimizer.param_groups[0]["lr"]] == [5, 5]
