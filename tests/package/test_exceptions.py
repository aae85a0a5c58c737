"""Whatever is raised, and wherever, no hook stays, and modes and state are as before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from hookscope import attention, capture, edit, profile, record
from tests.shared.recorded import hooks_on
from tests.shared.swept import sweep

ERRORS = (RuntimeError, KeyboardInterrupt)
GLOBAL = [name for name in vars(torch_module) if name.startswith("_global") and name.endswith("hooks")]


class Raises(nn.Linear):
    """Raises in its forward, its backward or a hook of its own, once it is told to."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.where, self.error = "", RuntimeError
        self.register_forward_pre_hook(lambda *_: self.raise_in("pre-hook"))
        self.register_forward_hook(lambda *_: self.raise_in("hook"))

    def raise_in(self, where: str) -> None:
        if where == self.where:
            raise self.error(where)

    def forward(self, x: Tensor) -> Tensor:
        self.raise_in("forward")
        output = super().forward(x)
        if output.requires_grad:
            output.register_hook(lambda _: self.raise_in("backward"))
        return output


class Net(nn.Module):
    """Two layers, and an attention, of which the second layer raises."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Raises()
        self.attn = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu())
        return x + self.attn(x, x, x)[0]


def captured(net: Net, x: Tensor) -> None:
    with capture(net, inputs=True, gradients=True):
        net(x).sum().backward()


def stopped(net: Net, x: Tensor) -> None:
    with capture(net, "second", stop=True):
        net(x)


def recorded(net: Net, x: Tensor) -> None:
    with record(net, parameters=True, optimizers=torch.optim.SGD(net.parameters())) as log:
        log.watch(net(x), "y", retain_grad=True, nodes=True).sum().backward()


def edited(net: Net, x: Tensor) -> None:
    with edit(net) as e:
        e.scale("first", 2)
        e.map("second", lambda value: value + 1, to="input")
        e.scale("second", 0.5, to="grad")
        e.scale("attn", 0, heads=0)
        net(x).sum().backward()


def profiled(net: Net, x: Tensor) -> None:
    profile(net, x)


def swept(net: Net, x: Tensor) -> None:
    sweep(net, x, ["first", "second"], x + 1, metric=lambda output: output.sum())


def attended(net: Net, x: Tensor) -> None:
    attention(net, x)


TOOLS = [captured, stopped, recorded, edited, profiled, swept, attended]
Tool = Callable[[Net, Tensor], None]


def state(net: Net) -> Any:
    modules = dict(net.named_modules())
    return (
        {name: hooks_on(module) for name, module in modules.items()},
        {name: "forward" in vars(module) for name, module in modules.items()},
        {name: len(getattr(torch_module, name)) for name in GLOBAL},
        {name: module.training for name, module in modules.items()},
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _get_current_dispatch_mode_stack()),
        (nn.MultiheadAttention.forward, nn.functional.scaled_dot_product_attention, Tensor.numpy),
    )


@pytest.fixture
def net() -> Iterator[Net]:
    torch.manual_seed(0)
    yield Net()
    gc.collect()


X = torch.arange(8.0).view(1, 2, 4)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", ["forward", "pre-hook", "hook", "backward"])
@pytest.mark.parametrize("tool", TOOLS)
def test_an_error_in_the_model_leaves_nothing_behind(
    tool: Tool, where: str, error: type[BaseException], net: Net
) -> None:
    if where == "backward" and tool in (stopped, swept, attended):
        pytest.skip("there is no backward pass")
    before = state(net)
    net.second.where, net.second.error = where, error
    with pytest.raises(error if where != "backward" else BaseException, match=where):
        tool(net, X)
    assert state(net) == before
    net.second.where = ""
    tool(net, X)
    assert state(net) == before


class Counted:
    """Raises at the n-th call of a function of torch's that registers or removes a hook."""

    def __init__(self, plain: Callable[..., Any], n: int, error: type[BaseException], after: bool) -> None:
        self.plain, self.left, self.error, self.after = plain, n, error, after

    def __get__(self, owner: Any, kind: type) -> Any:
        return lambda *args, **kwargs: self(owner, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if not self.left and not self.after:
            raise self.error("interrupted")
        made = self.plain(*args, **kwargs)
        if not self.left:
            raise self.error("interrupted")
        return made


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("tool", TOOLS)
def test_an_error_while_hooks_are_registered_leaves_none(
    tool: Tool, n: int, error: type[BaseException], net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(net)
    register = Counted(nn.Module.register_forward_pre_hook, n, error, after=False)
    monkeypatch.setattr(nn.Module, "register_forward_pre_hook", register)
    with suppress(error):
        tool(net, X)
        assert register.left > 0, "the error was lost"
    assert state(net) == before


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("tool", TOOLS)
def test_an_error_while_hooks_are_removed_leaves_none(
    tool: Tool, n: int, error: type[BaseException], net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(net)
    remove = Counted(RemovableHandle.remove, n, error, after=True)
    monkeypatch.setattr(RemovableHandle, "remove", remove)
    with suppress(error):
        tool(net, X)
        assert remove.left > 0, "the error was lost"
    assert state(net) == before
