"""An interrupt at any line that entering, a pass, backward and leaving execute leaves no hook on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope import at, census, edit

EDITS = str(Path(hookscope.__file__).parent / "edits")
X = torch.randn(1, 3, 4)


def every_kind() -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def run() -> None:
        with edit(net) as e:
            e.set("0", 0, at[..., 1])
            e.scale("1", 2.0, to="input")
            e.scale("0", 3.0, to="grad")
            net(X).sum().backward()

    return net, run


def inside_attention() -> tuple[nn.Module, Callable[[], None]]:
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


def interrupted(run: Callable[[], None], when: int) -> str:
    """Run, and raise KeyboardInterrupt at one of the lines; that line, or nothing if there are fewer."""
    count, place = 0, ""

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count, place
        if not frame.f_code.co_filename.startswith(EDITS):
            return None
        if event == "line":
            count += 1
            if count == when + 1:
                place = f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except (KeyboardInterrupt, RuntimeError):
        assert place
    finally:
        sys.settrace(before)
    return place


def left_behind(net: nn.Module) -> bool:
    modes = torch.overrides._get_current_function_mode_stack()
    return bool(len(census(net)) or modes) or any("forward" in vars(module) for module in net.modules())


def places(make: Callable[[], tuple[nn.Module, Callable[[], None]]], step: int) -> tuple[int, list[str]]:
    """Interrupt at every so manyth line; how many places there were, and where something stayed."""
    found, stayed = 0, []
    net, run = make()
    run()
    while place := interrupted(run, found * step):
        found += 1
        if left_behind(net):
            stayed.append(place)
            net, run = make()
    return found, stayed


FIRST = "edit.py: __exit__, "


@pytest.mark.parametrize("make", [every_kind, inside_attention])
def test_an_interrupt_at_any_line_leaves_no_hook(make: Any) -> None:
    found, stayed = places(make, 7)
    assert found > 40
    # Before the first line of __exit__ has run, nothing in Python can take them off.
    assert len(set(stayed)) <= 1, stayed
    assert all(place.startswith(FIRST) for place in stayed), stayed


@pytest.mark.slow
@pytest.mark.parametrize("make", [every_kind, inside_attention])
def test_an_interrupt_at_each_line_leaves_no_hook(make: Any) -> None:
    found, stayed = places(make, 1)
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > 300
    assert len(set(stayed)) <= 1, stayed
    assert all(place.startswith(FIRST) for place in stayed), stayed
