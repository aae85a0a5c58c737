"""Follow a value of any structure to the tensors in it."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Proxy

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


def map_tensors(
    function: Callable[[Any], Any],
    value: Any,
    kind: type | tuple[type, ...] = Tensor,
    *,
    say: Callable[[str], None] | None = None,
) -> Any:
    """Rebuild a value with every tensor (or other `kind` of object) in it replaced by `function(tensor)`.

    Follows tuples, lists, sets, deques, named tuples, `torch.return_types`, mappings (dict, OrderedDict, ModelOutput),
    dataclasses, and other objects by their attributes, also those that can be called; NumPy arrays are copied.
    Containers are new objects. Modules, classes and functions stay the same objects. A tensor that occurs twice is
    replaced once.

    What does not let itself be rebuilt becomes something plain that holds the same: a mapping a dict, a tuple of a
    class of its own a tuple, an object a `SimpleNamespace` of its attributes.

    Args:
        function: makes the replacement.
        value: any value.
        kind: what is replaced: objects of a class, or of one of several.
        say: is told what could not be rebuilt. If it is given, objects without tensors are copied, too: who changes
            them later does not change the result.

    """
    return function(value) if isinstance(value, kind) else _Mapping(function, kind, say).of(value, 0)


class _Mapping:
    """One walk through one value."""

    def __init__(
        self, function: Callable[[Any], Any], kind: type | tuple[type, ...], say: Callable[[str], None] | None
    ) -> None:
        self._function = function
        self._kind = kind
        self._say = say
        self._done: dict[int, tuple[object, Any]] = {}  # by id; the object is held, lest its id be used again

    def of(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in _OFTEN or isinstance(value, _SINGLE) or depth > _DEEP:
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
            return self._sequence(value, [self.of(item, depth) for item in value])
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, deque):
            return type(value)((self.of(item, depth) for item in value), value.maxlen)
        if isinstance(value, Mapping):
            return self._mapping(value, {key: self.of(item, depth) for key, item in value.items()})
        return self._object(value, depth)

    def _sequence(self, value: Any, items: list[Any]) -> Any:
        if type(value) in _PLAIN:
            return type(value)(items)
        # Not the constructor of a named tuple, which may insist on more than the fields (PackedSequence).
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
        try:
            rebuilt = make(items)
            if type(rebuilt) is type(value) and len(rebuilt) == len(items):
                return rebuilt
        except Exception:  # whatever a constructor of somebody else's raises
            pass
        plain = next(kind for kind in _PLAIN if isinstance(value, kind))
        return self._instead(value, plain(items))

    def _mapping(self, value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
        if type(value) is dict:
            return items
        try:
            if isinstance(value, MappingProxyType):
                return MappingProxyType(items)
            if isinstance(value, OrderedDict) and dataclasses.is_dataclass(type(value)):
                return _model_output(value, items)
            rebuilt: Any = copy.copy(value)
            for key, item in items.items():
                rebuilt[key] = item
            if isinstance(rebuilt, OrderedDict) and list(rebuilt) != list(items):
                for key in items:  # a copy of a ModelOutput has the order of its fields
                    OrderedDict.move_to_end(rebuilt, key)
            # A mapping may wrap or convert what it is given, as TensorDict does: then nobody would find it again.
            found = list(rebuilt.items())
            if [key for key, _ in found] == list(items) and all(item is items[key] for key, item in found):
                return rebuilt
        except Exception:  # a read-only mapping has no __setitem__
            pass
        return self._instead(value, items)

    def _object(self, value: Any, depth: int) -> Any:
        attributes = getattr(value, "__dict__", None) if not isinstance(value, Proxy) else None
        names, only = _declared(type(value))
        if not only and isinstance(attributes, dict):
            names = (*attributes, *names)
        if not names:
            return value
        try:
            was = {name: held for name in names if (held := getattr(value, name, _NOTHING)) is not _NOTHING}
        except Exception:  # an attribute that cannot be read
            return value
        mapped = {name: self.of(item, depth) for name, item in was.items()}
        if (same := all(item is was[name] for name, item in mapped.items())) and self._say is None:
            return value
        try:
            rebuilt = copy.copy(value)
            for name, item in mapped.items():
                if rebuilt is not value and getattr(rebuilt, name, None) is not item:
                    object.__setattr__(rebuilt, name, item)
            # An object may be the only one of its kind, as the members of an enum are.
            if same or (rebuilt is not value and all(getattr(rebuilt, name) is item for name, item in mapped.items())):
                return rebuilt
        except Exception:
            if same:
                self._note(f"a {type(value).__name__} cannot be copied: it is kept as it is, and may change later")
                return value
        return self._instead(value, SimpleNamespace(**mapped))

    def _instead(self, value: object, plain: Any) -> Any:
        self._note(f"a {type(value).__name__} cannot be rebuilt: what it holds is kept in a {type(plain).__name__}")
        return plain

    def _note(self, text: str) -> None:
        if self._say is not None:
            self._say(text)


def _declared(kind: type) -> tuple[tuple[str, ...], bool]:
    """Return the names of the attributes that a class declares, and whether only these are followed."""
    if (known := _known.get(kind)) is None:
        if dataclasses.is_dataclass(kind):
            known = tuple(field.name for field in dataclasses.fields(kind)), True
        else:
            slots = (getattr(each, "__slots__", ()) for each in kind.__mro__)
            known = tuple(name for group in slots for name in ([group] if isinstance(group, str) else group)), False
        _known[kind] = known
    return known


_known: WeakKeyDictionary[type, tuple[tuple[str, ...], bool]] = WeakKeyDictionary()


def _model_output(value: OrderedDict[Any, Any], items: dict[Any, Any]) -> OrderedDict[Any, Any]:
    """Rebuild a ModelOutput of transformers: its fields are entries and attributes at the same time.

    Not by copying it and writing to the copy, which looks through all its fields for each of them, and takes longer
    than a small layer.
    """
    rebuilt = type(value).__new__(type(value))
    attributes = {**vars(value)}
    for key, item in items.items():
        OrderedDict.__setitem__(rebuilt, key, item)
        if key in attributes and attributes[key] is OrderedDict.get(value, key):
            attributes[key] = item
    vars(rebuilt).update(attributes)
    return rebuilt


_NOTHING = object()
_PLAIN = (tuple, list, set, frozenset)
# To look a class up here is cheaper than to ask for each of the following.
_OFTEN = {bool, int, float, str, torch.dtype, torch.device, torch.layout}
_SINGLE = (
    bool, int, float, complex, str, bytes, type, nn.Module, ModuleType,
    FunctionType, BuiltinFunctionType, MethodType, partial,
)  # fmt: skip
