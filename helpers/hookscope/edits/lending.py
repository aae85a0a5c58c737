"""Put edited tensors into the very lists, dicts and objects that a layer is given, and take them out after its call."""

from __future__ import annotations

from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any

__all__ = ["Attribute", "Lent", "lend", "on_loan", "put_at", "take_back", "there"]

Lent = list[tuple[Any, Any, Any, Any]]
"""What was lent: a list, mapping or object, where in it, what was there, what is there now."""


class Attribute(str):
    """The name of an attribute, as opposed to a key."""


def lend(holder: Any, key: Any, was: Any, now: Any, lent: Lent) -> bool:
    """Put something into a list, a mapping or an object; return whether that worked.

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
    if isinstance(key, Attribute) and key not in _own(holder) and _is_default(getattr(type(holder), key, _NOTHING)):
        was = _OF_THE_CLASS
    lent.append((holder, key, was, now))
    try:
        put_at(holder, key, now)
        if there(holder, key) is now:
            return True
        put_at(holder, key, was)  # it turns what it is given into something of its own
    except Exception:  # whatever a class of somebody else's raises: it is read-only
        pass
    lent.pop()
    return False


def take_back(lent: Lent) -> None:
    """Put back what was there, where it still is; what the layer has put there itself stays. As often as you like."""
    while lent:
        if (place := _still(*lent[-1])) is not None:
            put_at(lent[-1][0], place, lent[-1][2])
        lent.pop()


def on_loan(lent: Lent) -> list[tuple[Any, Any, Any]]:
    """List what is lent now: a list, mapping or object, where in it, and what is there."""
    return [(one[0], place, one[3]) for one in lent if (place := _still(*one)) is not None]


def _still(holder: Any, key: Any, was: Any, now: Any) -> Any:
    """Return where in its holder something is that was lent to it; None if it is there no longer."""
    places = range(len(holder)) if isinstance(holder, list) else [key]
    return next((place for place in places if there(holder, place) is now), None)


def there(holder: Any, key: Any) -> Any:
    """Return what is at a key, index or `Attribute`; None if there is nothing."""
    if isinstance(key, Attribute):
        return getattr(holder, key, None)
    return holder[key] if not isinstance(holder, Mapping) or key in holder else None


def put_at(holder: Any, key: Any, value: Any) -> None:
    """Put something at a key, index or `Attribute`, as the class of the holder would."""
    if not isinstance(key, Attribute):
        holder[key] = value
    elif value is _OF_THE_CLASS:
        delattr(holder, key)
    elif key in _own(holder) or _slot(holder, key):
        object.__setattr__(holder, key, value)  # also where the class is frozen, as that of a dataclass may be
    else:
        setattr(holder, key, value)  # it has it elsewhere


_OF_THE_CLASS = object()
"""What was there where an object had nothing of its own, but its class a default."""


_NOTHING = object()


def _is_default(held: Any) -> bool:
    """Whether what a class has is a value for all its objects: no property, no slot, and not nothing."""
    return held is not _NOTHING and not hasattr(type(held), "__set__")


def _own(holder: Any) -> Any:
    return getattr(holder, "__dict__", ())


def _slot(holder: Any, key: str) -> bool:
    return isinstance(getattr(type(holder), key, None), MemberDescriptorType)
