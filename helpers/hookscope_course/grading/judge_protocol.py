"""Judge one answer, inside its sandbox; the check is loaded before the answer's code runs.

    python -I -m hookscope_course.grading.judge_protocol SOCKET      # started by `sandbox`, not by hand

An answer is checked by calling it, so its code and the check share a process. What that process can reach is little
(`sandbox`), and no solution is among it: an exercise comes without solution and hints. What the answer changes of the
course or of torch is found, before and after the check, and gives no points. What is *not* out of reach: code that
knows this file can, from inside its own call, change what it finds in its process and change it back, or look for the
verdict's seal on the stack and forge it. So read a submission before you trust a grade that matters, or ask about it.
"""

from __future__ import annotations

import builtins
import json
import linecache
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

if sys.platform == "win32":
    raise ImportError("answers are judged in a sandbox of Linux. On Windows, use WSL")

import resource

WRONG, RIGHT = "wrong", "right"
SEALED = ("hookscope", "hookscope_course", "torch.nn", "torch.autograd", "torch.utils.hooks", "torch.testing")
"""The packages of which nothing may be changed; of torch itself and of Python's built-ins, what they offer directly."""
_CHECKS = "hookscope_course.lessons."
_MEMORY, _FILE, _PROCESSES = 3 << 30, 64 << 20, 200


def main(channel: socket.socket) -> None:
    """Read a question as JSON, judge the answer in it, and write the verdict as JSON."""
    channel.set_inheritable(False)
    question = json.loads(b"".join(iter(lambda: channel.recv(1 << 20), b"")))
    me, seal = os.getpid(), question.pop("seal")
    _prepare(question)
    channel.sendall(b"ready\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    _set_limits(question["seconds"])
    try:
        verdict = _judge(question)
    except BaseException as error:
        verdict = {"outcome": WRONG, "message": _describe_error(error)}
    if os.getpid() == me:  # and not a fork that the answer made
        with suppress(BaseException):
            verdict["message"] = verdict["message"][:4000]
            channel.sendall(json.dumps({"seal": seal, **verdict}).encode() + b"\n")
    os._exit(0)


def _describe_error(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:500]}"
    except BaseException:  # the answer's own exception class
        return f"{type(error).__name__}"


def _prepare(question: dict[str, Any]) -> None:
    """Load all that an answer and its check need, so that it counts neither as the answer's time nor as its change."""
    import hookscope

    import_module("hookscope_course.practice")

    for name in question["checks"]:
        import_module(name)
    for name in hookscope.__all__:  # those that are loaded when they are first asked for
        getattr(hookscope, name)


def _set_limits(seconds: int) -> None:
    """Set what each process may use up; root is not held to the number of processes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    for what, most in (
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds),
        (resource.RLIMIT_DATA, _MEMORY),
        (resource.RLIMIT_FSIZE, _FILE),
        (resource.RLIMIT_NPROC, _PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


class _ExerciseStub:
    """Stands in for an exercise while a submission's cells run, and keeps what its check was asked about."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def check(self, *answers: Any) -> None:
        """Keep the answers."""
        self.calls.append(answers)

    def hint(self) -> None:
        """Say nothing."""

    solution = hint


def _judge(question: dict[str, Any]) -> dict[str, str]:
    """Run the cells, then check their answers."""
    import torch
    import torch.nn.functional as functional

    from hookscope_course import ____
    from hookscope_course.practice import Exercise, ExerciseText
    from hookscope_course.practice.blank import holds_blank

    text = ExerciseText(**question["text"])
    check = next(vars(module)[name] for each in question["checks"]
                 if (name := f"check_{text.name}") in vars(module := sys.modules[each]))  # fmt: skip
    sealed = _take_fingerprint()
    takers = {name: _ExerciseStub() for name in question["names"]}
    globals_: dict[str, Any] = {"__name__": "__main__", "torch": torch, "nn": torch.nn, "F": functional, "____": ____}
    globals_ |= takers
    exec(text.before, globals_)
    file = ""
    for number, code in enumerate(question["cells"]):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), globals_)
    if changed := _find_change(sealed):
        return _refuse_change(changed)
    calls = takers[text.name].calls
    answers = next((call for call in reversed(calls) if not any(map(holds_blank, call))), calls[-1] if calls else None)
    if answers is None:  # the last line is gone, or `q2` is something else by now
        wanted = text.defines
        if not wanted or not all(name in globals_ for name in wanted):
            return {"outcome": "not attempted", "message": f"there is no `{text.call}` in the cell"}
        answers = tuple(globals_[name] for name in wanted)
    Exercise.seed = question["seed"]  # each run draws new values for its checks
    exercise = Exercise(text, check)  # only now, so that no cell finds it
    before = dict(vars(exercise))
    # In a frame with the submission's names and cell, as a notebook has it: the check looks there for blanks.
    ask = {"__check": exercise.check, "__answers": answers}
    feedback = eval(compile("__check(*__answers)", file, "eval"), globals_ | ask)
    outcome, message = str(feedback.outcome), str(feedback.message)
    if changed := _find_change(sealed):
        return _refuse_change(changed)
    after = vars(exercise)
    if changed := next((name for name in {**before, **after} if not _is_unchanged(name, before, after)), ""):
        return _refuse_change(f"{text.name}.{changed}")
    return {"outcome": outcome, "message": message}


