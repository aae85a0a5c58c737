"""Put edited tensors into the very lists, dicts and objects that a layer is given, and take them out after its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Attribute", "Lent", "lend", "take_back"]

Lent = list[tuple[Any, Any, Any, Any]]
"""What was lent: a list, mapping or object, where in it, what was there, what is there now."""


class Attribute(str):
    """The name of an attribute, as opposed to a key."""


def lend(holder: Any, key: Any, was: Any, now: Any, lent: Lent) -> bool:
    """Put something into a list, a mapping or an object; return whether it let itself be put there.

    A layer may hand something on through what it is given, as through a KV cache, so it has to be that very object.

    Args:
        holder: what a layer is to be called with, or is inside of that.
        key: where in it: an index, a key, or an `Attribute`.
        was: what is there.
        now: what is to be there.
        lent: is told of it, before it is done: an interrupt may come at any time.

    Example:
        >>> given, lent = {"h": 1}, []
        >>> lend(given, "h", 1, 10, lent), given
        (True, {'h': 10})
        >>> given["new"] = 4
        >>> take_back(lent)
        >>> given
        {'h': 1, 'new': 4}

    """
    lent.append((holder, key, was, now))
    try:
        _put(holder, key, now)
        if _at(holder, key) is now:
            return True
        _put(holder, key, was)  # it turns what it is given into something of its own
    except Exception:  # whatever a class of somebody else's raises: it is read-only
        pass
    lent.pop()
    return False


def take_back(lent: Lent) -> None:
    """Put back what was there, where it still is; what the layer has put there itself stays. As often as you like."""
    while lent:
        holder, key, was, now = lent[-1]
        places = range(len(holder)) if isinstance(holder, list) else [key]
        for place in places:
            if _at(holder, place) is now:
                _put(holder, place, was)
                break
        lent.pop()


def _at(holder: Any, key: Any) -> Any:
    if isinstance(key, Attribute):
        return getattr(holder, key, None)
    return holder[key] if not isinstance(holder, Mapping) or key in holder else None


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(key, Attribute):
        object.__setattr__(holder, key, value)
    else:
        holder[key] = value
