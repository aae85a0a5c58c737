"""Take one tensor out of a structure by its path, and build the structure again with another one in its place."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

from torch import Tensor

from hookscope.pytree import list_items, shallow_copy

__all__ = ["Part", "get", "holder_of", "keys", "listed", "path_of", "put", "tensors"]

_DEEP = 20  # levels that are followed; a container may contain itself


class Attribute(str):
    """The name of an attribute, as opposed to a key."""


Path = tuple[int | str, ...]
Part = int | str | tuple[int | str, ...]
"""Where in a structure: an index, key or attribute, or several of them, from the outside in."""


def path_of(part: Part | None) -> Path | None:
    """Check a part, and return it as a path; None asks for the only tensor there is."""
    if part is None:
        return None
    path = part if isinstance(part, tuple) else (part,)
    if not path or any(isinstance(step, bool) or not isinstance(step, (int, str)) for step in path):
        raise TypeError(f"part={part!r}: give an index, a key or an attribute, or a tuple of them, such as (1, 'h')")
    return path


def tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield path and tensor for every place of a tensor in tuples, lists, mappings and dataclasses.

    Other objects, such as a KV cache, are not looked into.

    Example:
        >>> import torch
        >>> [path for path, _ in tensors((torch.ones(1), {"h": torch.ones(2), "n": 3}))]
        [(0,), (1, 'h')]

    """
    if isinstance(value, Tensor):
        yield path, value
    elif len(path) <= _DEEP:
        for key, item in _items(value):
            yield from tensors(item, (*path, key))


def _items(value: Any) -> list[tuple[Any, Any]]:
    """List the keys and items of a tuple, list, mapping or dataclass; nothing for anything else."""
    if isinstance(value, (Mapping, tuple, list)):
        try:
            held = list_items(value)
        except Exception:  # whatever somebody else's container raises: there is nothing to be had from it
            return []
        return held if isinstance(value, Mapping) else [*enumerate(held)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


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


def _short(path: Path) -> str:
    return repr(path[0] if len(path) == 1 else path)


def get(value: Any, path: Path) -> Any:
    """Return what is at a path.

    Raises:
        LookupError: there is no such place.

    """
    for step in path:
        key = _key(value, step)
        value = getattr(value, key) if isinstance(key, Attribute) else value[key]
    return value


def holder_of(value: Any, path: Path) -> Any:
    """Return the first list, mapping or object on the way to a path; None if there are only tuples.

    Example:
        >>> holder_of(([1, 2],), (0, 1))
        [1, 2]
        >>> holder_of(((1, 2),), (0, 1)) is None
        True

    """
    on_the_way = (get(value, path[:end]) for end in range(len(path)))
    return next((each for each in on_the_way if not isinstance(each, tuple)), None)


def keys(value: Any, path: Path) -> tuple[tuple[str, Any], ...]:
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


def put(value: Any, path: Path, new: Any) -> Any:
    """Build a structure again, of the same types and in the same order, with `new` at a path; nothing is written to.

    Example:
        >>> put((1, {"a": 2, "b": 3}), (1, "a"), 0)
        (1, {'a': 0, 'b': 3})

    """
    if not path:
        return new
    key = _key(value, path[0])
    was = getattr(value, key) if isinstance(key, Attribute) else value[key]
    inside = put(was, path[1:], new)
    if isinstance(value, tuple):
        return _tuple_of(value, [*value[:key], inside, *value[key:][1:]])
    held = _item(value, key)
    if _item(value, key) is not held:
        raise TypeError(f"{type(value).__name__}.{key} is computed on each access, so it cannot be replaced")
    rebuilt = shallow_copy(value)
    _put_into_copy(rebuilt, key, inside, value, held)
    if _item(value, key) is not held:
        _set_item(value, key, held)
        raise TypeError(f"a copy of a {type(value).__name__} shares its items with the original")
    return rebuilt


def _item(holder: Any, key: Any) -> Any:
    """Return what is at a key, index or `Attribute`; None if there is nothing."""
    if isinstance(key, Attribute):
        return getattr(holder, key, None)
    return holder[key] if not isinstance(holder, Mapping) or key in holder else None


def _set_item(holder: Any, key: Any, value: Any) -> None:
    """Put something at a key, index or `Attribute`, as the class of the holder would."""
    if not isinstance(key, Attribute):
        holder[key] = value
    elif key in getattr(holder, "__dict__", {}) or isinstance(getattr(type(holder), key, None), MemberDescriptorType):
        object.__setattr__(holder, key, value)  # also if it is a frozen dataclass
    else:
        setattr(holder, key, value)  # it has it elsewhere


def _tuple_of(value: tuple[Any, ...], items: list[Any]) -> Any:
    """Make a tuple of the same class, whatever its constructor takes, with the attributes that it has beside."""
    try:
        made = tuple.__new__(type(value), items)
    except TypeError:  # what torch returns: its class does not let itself be made so
        return type(value)(items)
    if beside := getattr(value, "__dict__", None):
        vars(made).update(beside)
    return made


def _put_into_copy(rebuilt: Any, key: Any, new: Any, value: Any, was: Any) -> None:
    beside: Any = getattr(value, "__dict__", None)
    if beside is not None and beside is value:  # a dict that is its own attributes
        rebuilt.__dict__ = rebuilt
    _set_item(rebuilt, key, new)
    if isinstance(beside, dict) and isinstance(key, str) and beside.get(key, rebuilt) is was:
        vars(rebuilt)[key] = new  # an entry and an attribute at the same time
    if isinstance(value, OrderedDict) and list(rebuilt) != list(value):
        for name in value:  # a copy of a ModelOutput has the order of its fields
            OrderedDict.move_to_end(rebuilt, name)


def _key(value: Any, step: int | str) -> Any:
    """Return the key, index or attribute that a step means."""
    if isinstance(value, Mapping):
        if step in value:
            return step
        # The first of a ModelOutput is [0], too. In any other mapping nobody would count entries.
        if isinstance(step, int) and hasattr(type(value), "__dataclass_fields__") and -len(value) <= step < len(value):
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