def _is_unchanged(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether an attribute of the exercise is unchanged; `_seen_untouched` changes with every check."""
    return name == "_seen_untouched" or (name in before and name in after and before[name] is after[name])


def _refuse_change(changed: str) -> dict[str, str]:
    return {"outcome": WRONG, "message": f"the submission changed `{changed}`, which does not belong to it: no points"}


def _take_fingerprint() -> dict[tuple[str, str], tuple[Any, ...]]:
    """What functions and classes there are in the sealed packages, and what is in each; of checks, every name."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}
    for name, module in list(sys.modules.items()):
        if _is_sealed(name) and isinstance(module, ModuleType):
            _add_fingerprint(name, module, found)
    return found


def _is_sealed(name: str) -> bool:
    return name in ("builtins", "torch", *SEALED) or name.startswith(tuple(f"{one}." for one in SEALED))


def _add_fingerprint(name: str, module: ModuleType, found: dict[tuple[str, str], tuple[Any, ...]]) -> None:
    for attribute, value in list(vars(module).items()):
        if (name, attribute) == ("torch", "manual_seed"):  # torch itself wraps that one later
            continue
        if callable(value) or (name.startswith(_CHECKS) and attribute != "__builtins__"):
            found[name, attribute] = _get_identity(value)
        if isinstance(value, type):
            for inside, part in list(vars(value).items()):
                if callable(part) or isinstance(part, property | classmethod | staticmethod):
                    found[name, f"{attribute}.{inside}"] = _get_identity(part)


def _get_identity(value: Any) -> tuple[Any, ...]:
    """A value, and of a function also its code and defaults, which can be exchanged behind its back."""
    return (value, value.__code__, value.__defaults__) if isinstance(value, FunctionType) else (value,)


def _find_change(sealed: dict[tuple[str, str], tuple[Any, ...]]) -> str:
    """Return the dotted name of something that was changed, removed or added; empty if nothing was."""
    import torch

    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "torch.overrides"  # a mode that was entered and not left decides what torch's functions return
    now = _take_fingerprint()
    known = {module for module, _ in sealed}
    for (module, name), after in now.items():
        before = sealed.get((module, name))
        if before is None and (module not in known or _is_harmless(module, name, sealed)):
            continue
        if before is None or len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            return f"{module}.{name}"
    return next((f"{module}.{name}" for module, name in sealed if (module, name) not in now), "")


def _is_harmless(module: str, name: str, sealed: dict[tuple[str, str], tuple[Any, ...]]) -> bool:
    """Whether a new name is one that honest code adds.

    A package of ours loads some names of its `__all__` when they are first asked for. Other packages add methods to
    torch's classes (transformers does), which is fine unless they stand before an inherited or a built-in name.
    """
    owner, _, inner = name.rpartition(".")
    home = vars(sys.modules[module])
    if owner and (module, owner) not in sealed:  # a part of a class that is new itself
        return True
    if not module.startswith("hookscope"):
        return not (any(inner in vars(base) for base in home[owner].__mro__[1:]) if owner else inner in vars(builtins))
    if owner or "__getattr__" not in home or name not in home.get("__all__", ()):
        return False
    source = sys.modules.get(getattr(home[name], "__module__", ""))
    return source is not None and _is_sealed(source.__name__) and vars(source).get(name) is home[name]


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
