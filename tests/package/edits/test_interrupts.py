"""An interrupt at any line that entering, a pass, backward and leaving execute leaves no hook on."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import at, census, edit
from tests.shared.interrupts import Run, places

X = torch.randn(1, 3, 4)


def every_kind() -> tuple[nn.Module, Run]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def run() -> None:
        with edit(net) as e:
            e.set("0", 0, at[..., 1])
            e.scale("1", 2.0, to="input")
            e.scale("0", 3.0, to="grad")
            net(X).sum().backward()

    return net, run


def inside_attention() -> tuple[nn.Module, Run]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    # Once outside, since torch imports and caches on the way.
    net(torch.ones(1, 3, dtype=torch.int64))
    e = edit(net)
    e.scale("0", 2.0, positions=1)
    e.scale("1.self_attn", 2.0, heads=1)
    e.cut("1.self_attn", head=0, query=2, key=1)

    def run() -> None:
        with e:
            net(torch.ones(1, 3, dtype=torch.int64)).sum().backward()

    return net, run


class Holds(nn.Module):
    """Is called with a list, and an object, that are its owner's."""

    def __init__(self) -> None:
        super().__init__()
        self.given = [X, SimpleNamespace(y=X)]
        self.layer = Takes()

    def forward(self) -> Tensor:
        return self.layer(self.given)


class Takes(nn.Module):
    def forward(self, given: list[Any]) -> Tensor:
        x: Tensor = given[0] * given[1].y
        return x


def with_a_list() -> tuple[nn.Module, Run]:
    net = Holds()

    def run() -> None:
        with edit(net) as e:
            e.scale("layer", 3.0, to="input", part=(0, 0))
            e.scale("layer", 3.0, to="input", part=(0, 1, "y"))
            assert torch.equal(net(), (X * 3) * (X * 3))

    return net, run


def what_could_stay(net: nn.Module) -> object:
    modes = torch.overrides._get_current_function_mode_stack()
    given = getattr(net, "given", [X, SimpleNamespace(y=X)])
    return (
        len(census(net)), len(modes), ["forward" in vars(module) for module in net.modules()],
        given[0] is X, given[1].y is X,
    )  # fmt: skip


@pytest.mark.parametrize("make", [every_kind, inside_attention, with_a_list])
def test_an_interrupt_at_any_line_leaves_no_hook(make: Any) -> None:
    found, stayed = places(make, what_could_stay, 7, "edits")
    assert found > 40
    assert not stayed, stayed


@pytest.mark.slow
@pytest.mark.parametrize("make", [every_kind, inside_attention, with_a_list])
def test_an_interrupt_at_each_line_leaves_no_hook(make: Any) -> None:
    found, stayed = places(make, what_could_stay, 1, "edits")
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > 300
    assert not stayed, stayed


def test_an_interrupt_while_hooks_come_off_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from hookscope.edits import hooks

    off, came = hooks.take_off, []

    def interrupted(*given: Any) -> None:
        came.append(given)
        if len(came) == 2:
            raise KeyboardInterrupt
        off(*given)

    net, run = every_kind()
    monkeypatch.setattr(hooks, "take_off", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(came) > 2
    assert not len(census(net))


def test_modes_of_others_stay_when_those_of_an_edit_go() -> None:
    from torch.overrides import TorchFunctionMode

    from hookscope.edits.inside import Inside, forget

    class Mine(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    owner = object()
    with Mine() as outer:
        Inside(owner, nn.Identity(), (), (), 1, False, False).__enter__()
        inner = Mine().__enter__()
        forget(object())
        assert len(torch.overrides._get_current_function_mode_stack()) == 3
        forget(owner)
        assert torch.overrides._get_current_function_mode_stack() == [outer, inner]
        inner.__exit__(None, None, None)
    assert not torch.overrides._get_current_function_mode_stack()


def test_an_interrupt_in_torchs_own_code_leaves_no_edit_on() -> None:
    def run() -> None:
        torch.manual_seed(0)
        net = Attends()
        with edit(net) as e:
            e.scale("attention", 100.0, heads=[0, 1])
            net(X)

    def trace(frame: Any, event: str, arg: Any) -> Any:
        """Interrupt where torch is about to put the mode on its stack again."""
        here, around = frame.f_code, frame.f_back.f_code.co_name
        if (here.co_name, here.co_filename, around) == ("__exit__", contextlib.__file__, "handle_torch_function"):
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    other, z = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 3, 8)
    alone = other(z, z, z)[0]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        sys.settrace(before)
    assert torch.equal(other(z, z, z)[0], alone)
    assert not torch.overrides._get_current_function_mode_stack()


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.attention(x, x, x)[0]
        return attended
