"""Raise KeyboardInterrupt at one executed line after the other, and see what stays."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hookscope

__all__ = ["Run", "places"]

Run = Callable[[], None]
_HERE = str(Path(hookscope.__file__).parent)
# Also in what hookscope calls while it puts hooks on and takes them off: a hook may be on, and its handle lost.
_CALLED = (torch.nn.modules.module.__file__, torch.utils.hooks.__file__, contextlib.__file__)


def in_finalizer(frame: Any) -> bool:
    """Whether this runs when an object goes, where Python prints an interrupt and forgets it."""
    while frame is not None and frame.f_code.co_filename != __file__:
        if frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def interrupted(run: Run, when: int, files: tuple[str, ...]) -> str:
    """Run, and raise KeyboardInterrupt at one of the lines; that line, or nothing if there are fewer."""
    count, place = 0, ""

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count, place
        if not frame.f_code.co_filename.startswith(files) or in_finalizer(frame):
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
    except (KeyboardInterrupt, RuntimeError):  # torch makes a RuntimeError of what is raised inside backward
        assert place
    finally:
        sys.settrace(before)
    return place


def places(
    make: Callable[[], tuple[nn.Module, Run]],
    look: Callable[[nn.Module], object],
    step: int,
    *rooms: str,
) -> tuple[int, list[str]]:
    """Interrupt at every so manyth line; how many places there were, and where something stayed.

    Args:
        make: makes a model, and what is to be interrupted.
        look: what could stay on the model; it is compared with what it was before.
        step: 1 for each line.
        *rooms: rooms of hookscope whose lines count; without any, those of all, and of what they call to hook.

    """
    files = tuple(f"{_HERE}/{room}" for room in rooms) or (_HERE, *_CALLED)
    found, stayed = 0, []
    net, run = make()
    before = look(net)
    run()
    while place := interrupted(run, found * step, files):
        found += 1
        if look(net) != before:
            stayed.append(place)
            net, run = make()
            before = look(net)
    return found, stayed
