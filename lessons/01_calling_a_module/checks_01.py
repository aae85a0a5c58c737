"""Exercises of chapter 01: how often a hook fires, a hook that always comes off, one hook for two places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope import census
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.probing import CALLS_NOTHING, registrations

RETURNED = "your hook returned something, and that replaced the input or the output; return None"


class _Double(nn.Module):
    """Returns 2 * x, and raises when x is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("Double does not take negative numbers")
        return 2 * x


def check_q1(count: object) -> Wrong | None:
    if isinstance(count, bool) or not isinstance(count, int):
        return Wrong(f"the answer is a whole number, not a {count.__class__.__name__}")
    double, x = _Double(), torch.tensor([3.0])
    fired = []

    def note(module: nn.Module, args: object, output: object) -> None:
        fired.append(1)

    double.register_forward_hook(note)
    handle = double.register_forward_hook(note)
    double(x)
    double.forward(x)
    handle.remove()
    handle.remove()
    double(x)
    if count == len(fired):
        return None
    reasons = {
        5: "you counted `double.forward(x)`, which runs no hook",
        4: "you overlooked that `handle.remove()` took one of the two hooks off before the last call",
        2: "`handle.remove()` takes off the hook of that handle only; the other one stays",
        1: "registering the same function twice stores it twice",
    }
    return Wrong(reasons.get(count, f"it does not fire {count} times; count line by line which hooks are on"))


def check_q2(call_with: Callable[..., object]) -> Wrong | None:
    for x in (torch.tensor([3.0]), torch.rand(2, 3, dtype=torch.float64) + 1):
        if wrong := _wrong_call(call_with, x):
            return wrong
    return None


def _wrong_call(call_with: Callable[..., object], x: torch.Tensor) -> Wrong | None:
    double = _Double()
    log: list[str] = []

    def theirs(module: nn.Module, args: object, output: object) -> None:
        log.append("theirs")

    def ours(module: nn.Module, args: object, output: object) -> None:
        log.append("ours")

    ours.__qualname__ = "hook"  # as error messages call it
    double.register_forward_hook(theirs)
    with registrations() as registered:
        answer = call_with(double, ours, x)
    if "ours" not in log:
        return Wrong("the hook never fired; call `module(x)`, not `module.forward(x)`, while it is on")
    if "forward" not in registered:
        return Wrong("your function called the hook itself; register it on the module, and let torch call it")
    if log.count("ours") != 1:
        return Wrong(f"the hook fired {log.count('ours')} times; call the module once, with the hook registered once")
    if not isinstance(answer, torch.Tensor) or not torch.equal(answer, 2 * x):
        what = repr(answer) if answer is None or isinstance(answer, torch.Tensor) else f"a {answer.__class__.__name__}"
        return Wrong(f"your function returned {what}; it should return the module's output, {2 * x!r}")
    left = [entry.callable for entry in census(double, include_global=False)]
    if not any("theirs" in name for name in left):
        return Wrong("you also removed a hook that was there before; remove your own handle only")
    if len(left) > 1:
        return Wrong("after a call that went well your hook is still on; call `remove()` on its handle")
    try:
        call_with(double, ours, -x)
    except ValueError:
        if len(census(double, include_global=False)) > 1:
            return Wrong("after a call that raised an exception, your hook is still on: `remove()` was never reached")
        return None
    return Wrong("the module raised, but your function kept that to itself; let the exception through")


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q3(make_hook: Callable[[list[str]], Any]) -> Wrong | None:
    # A zero is false and several numbers are neither true nor false, so `if output:` is no way to tell.
    for x in (torch.tensor([3.0]), torch.tensor([0.0]), torch.rand(2, 3, dtype=torch.float64)):
        if wrong := _wrong_place(make_hook, x):
            return wrong
    return None


def _wrong_place(make_hook: Callable[[list[str]], Any], x: torch.Tensor) -> Wrong | None:
    double = _Double()
    log: list[str] = []
    hook = make_hook(log)
    if not callable(hook):
        return Wrong(f"`make_hook(log)` returned {hook!r}; it should return the hook function")
    with double.register_forward_pre_hook(hook):
        as_pre_hook = double(x)
    if log != ["before"]:
        return Wrong(f'as a pre-hook it should write "before" once; the log is {log}')
    # Twice in the same place: a hook that takes turns has not looked at how it was called.
    with double.register_forward_pre_hook(hook):
        double(x)
    if log != ["before", "before"]:
        return Wrong(f'as a pre-hook it should write "before" each time; after two calls the log is {log}')
    log.clear()
    with double.register_forward_hook(hook):
        as_hook = double(x)
    if not (isinstance(as_pre_hook, torch.Tensor) and isinstance(as_hook, torch.Tensor)):
        return Wrong(RETURNED)
    if log != ["after"]:
        return Wrong(
            f'as a forward hook it should write "after" once; when the module returned {as_hook.tolist()}, '
            f"the log was {log}"
        )
    if not (torch.equal(as_pre_hook, 2 * x) and torch.equal(as_hook, 2 * x)):
        return Wrong(RETURNED)
    return None
