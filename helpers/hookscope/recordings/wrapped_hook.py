"""Mark hookscope's own hooks, and wrap other hooks so that they are logged too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn, Protocol

from hookscope.censuses.entry import identify

Hook = Callable[..., Any]
Hooks = MutableMapping[int, Hook]


class HookOwner(Protocol):
    """The recording that a hook or wrapper belongs to."""

    running: bool


class OwnHook:
    """A hook that a recording has registered itself."""

    __slots__ = ("owner", "run")

    def __init__(self, owner: HookOwner, run: Hook) -> None:
        self.owner, self.run = owner, run

    def __call__(self, *given: Any) -> None:
        """Log the call."""
        self.run(*given)

    def __reduce__(self) -> NoReturn:
        raise RuntimeError(
            "the model has hooks of a recording, so it cannot be copied or saved now. Copy it outside the with-block"
        )


class WrappedHook:
    """A callable in place of a hook: it logs the call, then calls the hook."""

    # Slots, because torch copies the __dict__ of a legacy hook into its own wrapper.
    __slots__ = ("__dict__", "hook", "log", "owner")

    def __init__(self, owner: HookOwner, hook: Hook, log: Hook) -> None:
        functools.update_wrapper(self, hook)
        self.owner, self.hook, self.log = owner, hook, log

    def __call__(self, *given: Any) -> Any:
        """Log the call, then call the hook."""
        self.log(*given)
        return self.hook(*given)

    __reduce__ = OwnHook.__reduce__


def unwrap(hooks: Hooks, key: int) -> None:
    """Remove the wrappers of recordings that have ended."""
    hook = hooks.get(key)
    while isinstance(hook, WrappedHook) and hook.owner.running is False:
        hooks[key] = hook = hook.hook


def short_name(hook: Hook) -> str:
    """Return the name of a callable, without the functions around its definition."""
    return re.sub(r"[^(]*<locals>\.", "", identify(hook)[0])
