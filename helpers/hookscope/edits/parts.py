"""Take one tensor out of a structure by its path, and build the structure again with another one in its place."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from hookscope.edits.lending import Attribute, Lent, lend, on_loan, put_at, there
from hookscope.structures import contents_of, copied, map_tensors

__all__ = ["Part", "get", "is_shared", "keys", "listed", "passed_on", "path_of", "put", "tensors"]

_DEEP = 20  # levels that are followed; a container may contain itself

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
            held = contents_of(value)
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


def put(value: Any, path: Path, new: Any, lent: Lent | None = None) -> Any:
    """Build a structure again, of the same types and in the same order, with `new` at a path; nothing is written to.

    With `lent`, lists, mappings and objects stay the same objects, where they let one write to them: they hold `new`
    until `take_back(lent)`.

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
        return _tuple_of(value, [*value[:key], inside, *value[key:][1:]])
    if lent is not None and lend(value, key, was, inside, lent):
        return value
    held = there(value, key)
    if there(value, key) is not held:
        raise TypeError(f"what a {type(value).__name__} has as {str(key)!r} is made anew whenever somebody asks")
    for make in (copied, _apart):
        rebuilt = make(value)
        _put_into_copy(rebuilt, key, inside, value, held)
        if there(value, key) is held:
            return rebuilt
        put_at(value, key, held)  # the copy has what it holds in the same place as the original
    raise TypeError(f"a copy of a {type(value).__name__} shares with the original what it holds")


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
    put_at(rebuilt, key, new)
    if isinstance(beside, dict) and isinstance(key, str) and beside.get(key, rebuilt) is was:
        vars(rebuilt)[key] = new  # an entry and an attribute at the same time
    if isinstance(value, OrderedDict) and list(rebuilt) != list(value):
        for name in value:  # a copy of a ModelOutput has the order of its fields
            OrderedDict.move_to_end(rebuilt, name)


def _apart(value: Any) -> Any:
    """Build a value again, of the same tensors, and with all that holds them made anew.

    Raises:
        TypeError: it does not let itself be built again.

    """
    originals: dict[int, tuple[Tensor, Tensor]] = {}

    def alias(tensor: Tensor) -> Tensor:
        other = tensor.detach()
        originals[id(other)] = other, tensor
        return other

    rebuilt = map_tensors(lambda tensor: originals[id(tensor)][1], map_tensors(alias, value))
    if not isinstance(rebuilt, type(value)):
        raise TypeError(f"a {type(value).__name__} cannot be built again")
    return rebuilt


def passed_on(value: Any, lent: Lent) -> list[tuple[Path, Any]]:
    """List, for each list, mapping or object in a value to which something is lent, the path to that, and what it is.

    Example:
        >>> given, lent = {"h": 1}, []
        >>> _ = put(given, ("h",), 10, lent)
        >>> passed_on((2, given), lent)
        [((1, 'h'), 10)]

    """
    loans = on_loan(lent)
    # First without its path: objects that point to each other have more paths than one can follow.
    if not any(item is holder for _, item in (_containers(value, {}) if loans else ()) for holder, *_ in loans):
        return []
    return [
        ((*path, place), now) for path, item in _containers(value) for holder, place, now in loans if item is holder
    ]


def is_shared(value: Any, path: Path) -> bool:
    """Whether what holds the end of a path is in this value at another place, too.

    Example:
        >>> state = {"h": 1}
        >>> is_shared((state, state), (0, "h")), is_shared((state, {"h": 1}), (0, "h"))
        (True, False)

    """
    on_the_way = [get(value, path[:step]) for step in range(len(path))]
    # Another way to it comes upon this one somewhere.
    found = Counter(id(each) for _, each in _containers(value, {}))
    return any(found[id(each)] > 1 for each in on_the_way)


def _containers(value: Any, known: dict[int, Any] | None = None, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value for a value and for what it is made of, attributes of objects included.

    Args:
        value: the value.
        known: those that have been looked into, by id, and are not again; without it all is, on each path.
        path: where the value is.

    """
    yield path, value
    if len(path) > _DEEP or (known is not None and id(value) in known):
        return
    if known is not None:
        known[id(value)] = value
    for key, item in _items(value) or _attributes(value):
        if not isinstance(item, Tensor):
            yield from _containers(item, known, (*path, key))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (nn.Module, Mapping, tuple, list)) or callable(value):
        return []
    held = getattr(value, "__dict__", None)
    return [*held.items()] if isinstance(held, dict) else []


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
