"""Let what is compiled run as it is written, without importing torch's compiler, which takes a second."""

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


class Eager:
    """Switches compilation off in the whole process from the first `begin` to the last `end`.

    Passes may lie within each other and run in several threads; so there is one for all of them, `eager`. Where the
    compiler is not there yet, it stands meanwhile in `sys.meta_path`, where Python asks it for each module that is
    imported for the first time, and switches compilation off as soon as the compiler has come.

    Example:
        >>> whose = object()
        >>> eager.begin(whose)
        >>> eager.end(whose)

    """

    def __init__(self) -> None:
        self._passes: set[object] = set()
        self._stances: list[Any] = []  # what was switched, to be switched back: one, or none
        self._lock = RLock()

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
        if not self._passes:
            while self._stances:
                self._stances[-1].__exit__(None, None, None)
                self._stances.pop()
            if self in sys.meta_path:
                sys.meta_path.remove(self)
        elif set_stance is None:
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
        elif not self._stances:
            self._stances.append(set_stance("force_eager"))

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find what those behind it find, and settle when that has been run."""
        finders = sys.meta_path.copy()
        if name != _NAME or self not in finders:
            return None
        behind = finders[finders.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # what the class has is there again
                run(module)
                with self._lock:
                    self._settle()

            loader.exec_module = exec_module
        return spec


eager = Eager()
