"""Keep torch's compiler off hooks of hookscope, or off a whole pass; without importing it, which takes a second."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any

__all__ = ["Eager", "eager"]

_NAME = "torch._dynamo"
_PACKAGE = "hookscope"


class Eager:
    """Lets code that is compiled run as it is written.

    The code of hookscope is never compiled. torch would compile hooks with the layers that they are on, where it
    compiles those inside of a block: it would run them on tensors that are none, and fail at what it does not know.

    From the first `begin` to the last `end` nothing is compiled in the whole process. Passes may lie within each other
    and run in several threads; so there is one for all of them, `eager`.

    Where the compiler is not there yet, this stands in `sys.meta_path`, where Python asks it for each module that is
    imported for the first time, until the compiler has come.

    Example:
        >>> whose = object()
        >>> eager.begin(whose)
        >>> eager.end(whose)

    """

    def __init__(self) -> None:
        self._passes: set[object] = set()
        self._stances: list[Any] = []  # what was switched, to be switched back: one, or none
        self._lock = RLock()
        self._told = False
        sys.meta_path.insert(0, self)
        self._settle()

    def begin(self, whose: object) -> None:
        """Begin a pass."""
        if _NAME in sys.modules:
            importlib.import_module(_NAME)  # another thread may be at it, and then wants the lock
        with self._lock:
            self._passes.add(whose)
            self._settle()

    def end(self, whose: object) -> None:
        """End a pass; as often as you like."""
        with self._lock:
            self._passes.discard(whose)
            self._settle()

    def _settle(self) -> None:
        """Do what is left to do; what an interrupt leaves undone, the next call does."""
        # Not by torch.compiler, which would import it.
        set_stance: Callable[[str], Any] | None = getattr(sys.modules.get(_NAME), "set_stance", None)
        if set_stance is None:
            return
        if not self._told:
            # Nothing here may be why the compiler cannot be imported, also where a later torch tells it otherwise.
            if (leave_alone := getattr(sys.modules.get(f"{_NAME}.trace_rules"), "add", None)) is not None:
                leave_alone(_PACKAGE)
            self._told = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._passes and not self._stances:
            self._stances.append(set_stance("force_eager"))
        while self._stances and not self._passes:
            self._stances[-1].__exit__(None, None, None)
            self._stances.pop()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find what those behind it find, and settle when that has been run."""
        if name != _NAME or self not in (finders := sys.meta_path.copy()):
            return None
        behind = finders[finders.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)  # what the class has is there again; another may have done it
                run(module)
                with self._lock:
                    self._settle()

            loader.exec_module = exec_module
        return spec


eager = Eager()
