"""Tell hooks of hookscope's own from those that were there, and log those too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn, Protocol

from hookscope.censuses.entry import identify

Hook = Callable[..., Any]
Hooks = MutableMapping[int, Hook]


class Owner(Protocol):
    """What a tap belongs to."""

    running: bool


class Point:
    """A hook of hookscope's own; of whose recording it is says the owner."""

    __slots__ = ("owner", "run")

    def __init__(self, owner: Owner, run: Hook) -> None:
        self.owner, self.run = owner, run

    def __call__(self, *given: Any) -> None:
        """Log."""
        self.run(*given)

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("a model cannot be copied or saved while it is recorded; do it outside the with-block")


class Tap:
    """Stands in for a hook: logs that it fires, then calls it."""

    # No own entry in __dict__: torch copies that of a legacy hook into the object it wraps it in.
    __slots__ = ("__dict__", "below", "log", "owner")

    def __init__(self, owner: Owner, below: Hook, log: Hook) -> None:
        functools.update_wrapper(self, below)
        self.owner, self.below, self.log = owner, below, log

    def __call__(self, *given: Any) -> Any:
        """Log, then do what the hook does."""
        self.log(*given)
        return self.below(*given)


def untap(hooks: Hooks, key: int) -> None:
    """Take out the taps of recordings that are over."""
    hook = hooks.get(key)
    while isinstance(hook, Tap) and hook.owner.running is False:
        hooks[key] = hook = hook.below


def name_of(hook: Hook) -> str:
    """Name a callable without the functions it was defined in."""
    return re.sub(r"[^(]*<locals>\.", "", identify(hook)[0])
