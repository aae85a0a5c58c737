"""Put edited tensors into the very lists and dicts that a layer is given, and take them out when its call has ended."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

__all__ = ["Lent", "lend", "take_back"]

Lent = list[tuple[Any, Any, Any, Any]]
"""What was lent: a list or dict, where in it, what was there, what is there now."""
_SHARED = (list, dict, OrderedDict)


def lend(old: Any, new: Any, lent: Lent) -> Any:
    """Return a value to call a layer with: the old lists and dicts, with what is new in them.

    A layer may hand something on through a list that it is given, so it has to be that list. A tuple with nothing but
    such lists in it stays the same, too.

    Args:
        old: what the layer would be called with.
        new: the same, built again with other tensors in it.
        lent: is told of every place that is written to.

    Example:
        >>> given, lent = ([1, 2], 3), []
        >>> value = lend(given, ([1, 20], 3), lent)
        >>> value is given, given
        (True, ([1, 20], 3))
        >>> given[0].append(4)
        >>> take_back(lent)
        >>> given
        ([1, 2, 4], 3)

    """
    if new is old or type(new) is not type(old):
        return new
    if type(old) in _SHARED:
        for key in range(len(old)) if isinstance(old, list) else list(old):
            was = old[key]
            now = lend(was, new[key], lent)
            if now is not was:
                lent.append((old, key, was, now))
                old[key] = now
        return old
    if isinstance(old, tuple):
        items = [lend(one, other, lent) for one, other in zip(old, new, strict=True)]
        if all(item is one for item, one in zip(items, old, strict=True)):
            return old
        return getattr(type(old), "_make", type(old))(items)
    return new


def take_back(lent: Lent) -> None:
    """Put back what was there, where it still is; what the layer has put there itself stays."""
    while lent:
        holder, key, was, now = lent.pop()
        places = range(len(holder)) if isinstance(holder, list) else [key]
        for place in places:
            if (holder[place] if isinstance(holder, list) else holder.get(place)) is now:
                holder[place] = was
                break
