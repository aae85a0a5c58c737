"""Find the tensor that `part=` selects in a nested value, and rebuild the value with a new tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np
from torch import Tensor

from hookscope.pytree import (
    FieldKey,
    GetAttrKey,
    KeyEntry,
    MappingKey,
    SequenceKey,
    find_paths,
    find_tensors,
    get_attributes,
    key_get,
    replace_at,
)  # fmt: skip

__all__ = ["Part", "get", "holder_of", "keys", "listed", "path_of", "put", "tensors"]

_UNSEARCHED = deque, np.ndarray, KeysView, ValuesView
"""Containers that can hold tensors, and that an edit does not rebuild."""

Path = tuple[int | str, ...]
Part = int | str | tuple[int | str, ...]
"""A place in a nested value: an index, key or attribute, or several of them, from the outside in."""


def path_of(part: Part | None) -> Path | None:
    """Check a part, and return it as a path; None means the only tensor."""
    if part is None:
        return None
    path = part if isinstance(part, tuple) else (part,)
    if not path or any(isinstance(step, bool) or not isinstance(step, (int, str)) for step in path):
        raise TypeError(
            f"part={part!r} is not a path. Pass an index, a key, an attribute, or a tuple of them, such as (1, 'h')"
        )
    return path


def tensors(value: Any) -> Iterator[tuple[Path, Tensor]]:
    """Yield the path and the tensor for every tensor in tuples, lists, mappings and dataclasses.

    Other objects, such as a KV cache, are not searched.

    Example:
        >>> import torch
        >>> [path for path, _ in tensors((torch.ones(1), {"h": torch.ones(2), "n": 3}))]
        [(0,), (1, 'h')]

    """
    for path, tensor in find_paths(value, objects=False):
        yield tuple(map(_step, path)), tensor


def _step(key: Any) -> Any:
    """Return a key in the form in which a user writes it."""
    if isinstance(key, MappingKey):
        return key.key
    return key.idx if isinstance(key, SequenceKey) else key.name


def listed(value: Any) -> str:
    """List the parts of a value, for an error message."""
    if isinstance(value, Tensor):
        return f"one tensor {tuple(value.shape)}, which has no parts"
    found = [f"part={_short(path)} {tuple(tensor.shape)}" for path, tensor in tensors(value)]
    if not found:
        inside = [name for name, item in get_attributes(value).items() if isinstance(item, Tensor)]
        if inside:
            return ", ".join(f"part={name!r}" for name in inside)
        kind = type(value).__name__
        if isinstance(value, (tuple, list, Mapping)) and value:
            items = value.values() if isinstance(value, Mapping) else value
            kind += f" of {', '.join(dict.fromkeys(type(item).__name__ for item in items))}"
        if find_tensors(value) or isinstance(value, _UNSEARCHED):
            return (
                f"a {kind}, and edit finds tensors only in tuples, lists, mappings and dataclasses. Edit a layer "
                "inside this one, or the input of the next one"
            )
        return f"no tensor, but a {kind}"
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def _short(path: Path) -> str:
    return repr(path[0] if len(path) == 1 else path)


def _keys(value: Any, path: Path) -> Iterator[tuple[Any, KeyEntry]]:
    """Yield each object on a path with the key that the next step means in it.

    Raises:
        LookupError: there is no such place.

    """
    for step in path:
        key: Any = _key(value, step)
        yield value, key
        value = key.get(value)


def _key(value: Any, step: int | str) -> KeyEntry:
    if isinstance(value, Mapping):
        if step in value:
            return MappingKey(step)
        # The first entry of a ModelOutput is [0], too. The entries of other mappings have no number.
        if isinstance(step, int) and hasattr(type(value), "__dataclass_fields__") and -len(value) <= step < len(value):
            return MappingKey(list(value)[step])
    elif isinstance(value, (tuple, list)):
        if isinstance(step, int) and -len(value) <= step < len(value):
            return SequenceKey(step)
        if isinstance(step, str) and step in getattr(value, "_fields", ()):
            return FieldKey(value._fields.index(step), step)  # type: ignore[union-attr]
        if isinstance(step, str) and hasattr(value, step) and not callable(getattr(value, step)):
            named = getattr(value, step)  # torch.return_types
            return SequenceKey(next(index for index, item in enumerate(value) if item is named))
    elif isinstance(step, str) and not isinstance(value, Tensor) and hasattr(value, step):
        return GetAttrKey(step)
    raise LookupError(step)


def get(value: Any, path: Path) -> Any:
    """Return the object at a path.

    Raises:
        LookupError: the path does not exist.

    """
    return key_get(value, tuple(key for _, key in _keys(value, path)))


def holder_of(value: Any, path: Path) -> Any:
    """Return the first list, mapping or object on the way to a path; None if there are only tuples.

    Example:
        >>> holder_of(([1, 2],), (0, 1))
        [1, 2]
        >>> holder_of(((1, 2),), (0, 1)) is None
        True

    """
    return next((holder for holder, _ in _keys(value, path) if not isinstance(holder, tuple)), None)


def keys(value: Any, path: Path) -> tuple[tuple[str, Any], ...]:
    """Return the steps of a path in a value: for each, "attribute" or the type of the container, and the key.

    Example:
        >>> keys(({"a": 1},), (0, "a"))
        (('tuple', 0), ('dict', 'a'))

    """
    found = _keys(value, path)
    return tuple(("attribute" if isinstance(key, GetAttrKey) else type(at).__name__, _step(key)) for at, key in found)


def put(value: Any, path: Path, new: Any) -> Any:
    """Rebuild a value with `new` at a path, see `replace_at`.

    Example:
        >>> put((1, {"a": 2, "b": 3}), (1, "a"), 0)
        (1, {'a': 0, 'b': 3})

    """
    return replace_at(value, tuple(key for _, key in _keys(value, path)), new)
