"""Judge answers, each in a process of its own that is shut in; the check is loaded before the answer's code runs.

    python -I -m hookscope_course.classroom.verdicts < questions.json    # started by `judging`, not by hand

An answer is checked by calling it, so its code and the check share a process. What that process can reach is little:
no network, no socket or memory of others, no file but those of Python, of the packages and of the system, none with a
solution; a copy of the exercises from which solutions and hints were taken away. What it changes of the course or of
torch is found, before and after the check, and gives no points. What is *not* out of reach: code that knows this file
can, from inside its own call, change what it finds in its process and change it back, or look for the verdict's seal on
the stack and forge it. So read a submission before you trust a grade that matters, or ask about it.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import secrets
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

if sys.platform == "win32":
    raise ImportError("answers are judged in forked processes, which Windows does not support. Use WSL")

WRONG, RIGHT = "wrong", "right"
SEALED = ("hookscope", "hookscope_course", "torch.nn", "torch.autograd", "torch.utils.hooks", "torch.testing")
"""The packages of which nothing may be changed; of torch itself and of Python's built-ins, what they offer directly."""
CANNOT = "cannot be sandboxed"
_SUBREAPER = 36


def main() -> None:
    """Read questions as JSON, judge each, and write the verdicts as JSON."""
    asked = json.load(sys.stdin)
    from hookscope_course.practice import Exercise, exercises

    Exercise.seed = secrets.randbelow(2**31)  # the values of a check are others each time
    here = {one.name: _without_answers(one) for one in exercises(asked["chapter"])}
    gc.collect()
    import ctypes

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what an answer leaves running becomes ours, and is ended
    verdicts = {}
    for name, cells in asked["cells"].items():
        verdicts[name] = _judged(here[name], list(here), cells, asked)
    json.dump(verdicts, sys.stdout)


def _without_answers(exercise: Any) -> Any:
    """Take away what an answer could copy, and keep what the check's own messages need: names, and the closing call."""
    text = exercise.text
    skeleton = "\n".join([*(f"def {name}(): ..." for name in text.defines if name), text.call])
    exercise.text = replace(text, solution=skeleton, hints=(), wrong=(), right=(), why="")
    exercise._why, exercise._hints = "", ()
    return exercise


# -- one answer, from outside ---------------------------------------------------------------------------------------


def _judged(exercise: Any, names: list[str], cells: list[str], asked: dict[str, Any]) -> dict[str, str]:
    """Judge one answer in a fork, and end the fork with all that it started."""
    seal = secrets.token_hex(16)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            said = _inside(exercise, names, cells, asked)
        except BaseException as error:
            said = {"outcome": WRONG, "message": f"{type(error).__name__}: {str(error)[:500]}"}
        with suppress(BaseException):
            os.write(theirs, json.dumps({"seal": seal, **said}).encode()[:60_000])
        os._exit(0)
    os.close(theirs)
    text = _read(ours, time.monotonic() + asked["seconds"])
    _end_all_children()
    if text is None:
        return {"outcome": WRONG, "message": f"stopped: it took longer than {asked['seconds']} seconds"}
    with suppress(ValueError, TypeError, KeyError):
        said = json.loads(text)
        if said.pop("seal") == seal:
            return dict(said)
    return {
        "outcome": WRONG,
        "message": "its process ended without a verdict: it ran out of memory, or ended itself",
    }


def _read(pipe: int, until: float) -> bytes | None:
    """What a fork writes before it ends; None if it takes too long."""
    text = b""
    with os.fdopen(pipe, "rb", buffering=0) as end:
        while (left := until - time.monotonic()) > 0:
            if select.select([end], [], [], left)[0]:
                part = end.read(65_536)
                if not part or len(text) > 100_000:
                    return text
                text += part
                with suppress(ValueError):
                    json.loads(text)
                    return text
    return None


def _end_all_children() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while found := children.read_text(encoding="ascii").split():
        for child in map(int, found):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


# -- one answer, from inside ----------------------------------------------------------------------------------------


