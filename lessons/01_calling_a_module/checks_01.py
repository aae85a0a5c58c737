"""Exercises of chapter 01: how often a hook fires, a hook that always comes off, one hook for two places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope import census
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


class _Double(nn.Module):
    """Returns 2 * x, and raises when x is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("Double does not take negative numbers")
        return 2 * x


def _check_count(count: object) -> Wrong | None:
    if isinstance(count, bool) or not isinstance(count, int):
        return Wrong(f"the answer is a number, not a {type(count).__name__}")
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


q1 = Exercise(
    "01.1",
    question="""How often does `note` fire in these lines? Say it before you run them.
```
double.register_forward_hook(note)
handle = double.register_forward_hook(note)
double(x)
double.forward(x)
handle.remove()
handle.remove()
double(x)
```""",
    difficulty="easy",
    minutes=3,
    check=_check_count,
    why="Two hooks fire in the first call, none in `forward`, and the one that is left fires in the last call.",
    hints=(
        "Registering the same function twice stores it twice.",
        "`forward` skips hooks. Removing a handle twice is the same as removing it once.",
    ),
    solution="""
q1.check(3)
""",
    wrong={
        "q1.check(5)\n": "which runs no hook",
        "q1.check(4)\n": "took one of the two hooks off",
        "q1.check(2)\n": "the other one stays",
        "q1.check(1)\n": "stores it twice",
        "q1.check(7)\n": "does not fire 7 times",
    },
)


def _check_call_with(call_with: Callable[..., object]) -> Wrong | None:
    double, x = _Double(), torch.tensor([3.0])
    log: list[str] = []

    def theirs(module: nn.Module, args: object, output: object) -> None:
        log.append("theirs")

    def ours(module: nn.Module, args: object, output: object) -> None:
        log.append("ours")

    double.register_forward_hook(theirs)
    answer = call_with(double, ours, x)
    if "ours" not in log:
        return Wrong("the hook never fired; call `module(x)`, not `module.forward(x)`, while it is on")
    if not isinstance(answer, torch.Tensor) or not torch.equal(answer, 2 * x):
        return Wrong(f"your function returned {answer!r}; it should return the module's output, {2 * x!r}")
    left = [entry.callable for entry in census(double, include_global=False)]
    if not any("theirs" in name for name in left):
        return Wrong("you also removed a hook that was there before; remove your own handle only")
    if len(left) > 1:
        return Wrong("after a call that went well your hook is still on; remove its handle")
    try:
        call_with(double, ours, -x)
    except ValueError:
        if len(census(double, include_global=False)) > 1:
            return Wrong("after a call that raised your hook is still on; `remove()` was never reached")
        return None
    return Wrong("the module raised, but your function kept that to itself; let the exception through")


q2 = Exercise(
    "01.2",
    question="Write `call_with(module, hook, x)`. It puts `hook` on `module` as a forward hook, calls the module, and "
    "returns the output. The hook comes off in every case, also when the module raises.",
    difficulty="medium",
    minutes=5,
    check=_check_call_with,
    why="The `with` block removes the handle on every way out, an exception included.",
    hints=(
        "A handle is a context manager.",
        "`with module.register_forward_hook(hook):` and inside it, `return module(x)`.",
    ),
    solution="""
def call_with(module, hook, x):
    with module.register_forward_hook(hook):
        return module(x)

q2.check(call_with)
""",
    wrong={
        """
def call_with(module, hook, x):
    handle = module.register_forward_hook(hook)
    output = module(x)
    handle.remove()
    return output

q2.check(call_with)
""": "after a call that raised your hook is still on",
        """
def call_with(module, hook, x):
    module.register_forward_hook(hook)
    return module(x)

q2.check(call_with)
""": "after a call that went well your hook is still on",
        """
def call_with(module, hook, x):
    with module.register_forward_hook(hook):
        return module.forward(x)

q2.check(call_with)
""": "the hook never fired",
        """
def call_with(module, hook, x):
    module.register_forward_hook(hook)
    try:
        return module(x)
    finally:
        module._forward_hooks.clear()

q2.check(call_with)
""": "you also removed a hook that was there before",
        """
def call_with(module, hook, x):
    try:
        with module.register_forward_hook(hook):
            return module(x)
    except ValueError:
        return None

q2.check(call_with)
""": "let the exception through",
        """
def call_with(module, hook, x):
    with module.register_forward_hook(hook):
        module(x)

q2.check(call_with)
""": "your function returned None",
    },
)


def _check_make_hook(make_hook: Callable[[list[str]], Any]) -> Wrong | None:
    double, x = _Double(), torch.tensor([3.0])
    log: list[str] = []
    hook = make_hook(log)
    if not callable(hook):
        return Wrong(f"`make_hook(log)` returned {hook!r}; it should return the hook function")
    with double.register_forward_pre_hook(hook):
        as_pre_hook = double(x)
    if log != ["before"]:
        return Wrong(f'as a pre-hook it should write "before" once; the log is {log}')
    log.clear()
    with double.register_forward_hook(hook):
        as_hook = double(x)
    if log != ["after"]:
        return Wrong(f'as a forward hook it should write "after" once; the log is {log}')
    if not (torch.equal(as_pre_hook, 2 * x) and torch.equal(as_hook, 2 * x)):
        return Wrong("your hook returned something, and that replaced the input or the output; return None")
    return None


q3 = Exercise(
    "01.3",
    question="One function for two places. Write `make_hook(log)`. It returns a hook that you can register as a "
    'pre-hook and as a forward hook. It appends "before" to `log` in the first case and "after" in the second.',
    difficulty="medium",
    minutes=5,
    check=_check_make_hook,
    why="torch counts nothing: it calls a pre-hook with two arguments and a forward hook with three.",
    hints=(
        "A pre-hook is called with `(module, args)`, a forward hook with `(module, args, output)`.",
        "Take the third one as optional: `def hook(module, args, *output)`; `output` is empty in a pre-hook.",
    ),
    solution="""
def make_hook(log):
    def hook(module, args, *output):
        log.append("after" if output else "before")

    return hook

q3.check(make_hook)
""",
    wrong={
        """
def make_hook(log):
    def hook(module, args, output):
        log.append("after")

    return hook

q3.check(make_hook)
""": "missing 1 required positional argument",
        """
def make_hook(log):
    def hook(module, args, *output):
        log.append("before")

    return hook

q3.check(make_hook)
""": 'as a forward hook it should write "after"',
        """
def make_hook(log):
    log.append("before")

q3.check(make_hook)
""": "should return the hook function",
        """
def make_hook(log):
    def hook(module, args, *output):
        log.append("after" if output else "before")
        return torch.zeros(1)

    return hook

q3.check(make_hook)
""": "that replaced the input or the output",
    },
)
