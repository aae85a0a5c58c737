"""Exercises of chapter 01: how often a hook fires, a hook that always comes off, one hook for two places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope import census
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING, record_registrations
from hookscope_course.practice.exercise_kinds import returns
from hookscope_course.practice.probe_models import Applies, Raises, make_double

RETURNED = "your hook returned a value, which replaced the input or the output; it should return None"


def _count_calls() -> int:
    double, x, fired = make_double(), torch.tensor([3.0]), list[object]()

    def note(module: nn.Module, args: object, output: object) -> None:
        fired.append(module)

    double.register_forward_hook(note)
    handle = double.register_forward_hook(note)
    double(x)
    double.forward(x)
    handle.remove()
    handle.remove()
    double(x)
    return len(fired)


check_q1 = returns(
    _count_calls,
    what="an integer",
    reasons={
        5: "you counted `double.forward(x)`, which runs no hook",
        4: "you overlooked that `handle.remove()` removed one of the two hooks before the last call",
        2: "`handle.remove()` removes only the hook of that handle; the other one stays",
        1: "registering the same function twice stores it twice",
    },
    otherwise="it does not fire {answer} times; go through the lines and note which hooks are registered",
)


def check_q2(call_with: Callable[..., object]) -> Wrong | None:
    for x in (torch.tensor([3.0]), torch.rand(2, 3, dtype=torch.float64, requires_grad=True) + 1):
        if wrong := _wrong_call(call_with, x):
            return wrong
    stopped = "after you pressed stop during a call, your hook is still registered; use `with` or `finally`"
    raised = "after a call that raised an exception, your hook is still registered: `remove()` was never reached"
    for error, left in ((ValueError("this module raises"), raised), (KeyboardInterrupt(), stopped)):
        if wrong := _wrong_error(call_with, error, left):
            return wrong
    return None


def _wrong_error(call_with: Callable[..., object], error: BaseException, left: str) -> Wrong | None:
    module, fired = Raises(error), list[object]()

    def ours(module: nn.Module, args: object, output: object) -> None:
        fired.append(output)

    try:
        call_with(module, ours, torch.tensor([3.0]))
    except BaseException as caught:
        if caught is not error:
            return Wrong(
                f"the module raised {error!r}, but your function raised {caught!r}; let the original exception through"
            )
    else:
        return Wrong("the module raised an exception, but your function did not; let the exception through")
    if len(census(module, include_global=False)):
        return Wrong(left)
    return (
        Wrong("the module raised an exception, but your hook ran anyway; do not use `always_call`") if fired else None
    )


def _wrong_call(call_with: Callable[..., object], x: torch.Tensor) -> Wrong | None:
    double = make_double()
    log: list[str] = []
    got: list[tuple[Any, Any]] = []

    def theirs(module: nn.Module, args: object, output: object) -> None:
        log.append("theirs")

    def ours(module: nn.Module, args: Any, output: Any) -> Any:
        log.append("ours")
        got.append((args, output))
        return output if output is None else output + 1

    ours.__qualname__ = "hook"  # as error messages call it
    double.register_forward_hook(theirs)
    try:
        with record_registrations() as registered:
            answer = call_with(double, ours, x)
    except TypeError:
        if "forward pre" in registered:
            return Wrong("you registered `hook` as a pre-hook; register it with `register_forward_hook`")
        raise
    if "ours" not in log:
        return Wrong("the hook never fired; while it is registered, call `module(x)`, not `module.forward(x)`")
    if "forward" not in registered:
        return Wrong("your function called the hook itself; register it on the module, and let torch call it")
    if log.count("ours") != 1:
        return Wrong(f"the hook fired {log.count('ours')} times; call the module once, with the hook registered once")
    args, output = got[0]
    if output is None or not torch.equal(args[0], x) or not torch.equal(output, 2 * x):
        return Wrong("the hook did not get the arguments of a forward hook; register `hook` itself")
    expected = 2 * x + 1  # this hook returns something, and that takes the place of the output
    if isinstance(answer, torch.Tensor) and torch.equal(answer, 2 * x):
        return Wrong("the hook returns `output + 1`, but your function returned the plain output; register the hook")
    if not isinstance(answer, torch.Tensor) or not torch.equal(answer, expected):
        what = repr(answer) if answer is None or isinstance(answer, torch.Tensor) else f"a {answer.__class__.__name__}"
        return Wrong(f"your function returned {what}; it should return the module's output, {expected!r}")
    if answer.requires_grad != x.requires_grad:
        return Wrong("the numbers are right, but the output has lost its gradient")
    left = [entry.callable for entry in census(double, include_global=False)]
    if not any("theirs" in name for name in left):
        return Wrong("you also removed a hook that was there before; remove only your own")
    if len(left) > 1:
        return Wrong("after a successful call, your hook is still registered; call `remove()` on its handle")
    return None


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q3(make_hook: Callable[[list[str]], Any]) -> Wrong | None:
    # A zero is false and several numbers are neither true nor false, so `if output:` is no way to tell.
    for x in (torch.tensor([3.0]), torch.tensor([0.0]), torch.rand(2, 3, dtype=torch.float64)):
        if wrong := _wrong_place(make_hook, x):
            return wrong
    for value in (None, (1, 2)):
        log, other = list[str](), list[str]()
        hook = make_hook(log)
        make_hook(other)  # a second hook, with a log of its own
        with (module := Applies(lambda x, value=value: value)).register_forward_hook(hook):
            if module(torch.ones(1)) is not value:
                return Wrong(RETURNED)
        if value is None and log == ["before"] and not other:
            return Wrong(
                "your hook works for every module that returns a tensor. For a module that returned None, "
                'it wrote "before"; a forward hook should write "after". What else is different '
                "when torch calls a forward hook?"
            )
        if log != ["after"] or other:
            what = "it wrote to the log of another hook" if other else f"the log was {log}"
            return Wrong(f'as a forward hook, it should write "after" once; after the module returned {value}, {what}')
    return None


def _wrong_place(make_hook: Callable[[list[str]], Any], x: torch.Tensor) -> Wrong | None:
    double = make_double()
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
            f'as a forward hook, it should write "after" once; after the module returned {as_hook.tolist()}, '
            f"the log was {log}"
        )
    if not (torch.equal(as_pre_hook, 2 * x) and torch.equal(as_hook, 2 * x)):
        return Wrong(RETURNED)
    return None
