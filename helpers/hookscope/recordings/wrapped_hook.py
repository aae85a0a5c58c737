"""Tell hooks of hookscope's own from those that were there, and log those too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn, Protocol

from hookscope.censuses.entry import identify

Hook = Callable[..., Any]
Hooks = MutableMapping[int, Hook]


class HookOwner(Protocol):
    """What a tap belongs to."""

    running: bool


class OwnHook:
    """A hook of hookscope's own; of whose recording it is says the owner."""

    __slots__ = ("owner", "run")

    def __init__(self, owner: HookOwner, run: Hook) -> None:
        self.owner, self.run = owner, run

    def __call__(self, *given: Any) -> None:
        """Log."""
        self.run(*given)

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("a model cannot be copied or saved while it is recorded; do it outside the with-block")


class WrappedHook:
    """Stands in for a hook: logs that it fires, then calls it."""

    # No own entry in __dict__: torch copies that of a legacy hook into the object it wraps it in.
    __slots__ = ("__dict__", "hook", "log", "owner")

    def __init__(self, owner: HookOwner, hook: Hook, log: Hook) -> None:
        functools.update_wrapper(self, hook)
        self.owner, self.hook, self.log = owner, hook, log

    def __call__(self, *given: Any) -> Any:
        """Log, then do what the hook does."""
        self.log(*given)
        return self.hook(*given)


def unwrap(hooks: Hooks, key: int) -> None:
    """Take out the taps of recordings that are over."""
    hook = hooks.get(key)
    while isinstance(hook, WrappedHook) and hook.owner.running is False:
        hooks[key] = hook = hook.hook


def short_name(hook: Hook) -> str:
    """Name a callable without the functions it was defined in."""
    return re.sub(r"[^(]*<locals>\.", "", identify(hook)[0])
