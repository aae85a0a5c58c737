"""Tell when torch's compiler comes into the process, which takes a second to import and is seldom needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["CompilerArrives"]

_NAME = "torch._dynamo"


class CompilerArrives:
    """Calls a function as soon as the compiler is there, between `watch` and `forget`, at once if it is already.

    Until then it stands in `sys.meta_path`, where Python asks it for each module that is imported for the first time.

    Args:
        arrived: the function.

    Example:
        >>> compiler = CompilerArrives(lambda: None)
        >>> compiler.watch()
        >>> compiler.forget()

    """

    def __init__(self, arrived: Callable[[], object]) -> None:
        self._arrived = arrived

    def watch(self) -> None:
        """Begin."""
        if _NAME in sys.modules:
            self._arrived()
        else:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """End; as often as you like."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find what the others find, and have it tell when it has been run."""
        if name != _NAME:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # what the class has is there again
                run(module)
                if self in sys.meta_path:
                    self._arrived()

            loader.exec_module = exec_module
        return spec
