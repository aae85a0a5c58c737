"""Leave a with-block also where an interrupt comes before the first line of `__exit__` has run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, TypeVar

__all__ = ["leaving"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Leaving:
    """The descriptor that `leaving` makes of an `__exit__`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self._function
        # A with-statement asks before the block begins, and holds the answer until it has ended. Who asks inside the
        # block only looks.
        return MethodType(self._function, owner) if owner._is_open() else _Held(self._function, owner)


class _Held(partial[Any]):
    """An `__exit__` bound to its object; when nobody holds it any more, the block is over, whatever came of it."""

    def __del__(self) -> None:
        owner = self.args[0]
        if owner._is_open():
            owner._give_up()


def leaving(function: _F) -> _F:
    """Decorate an `__exit__`, so that an interrupt that comes before its first line has run does no harm.

    Python asks for interrupts when a function begins, before any `try` of the function. What a with-statement holds
    on to, and nobody else does, is the bound `__exit__`: when it goes, the block is over.

    The class says with `_is_open()` whether the block is running, and ends it with `_give_up()`. `start()` and
    `stop()` without a with-statement are not affected, if `start()` does not ask for `__exit__`.

    Example:
        >>> class Block:
        ...     open = False
        ...     def _is_open(self): return self.open
        ...     def _give_up(self): self.open = False
        ...     def __enter__(self): self.open = True
        ...     @leaving
        ...     def __exit__(self, *error): raise KeyboardInterrupt  # as if it came before the first line
        >>> block = Block()
        >>> try:
        ...     with block:
        ...         pass
        ... except KeyboardInterrupt:
        ...     print(block.open)
        False

    """
    return _Leaving(function)  # type: ignore[return-value]  # a type checker need not know
