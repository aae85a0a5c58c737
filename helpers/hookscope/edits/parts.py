"""Take one tensor out of a structure by its path, and build the structure again with another one in its place."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from hookscope.edits.lending import Attribute, Lent, lend
from hookscope.structures import contents_of

__all__ = ["Part", "get", "keys", "listed", "path_of", "put", "tensors"]

Part = int | str | tuple[int | str, ...]
"""Where in a structure: an index, key or attribute, or several of them, from the outside in."""


def path_of(part: Part | None) -> tuple[int | str, ...] | None:
    """Check a part, and return it as a path; None asks for the only tensor there is."""
    if part is None:
        return None
    path = part if isinstance(part, tuple) else (part,)
    if not path or any(isinstance(step, bool) or not isinstance(step, (int, str)) for step in path):
        raise TypeError(f"part={part!r}: give an index, a key or an attribute, or a tuple of them, such as (1, 'h')")
    return path


def tensors(value: Any, path: tuple[int | str, ...] = ()) -> Iterator[tuple[tuple[int | str, ...], Tensor]]:
    """Yield path and tensor for every place of a tensor in tuples, lists, mappings and dataclasses.

    Other objects, such as a KV cache, are not looked into.

    Example:
        >>> import torch
        >>> [path for path, _ in tensors((torch.ones(1), {"h": torch.ones(2), "n": 3}))]
        [(0,), (1, 'h')]

    """
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (Mapping, tuple, list)):
        try:
            held = contents_of(value)
        except Exception:  # whatever somebody else's container raises: there is nothing to be had from it
            return
        for key, item in held if isinstance(value, Mapping) else enumerate(held):
            yield from tensors(item, (*path, key))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None), (*path, field.name))


def listed(value: Any) -> str:
    """Say which parts a value has, for an error message."""
    if isinstance(value, Tensor):
        return f"one tensor {tuple(value.shape)}, which has no parts"
    found = [f"part={_short(path)} {tuple(tensor.shape)}" for path, tensor in tensors(value)]
    if not found:
        inside = []
        with suppress(Exception):  # whatever an object of somebody else's raises
            inside = [name for name, item in getattr(value, "__dict__", {}).items() if isinstance(item, Tensor)]
        return ", ".join(f"part={name!r}" for name in inside) or f"no tensor, but {type(value).__name__}"
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def _short(path: tuple[int | str, ...]) -> str:
    return repr(path[0] if len(path) == 1 else path)


def get(value: Any, path: tuple[int | str, ...]) -> Any:
    """Return what is at a path.

    Raises:
        LookupError: there is no such place.

    """
    for step in path:
        key = _key(value, step)
        value = getattr(value, key) if isinstance(key, Attribute) else value[key]
    return value


def keys(value: Any, path: tuple[int | str, ...]) -> tuple[tuple[str, Any], ...]:
    """Return what a path means in a value, step by step: a key, and "attribute" or the type of what has it.

    Example:
        >>> keys(({"a": 1},), (0, "a"))
        (('tuple', 0), ('dict', 'a'))

    """
    found = []
    for step in path:
        key = _key(value, step)
        attribute = isinstance(key, Attribute)
        found.append(("attribute" if attribute else type(value).__name__, str(key) if attribute else key))
        value = getattr(value, key) if attribute else value[key]
    return tuple(found)


def put(value: Any, path: tuple[int | str, ...], new: Any, lent: Lent | None = None) -> Any:
    """Build a structure again, of the same types and in the same order, with `new` at a path; nothing is written to.

    With `lent`, lists, mappings and objects stay the very ones: they hold `new` until `take_back(lent)`.

    Example:
        >>> put((1, {"a": 2, "b": 3}), (1, "a"), 0)
        (1, {'a': 0, 'b': 3})

    """
    if not path:
        return new
    key = _key(value, path[0])
    was = getattr(value, key) if isinstance(key, Attribute) else value[key]
    inside = put(was, path[1:], new, lent)
    if inside is was:
        return value  # it was lent to what is in there
    if isinstance(value, tuple):
        items = [*value]
        items[key] = inside
        # Not the constructor of a named tuple, which may insist on more than the fields (PackedSequence).
        return getattr(type(value), "_make", type(value))(items)
    if lent is not None and lend(value, key, was, inside, lent):
        return value
    rebuilt = copy.copy(value)
    if isinstance(key, Attribute):
        object.__setattr__(rebuilt, key, inside)
    else:
        rebuilt[key] = inside
    return rebuilt


def _key(value: Any, step: int | str) -> Any:
    """Return the key, index or attribute that a step means."""
    if isinstance(value, Mapping):
        if step in value:
            return step
        if isinstance(step, int) and -len(value) <= step < len(value):  # the first of a ModelOutput is [0], too
            return list(value)[step]
    elif isinstance(value, (tuple, list)):
        if isinstance(step, int) and -len(value) <= step < len(value):
            return step
        if isinstance(step, str) and step in getattr(value, "_fields", ()):
            return value._fields.index(step)  # type: ignore[union-attr]
        if isinstance(step, str) and hasattr(value, step) and not callable(getattr(value, step)):
            named = getattr(value, step)  # torch.return_types
            return next(index for index, item in enumerate(value) if item is named)
    elif isinstance(step, str) and not isinstance(value, Tensor) and hasattr(value, step):
        return Attribute(step)
    raise LookupError(step)
