"""Hooks that are put on without a handle are like those that torch puts on, and come off without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookscope.layers import put_after, put_before, take_off


class Hooks:
    """Two hooks, bound to one object as those of edits are."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(("before", kwargs))

    def plain(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.seen.append(("plain", {}))

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.seen.append(("after", kwargs))


def of_torch(module: nn.Module, hooks: Hooks) -> None:
    module.register_forward_pre_hook(hooks.before, with_kwargs=True)
    module.register_forward_pre_hook(hooks.plain)
    module.register_forward_hook(hooks.after, with_kwargs=True, always_call=True)


def ours(module: nn.Module, hooks: Hooks) -> None:
    put_before(module, hooks.before)
    put_before(module, hooks.plain, with_kwargs=False)
    put_after(module, hooks.after)


def held(module: nn.Module) -> dict[str, list[Any]]:
    """List what each dict of hooks holds, by numbers from the first on."""
    dicts = {name: value for name, value in vars(module).items() if "hooks" in name and isinstance(value, dict)}
    first = min((key for each in dicts.values() for key in each), default=0)
    return {name: [(key - first, value) for key, value in each.items()] for name, each in dicts.items()}


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, add: float = 0.0, fails: bool = False) -> torch.Tensor:
        if fails:
            raise RuntimeError("as asked")
        return x + add


@pytest.mark.parametrize("put_on", [of_torch, ours])
def test_hooks_are_called_and_leave_nothing(put_on: Callable[[nn.Module, Hooks], None]) -> None:
    net, hooks = Adds(), Hooks()
    bare = held(net)
    put_on(net, hooks)
    handle = net.register_forward_hook(lambda *_: None)  # torch's own number is still a new one
    assert len({key for key, _ in held(net)["_forward_hooks"]}) == 2
    net(torch.ones(1), add=2.0)
    assert hooks.seen == [("before", {"add": 2.0}), ("plain", {}), ("after", {"add": 2.0})]
    hooks.seen.clear()
    with pytest.raises(RuntimeError, match="as asked"):
        net(torch.ones(1), fails=True)
    assert [name for name, _ in hooks.seen] == ["before", "plain", "after"]
    handle.remove()
    take_off(hooks, net)
    assert held(net) == bare


def test_what_is_held_is_what_torch_holds() -> None:
    hooks, one, other = Hooks(), Adds(), Adds()
    of_torch(one, hooks)
    ours(other, hooks)
    assert held(other) == held(one)