class _Taker:
    """Stands in for an exercise while a submission's cells run, and keeps what its check was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def check(self, *answers: Any) -> None:
        """Keep the answers."""
        self.asked.append(answers)

    def hint(self) -> None:
        """Say nothing."""

    solution = hint


def _inside(exercise: Any, names: list[str], cells: list[str], asked: dict[str, Any]) -> dict[str, str]:
    """Shut ourselves in, run the cells, and let the check judge what they answer."""
    import torch
    import torch.nn.functional as functional

    from hookscope_course import ____
    from hookscope_course.classroom.confining import ConfinementError, Limits, confine
    from hookscope_course.practice.blank import holds_blank

    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    if asked["confined"]:
        limits = Limits(cpu_seconds=asked["seconds"])
        try:
            paths = {
                kind: [Path(path) for path in asked[kind]] for kind in ("readable", "writable", "listable", "private")
            }
            confine(limits=limits, **paths)
        except ConfinementError as error:
            return {"outcome": CANNOT, "message": str(error)}
    os.chdir(asked["scratch"])
    sealed = _fingerprint()
    takers = {name: _Taker() for name in names}
    globals_: dict[str, Any] = {"__name__": "__main__", "torch": torch, "nn": torch.nn, "F": functional, "____": ____}
    globals_ |= takers
    exec(exercise.text.before, globals_)
    file = ""
    for number, code in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), globals_)
    if changed := _changed(sealed):
        return _tampered(changed)
    calls = takers[exercise.name].asked
    answers = next((call for call in reversed(calls) if not any(map(holds_blank, call))), calls[-1] if calls else None)
    if answers is None:  # the last line is gone, or `q2` is something else by now
        wanted = exercise.text.defines
        if not wanted or not all(name in globals_ for name in wanted):
            return {"outcome": "not attempted", "message": f"there is no `{exercise.text.call}` in the cell"}
        answers = tuple(globals_[name] for name in wanted)
    # In a frame with the submission's names and cell, as a notebook has it: the check looks there for blanks.
    ask = {"__check": exercise.check, "__answers": answers}
    feedback = eval(compile("__check(*__answers)", file, "eval"), globals_ | ask)
    outcome, message = str(feedback.outcome), str(feedback.message)
    if changed := _changed(sealed):
        return _tampered(changed)
    return {"outcome": outcome, "message": message}


def _tampered(changed: str) -> dict[str, str]:
    return {"outcome": WRONG, "message": f"the submission changed `{changed}`, which does not belong to it: no points"}


def _fingerprint() -> dict[tuple[str, str], tuple[Any, str, Any]]:
    """What functions and classes there are in the sealed packages, and what is in each."""
    found: dict[tuple[str, str], tuple[Any, str, Any]] = {}
    for name, module in list(sys.modules.items()):
        packages = (
            name in ("builtins", "torch") or name.startswith(tuple(f"{one}." for one in SEALED)) or name in SEALED
        )
        if not packages or not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and (name, attribute) != ("torch", "manual_seed"):  # torch itself wraps that one later
                found[name, attribute] = module, attribute, _inner(value)
            if isinstance(value, type):
                for inside, part in list(vars(value).items()):
                    if callable(part) or isinstance(part, property | classmethod | staticmethod):
                        found[name, f"{attribute}.{inside}"] = value, inside, _inner(part)
    return found


def _inner(value: Any) -> Any:
    """A value, and of a function also its code and defaults, which can be exchanged behind its back."""
    return (value, value.__code__, value.__defaults__) if isinstance(value, FunctionType) else (value,)


def _changed(sealed: dict[tuple[str, str], tuple[Any, str, Any]]) -> str:
    """The dotted name of something that is not what it was; empty if all is."""
    for (module, name), (home, attribute, before) in sealed.items():
        now = vars(home).get(attribute)
        if len(before) != len(after := _inner(now)) or any(a is not b for a, b in zip(before, after, strict=True)):
            return f"{module}.{name}"
    return ""


if __name__ == "__main__":
    main()
