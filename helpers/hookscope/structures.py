"""Follow a value of any structure to the tensors in it."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

__all__ = ["map_tensors", "tensors_in"]

_DEEP = 20  # levels of structure that are followed


def tensors_in(value: Any) -> list[Tensor]:
    """List the tensors in a value of any structure that `map_tensors` follows."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, value)
    return found


def map_tensors(function: Callable[[Any], Any], value: Any, kind: type = Tensor) -> Any:
    """Rebuild a value with every tensor (or other `kind` of object) in it replaced by `function(tensor)`.

    Follows tuples, lists, sets, deques, named tuples, `torch.return_types`, mappings (dict, OrderedDict, ModelOutput),
    dataclasses, and other objects by their attributes; NumPy arrays are copied. Containers are new objects, what
    holds no tensor stays the same object. A tensor that occurs twice is replaced once.
    """
    return function(value) if isinstance(value, kind) else _Mapping(function, kind).of(value, 0)


class _Mapping:
    """One walk through one value."""

    def __init__(self, function: Callable[[Any], Any], kind: type) -> None:
        self._function = function
        self._kind = kind
        self._done: dict[int, tuple[object, Any]] = {}  # by id; the object is held, lest its id be used again

    def of(self, value: Any, depth: int) -> Any:
        if (
            value is None
            or isinstance(value, (bool, int, float, complex, str, bytes, type, nn.Module))
            or depth > _DEEP
        ):
            return value
        if id(value) in self._done:
            return self._done[id(value)][1]
        if isinstance(value, self._kind):
            result = self._function(value)
        else:
            self._done[id(value)] = (value, value)  # a cycle ends here
            result = self._container(value, depth + 1)
        self._done[id(value)] = (value, result)
        return result

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, (tuple, list, set, frozenset)):
            items = [self.of(item, depth) for item in value]
            if type(value) in (tuple, list, set, frozenset):
                return type(value)(items)
            # Not the constructor of a named tuple, which may insist on more than the fields (PackedSequence).
            make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
            return make(items)
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, deque):
            return type(value)((self.of(item, depth) for item in value), value.maxlen)
        if isinstance(value, Mapping):
            items_by_key = {key: self.of(item, depth) for key, item in value.items()}
            if type(value) is dict:
                return items_by_key
            rebuilt = copy.copy(value)
            for key, item in items_by_key.items():
                rebuilt[key] = item  # type: ignore[index]
            return rebuilt
        attributes = getattr(value, "__dict__", None)
        names = list(attributes) if attributes else []
        slots = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
        names += [name for group in slots for name in ([group] if isinstance(group, str) else group)]
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
        if callable(value) or not names:
            return value
        mapped = {name: self.of(getattr(value, name), depth) for name in names if hasattr(value, name)}
        if all(item is getattr(value, name) for name, item in mapped.items()):
            return value
        rebuilt = copy.copy(value)
        for name, item in mapped.items():
            object.__setattr__(rebuilt, name, item)
        return rebuilt
