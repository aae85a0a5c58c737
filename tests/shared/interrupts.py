"""Raise KeyboardInterrupt at one executed line after the other, and see what stays."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hookscope

__all__ = ["Run", "counted", "interrupted", "lines", "places"]

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


def interrupted(run: Run, when: Callable[[Any], bool], files: tuple[str, ...]) -> str:
    """Run, and raise KeyboardInterrupt at the line for which `when(frame)` is true; that line, or nothing."""
    place = ""

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal place
        if not frame.f_code.co_filename.startswith(files) or in_finalizer(frame):
            return None
        if event == "line" and not place and when(frame):
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


def counted(when: int) -> Callable[[Any], bool]:
    """Tell the so manyth line, from 0."""
    count = -1

    def is_it(frame: Any) -> bool:
        nonlocal count
        count += 1
        return count == when

    return is_it


def at(line: tuple[str, int], time: int) -> Callable[[Any], bool]:
    """Tell a line when it is executed for the so manyth time, from 1."""
    file, number = line
    count = 0

    def is_it(frame: Any) -> bool:
        nonlocal count
        count += frame.f_lineno == number and frame.f_code.co_filename == file
        return count == time

    return is_it


def files_of(rooms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{_HERE}/{room}" for room in rooms) or (_HERE, *_CALLED)


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
    files, found, stayed = files_of(rooms), 0, list[str]()
    net, run = make()
    before = look(net), _modes()
    run()
    while place := interrupted(run, counted(found * step), files):
        found += 1
        if (look(net), _modes()) != before:
            stayed.append(place)
            torch.set_grad_enabled(True)
            net, run = make()
            before = look(net), _modes()
    _take_off_what_stayed()
    return found, stayed


def _modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _take_off_what_stayed() -> None:
    """What an interrupt left on all modules goes with the model, which autograd may keep; later tests begin anew."""
    hooks = torch.nn.modules.module._global_module_registration_hooks
    for key in [key for key, hook in hooks.items() if type(hook).__module__.startswith("hookscope")]:
        del hooks[key]


def lines(
    make: Callable[[], tuple[nn.Module, Run]], look: Callable[[nn.Module], object], *rooms: str
) -> tuple[int, list[str]]:
    """Interrupt at each line when it is executed for the first, the second and the last time, as `places` does.

    What takes a loop through thousands of executed lines has a few hundred different ones.
    """
    files, executed, stayed = files_of(rooms), Counter[tuple[str, int]](), list[str]()

    def note(frame: Any) -> bool:
        executed[frame.f_code.co_filename, frame.f_lineno] += 1
        return False

    net, run = make()
    before = look(net), _modes()
    run()
    interrupted(run, note, files)
    found = 0
    for line, count in executed.items():
        for time in {1, 2, count} - {0 if count > 1 else 2}:
            place = interrupted(run, at(line, time), files)
            found += bool(place)
            if (look(net), _modes()) != before:
                stayed.append(place)
                torch.set_grad_enabled(True)
                net, run = make()
                before = look(net), _modes()
    _take_off_what_stayed()
    return found, stayed
