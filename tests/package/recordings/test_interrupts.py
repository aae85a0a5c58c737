"""An interrupt at any line that entering, a pass, backward, a step and leaving execute leaves no hook on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookscope import record
from hookscope.censuses.entry import hooks_of
from tests.shared.interrupts import Run, lines, places
from tests.shared.recorded import hooks_on


def mine(*_: object) -> None:
    """A hook of the learner's."""


class Watched(nn.Sequential):
    """A model with hooks, and what is beside it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2))
        self[0].register_forward_hook(mine)
        self[0].weight.register_hook(mine)
        self[0].register_full_backward_hook(mine)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        self.x = torch.ones(1, 2, requires_grad=True)


def what_could_stay(net: Watched) -> object:
    return hooks_on(net), [*hooks_of(net.optimizer)], [*hooks_of(net.x)], len(warnings.filters)


def everything() -> tuple[Watched, Run]:
    net = Watched()

    def run() -> None:
        with record(net, parameters=True, optimizers=net.optimizer) as recording:
            recording.watch(net(net.x), "y", retain_grad=True, nodes=True).sum().backward()
            recording.watch_all({"x": net.x, "weight": net[0].weight})
            recording.watch_all({"x": net.x}, mode="any")
            net.optimizer.step()

    return net, run


def calls_only() -> tuple[Watched, Run]:
    net = Watched()

    def run() -> None:
        with record(net, kinds=("forward_pre", "forward")):
            net(net.x)

    return net, run


@pytest.fixture(autouse=True)
def _global_hook() -> Iterator[None]:
    torch_module.register_module_forward_hook(mine)
    yield
    for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
        hooks.clear()  # also of what stayed where nothing can take it off


def assert_nothing_stays(found: int, stayed: list[str], least: int) -> None:
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > least
    assert not stayed, stayed


@pytest.mark.parametrize(("make", "step"), [(everything, 61), (calls_only, 19)])
def test_an_interrupt_at_any_line_leaves_no_hook(make: Callable[[], tuple[Watched, Run]], step: int) -> None:
    assert_nothing_stays(*places(make, what_could_stay, step), 40)


@pytest.mark.slow
@pytest.mark.parametrize("make", [everything, calls_only])
def test_an_interrupt_at_each_line_leaves_no_hook(make: Callable[[], tuple[Watched, Run]]) -> None:
    assert_nothing_stays(*lines(make, what_could_stay), 400)
