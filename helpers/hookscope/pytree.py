"""Find and replace the tensors in nested containers and objects.

`torch.utils._pytree` raises an error for a container that contains itself, and does not look into classes that are not
registered with it. So only its keys are used here: `SequenceKey`, `MappingKey` and `GetAttrKey`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)  # fmt: skip
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.utils._pytree import GetAttrKey, KeyEntry, MappingKey, SequenceKey, key_get, keystr

__all__ = [
    "FieldKey", "GetAttrKey", "KeyEntry", "MappingKey", "Path", "SequenceKey", "find_paths", "find_tensors",
    "get_attributes", "key_get", "keystr", "list_children", "list_items", "rebuild_model_output", "replace_at",
    "shallow_copy", "tree_map",
]  # fmt: skip

Path = tuple[KeyEntry, ...]
"""Where a value is in a nested value: torch's keys, from the outside in."""

_DEEP = 20  # levels of nesting that are visited


def find_tensors(value: Any) -> list[Tensor]:
    """List the tensors in a nested value, each of them once, in the order in which `tree_map` visits them.

    Example:
        >>> one = torch.ones(1)
        >>> find_tensors({"states": [one, (one, 2 * one)], "name": "h"})
        [tensor([1.]), tensor([2.])]

    """
    if type(value) is Tensor:
        return [value]
    found: list[Tensor] = []
    _list(value, 0, {}, found)
    return found


@dataclasses.dataclass(frozen=True)
class FieldKey(SequenceKey[Any]):
    """The key of a field of a named tuple: an index that is written as a name."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


def find_paths(
    value: Any, kind: type | tuple[type, ...] = Tensor, *, objects: bool = True
) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of each tensor in a nested value, once for each place.

    Args:
        value: any value. If it contains itself, it is not visited again there.
        kind: a class, or several, whose objects are yielded instead of tensors.
        objects: see `list_children`.

    Example:
        >>> [(keystr(path), tensor.item()) for path, tensor in find_paths((torch.ones(1), {"h": torch.zeros(1)}))]
        [('[0]', 1.0), ("[1]['h']", 0.0)]

    """
    return _find_paths(value, kind, objects, (), ())


def _find_paths(
    value: Any, kind: type | tuple[type, ...], objects: bool, path: Path, around: tuple[int, ...]
) -> Iterator[tuple[Path, Any]]:
    """Yield the paths in a value. `around` holds the IDs of the containers that it is in."""
    if isinstance(value, kind):
        yield path, value
    elif len(path) <= _DEEP and id(value) not in around and not _is_single(value):
        for key, child in list_children(value, objects=objects):
            yield from _find_paths(child, kind, objects, (*path, key), (*around, id(value)))


def list_children(value: Any, *, objects: bool = True) -> list[tuple[KeyEntry, Any]]:
    """List the items of a container or the attributes of another object, each with its key.

    Args:
        value: any value.
        objects: False lists only children with a fixed place: the items of tuples, lists and mappings, and the fields
            of dataclasses. Sets, deques and other objects have no children then.

    Example:
        >>> list_children({"a": 1}), list_children({1, 2}, objects=False)
        ([(MappingKey(key='a'), 1)], [])

    """
    try:
        held = list_items(value)
    except Exception:  # a container of another library can raise anything
        return []
    if isinstance(value, Mapping):
        return [(MappingKey(key), item) for key, item in held]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(FieldKey(index, name), held[index]) for index, name in enumerate(value._fields)]
    if isinstance(value, (tuple, list)) or (objects and isinstance(value, (set, frozenset, deque))):
        return [(SequenceKey(index), item) for index, item in enumerate(held)]
    if objects:
        return [(GetAttrKey(name), item) for name, item in get_attributes(value).items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(GetAttrKey(field.name), getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


def replace_at(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of a nested value, of the same types and in the same order, with `new` at a path.

    The copy shares everything that is not on the path.

    Raises:
        LookupError: there is no such path. If an attribute is missing, an `AttributeError` is raised.
        TypeError: an object on the path computes its attribute, or shares its items with a copy of it.

    Example:
        >>> replace_at((1, {"a": 2, "b": 3}), (SequenceKey(1), MappingKey("a")), 0)
        (1, {'a': 0, 'b': 3})

    """
    if not path:
        return new
    key: Any = path[0]
    was = key.get(value)
    inside = replace_at(was, path[1:], new)
    if isinstance(value, tuple):
        items = list(value)
        items[key.idx] = inside
        return _tuple_of(value, items)
    if key.get(value) is not was:
        raise TypeError(f"{type(value).__name__}{key} is computed on each access, so it cannot be replaced")
    rebuilt = shallow_copy(value)
    _put_into_copy(rebuilt, key, inside, value, was)
    if key.get(value) is not was:
        _set_child(value, key, was)
        raise TypeError(f"a copy of a {type(value).__name__} shares its items with the original")
    return rebuilt


def _tuple_of(value: tuple[Any, ...], items: list[Any]) -> Any:
    """Make a tuple of the same class, without its constructor, and with its attributes."""
    try:
        made = tuple.__new__(type(value), items)
    except TypeError:  # torch.return_types
        return type(value)(items)
    if beside := _beside(value):
        vars(made).update(beside)
    return made


def _put_into_copy(rebuilt: Any, key: Any, new: Any, value: Any, was: Any) -> None:
    beside = _beside(value)
    if beside is value:  # a dict that is its own attributes
        rebuilt.__dict__ = rebuilt
    _set_child(rebuilt, key, new)
    name = key.name if isinstance(key, GetAttrKey) else getattr(key, "key", None)
    if isinstance(name, str) and beside.get(name, rebuilt) is was:
        vars(rebuilt)[name] = new  # an entry and an attribute at the same time
    if isinstance(value, OrderedDict) and list(rebuilt) != list(value):
        for each in value:  # a copy of a ModelOutput has the order of its fields
            OrderedDict.move_to_end(rebuilt, each)


def _set_child(holder: Any, key: Any, value: Any) -> None:
    if isinstance(key, MappingKey):
        holder[key.key] = value
    elif isinstance(key, SequenceKey):
        holder[key.idx] = value
    elif key.name in _beside(holder) or isinstance(getattr(type(holder), key.name, None), MemberDescriptorType):
        object.__setattr__(holder, key.name, value)  # also if it is a frozen dataclass
    else:
        setattr(holder, key.name, value)  # the object stores it elsewhere


def _list(value: Any, depth: int, known: dict[int, Any], found: list[Tensor]) -> None:
    """Append the tensors in a value. `known` keeps visited objects alive, so that their IDs stay unique."""
    if _is_single(value) or id(value) in known:
        return
    known[id(value)] = value
    if isinstance(value, Tensor):
        found.append(value)
    elif depth <= _DEEP:
        for part in _parts_of(value):
            _list(part, depth + 1, known, found)


def _parts_of(value: Any) -> Iterable[Any]:
    """Return the items and attributes of a container, or the attributes of another object."""
    if type(value) is dict:
        return list(value.values())
    if type(value) in _PLAIN:
        return list(value)
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else ()
    try:
        held = list_items(value)
    except Exception:  # a container of another library can raise anything
        return ()
    if isinstance(value, deque):
        return held
    if isinstance(value, Mapping):
        return [*(item for _, item in held), *_beside(value).values()]
    if isinstance(value, _PLAIN):
        return [*held, *_beside(value).values()]
    return get_attributes(value).values()


def tree_map(
    function: Callable[[Any], Any],
    value: Any,
    kind: type | tuple[type, ...] = Tensor,
    *,
    note: Callable[[str], None] | None = None,
) -> Any:
    """Return a copy of a nested value in which each tensor is replaced by `function(tensor)`.

    It visits tuples, lists, sets, deques, mappings, dataclasses, `torch.return_types` and the attributes of other
    objects. It copies NumPy arrays, but not modules, classes and functions. A tensor that occurs twice is replaced
    once, and a value that contains itself does so in the copy. Objects that cannot be rebuilt are replaced by a plain
    equivalent: a dict, a tuple or a `SimpleNamespace`.

    Args:
        function: returns the replacement of a tensor.
        value: any value.
        kind: a class, or several, whose objects are replaced instead of tensors.
        note: a function that gets a message for each object that could not be rebuilt. With it, objects without
            tensors are copied too.

    """
    return function(value) if isinstance(value, kind) else _TreeMap(function, kind, note).of(value, 0)


class _TreeMap:
    """One walk through one value."""

    def __init__(
        self, function: Callable[[Any], Any], kind: type | tuple[type, ...], note: Callable[[str], None] | None
    ) -> None:
        self._function = function
        self._kind = kind
        self._on_note = note
        self._done: dict[int, tuple[object, Any]] = {}  # by ID, with the object, so that the ID stays unique
        self._shells: dict[int, Any] = {}  # copies of objects that contain themselves
        self._replaced = 0  # how many tensors have been replaced so far

    def of(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in _OFTEN or isinstance(value, _SINGLE):  # _is_single, without the call
            return value
        if id(value) in self._done:
            done = self._done[id(value)][1]
            return self._again(value) if done is _UNDER_WAY else done
        if isinstance(value, self._kind):
            result = self._function(value)
            self._replaced += result is not value
        elif depth > _DEEP:
            self._note(f"values nested deeper than {_DEEP} levels are not copied, so they can change later")
            return value
        else:
            self._done[id(value)] = (value, _UNDER_WAY)
            result = self._container(value, depth + 1)
        self._done[id(value)] = (value, result)
        return result

    def _again(self, value: Any) -> Any:
        """Return the copy of a value that contains itself. It is filled later."""
        if id(value) not in self._shells:
            try:
                # An empty list or dict, or an object with its present attributes.
                shell = type(value)() if type(value) in (list, dict) else _shell_of(value)
            except Exception:  # __copy__ of another library can raise anything
                shell = value
            if shell is value:
                self._note(f"a {type(value).__name__} contains itself, so it is kept uncopied and can change later")
            self._shells[id(value)] = shell
        return self._shells[id(value)]

    def _container(self, value: Any, depth: int) -> Any:
        try:
            held = list_items(value)
        except Exception:  # a container of another library can raise anything
            self._note(f"a {type(value).__name__} cannot be read, so it is not copied and can change later")
            return value
        if isinstance(value, (tuple, list, set, frozenset)):
            return self._sequence(value, [self.of(item, depth) for item in held], depth)
        if isinstance(value, np.ndarray):
            copied = value.copy()
            if value.dtype == object:
                for index in np.ndindex(value.shape):
                    copied[index] = self.of(value[index], depth)
            return copied
        if isinstance(value, deque):
            kind = deque if _frees(value) else type(value)
            return kind((self.of(item, depth) for item in held), value.maxlen)
        if isinstance(value, Mapping):
            return self._mapping(value, {key: self.of(item, depth) for key, item in held}, depth)
        return self._object(value, depth)

    def _sequence(self, value: Any, items: list[Any], depth: int) -> Any:
        if type(value) in _PLAIN:
            if (shell := self._shells.get(id(value))) is not None and shell is not value:
                shell.extend(items)
                return shell
            return type(value)(items)
        # Not the constructor of a named tuple, which can require other arguments (PackedSequence).
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
        try:
            rebuilt: Any = None if _frees(value) else make(items)
            if type(rebuilt) is type(value) and len(rebuilt) == len(items):
                for name, item in self._attributes(value, depth).items():
                    object.__setattr__(rebuilt, name, item)
                return rebuilt
        except Exception:  # a constructor of another library can raise anything
            pass
        plain = next(kind for kind in _PLAIN if isinstance(value, kind))
        return self._instead(value, plain(items))

    def _attributes(self, value: Any, depth: int) -> dict[str, Any]:
        """Map the attributes of a container of a derived class."""
        return {name: self.of(item, depth) for name, item in _beside(value).items()}

    def _mapping(self, value: Mapping[Any, Any], items: dict[Any, Any], depth: int) -> Any:
        if type(value) is dict:
            if (shell := self._shells.get(id(value))) is not None:
                shell.update(items)
                return shell
            return items
        try:
            if isinstance(value, MappingProxyType):
                return MappingProxyType(items)
            if isinstance(value, OrderedDict) and dataclasses.is_dataclass(type(value)):
                return rebuild_model_output(value, items, self._attributes(value, depth))
            rebuilt: Any = shallow_copy(value)
            for name, item in self._attributes(value, depth).items():
                if vars(rebuilt).get(name) is not item:
                    object.__setattr__(rebuilt, name, item)
            for key, item in items.items():
                rebuilt[key] = item
            if isinstance(rebuilt, OrderedDict) and list(rebuilt) != list(items):
                for key in items:  # a copied ModelOutput has the order of its fields
                    OrderedDict.move_to_end(rebuilt, key)
            # A mapping can wrap or convert its values, as TensorDict does. Then it is not a faithful copy.
            found = list(rebuilt.items())
            if [key for key, _ in found] == list(items) and all(item is items[key] for key, item in found):
                return rebuilt
        except Exception:  # a read-only mapping has no __setitem__
            pass
        return self._instead(value, items)

    def _object(self, value: Any, depth: int) -> Any:
        was = get_attributes(value)
        if not was:
            return value
        replaced, done = self._replaced, len(self._done)
        mapped = {name: self.of(item, depth) for name, item in was.items()}
        shell = self._shells.get(id(value))
        if self._on_note is None and shell is not None and self._replaced == replaced:
            # No tensor was replaced, so the copies, which only refer to each other, are not needed.
            for key in list(self._done)[done:]:
                del self._done[key]
            return value
        if (same := all(item is was[name] for name, item in mapped.items())) and self._on_note is None:
            return value
        try:
            rebuilt = shallow_copy(value) if shell is None or shell is value else shell
            for name, item in mapped.items():
                if rebuilt is not value and getattr(rebuilt, name, None) is not item:
                    object.__setattr__(rebuilt, name, item)
            # copy.copy can return the object itself, for example a member of an enum.
            if same or (rebuilt is not value and all(getattr(rebuilt, name) is item for name, item in mapped.items())):
                return rebuilt
        except Exception:
            if same:
                self._note(f"a {type(value).__name__} cannot be copied, so it is kept as it is and can change later")
                return value
        return self._instead(value, SimpleNamespace(**mapped))

    def _instead(self, value: object, plain: Any) -> Any:
        self._note(f"a {type(value).__name__} cannot be rebuilt, so its contents are kept in a {type(plain).__name__}")
        return plain

    def _note(self, text: str) -> None:
        if self._on_note is not None:
            self._on_note(text)


def shallow_copy(value: Any) -> Any:
    """Copy an object as `copy.copy` does, but without its `__del__`.

    If the original owns a file or a process, its `__del__` releases it. The copy must not release it a second time.

    Raises:
        TypeError: the object cannot be copied.

    Example:
        >>> class Page:
        ...     def __del__(self):
        ...         print("freed")
        >>> page = Page()
        >>> copy = shallow_copy(page)
        >>> isinstance(copy, Page)
        True
        >>> del copy
        >>> del page
        freed

    """
    if not _frees(value):
        return copy.copy(value)
    kind = type(value)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    quiet = type(kind.__name__, (kind,), {**named, "__slots__": (), "__del__": lambda self: None})
    made: Any = object.__new__(quiet)
    for name, held in get_attributes(value).items():
        object.__setattr__(made, name, held)
    return made


def _frees(value: Any) -> bool:
    """Return whether the class has a `__del__`."""
    return hasattr(type(value), "__del__")


def list_items(value: Any) -> list[Any]:
    """List the items of a tuple, list, set, frozenset or deque, or the pairs of a mapping; otherwise return `[]`.

    Example:
        >>> list_items(("a", "b")), list_items({"a": 1}), list_items(range(2)), list_items("ab")
        (['a', 'b'], [('a', 1)], [], [])

    """
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return list(value)
    return list(value.items()) if isinstance(value, Mapping) else []


def _beside(value: Any) -> dict[str, Any]:
    """Return the attributes of a container of a derived class."""
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else {}


def get_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, `__slots__` included, or `{}` if they cannot be read."""
    if isinstance(value, Proxy):
        return {}
    try:
        names = (*_beside(value), *_declared(type(value)))
        return {name: held for name in names if (held := getattr(value, name, _NOTHING)) is not _NOTHING}
    except Exception:  # an attribute that cannot be read
        return {}


def _shell_of(value: Any) -> Any:
    """Copy an object so that it can be filled later; return a container itself."""
    return (
        value if isinstance(value, (tuple, list, set, frozenset, deque, Mapping, np.ndarray)) else shallow_copy(value)
    )


def _declared(kind: type) -> tuple[str, ...]:
    """Return the names in the `__slots__` of a class."""
    if (known := _known.get(kind)) is None:
        slots = (getattr(each, "__slots__", ()) for each in kind.__mro__)
        known = tuple(name for group in slots for name in ([group] if isinstance(group, str) else group))
        _known[kind] = known
    return known


_known: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def rebuild_model_output(
    value: OrderedDict[Any, Any], items: dict[Any, Any], beside: dict[str, Any]
) -> OrderedDict[Any, Any]:
    """Rebuild a ModelOutput of transformers, whose fields are both entries and attributes.

    Writing to a copy would take longer than a small layer, because each write looks through all fields.

    Args:
        value: the ModelOutput.
        items: its new entries.
        beside: its other attributes.

    """
    rebuilt = type(value).__new__(type(value))
    attributes = {**beside}
    for key, item in items.items():
        OrderedDict.__setitem__(rebuilt, key, item)
        if key in attributes and vars(value)[key] is OrderedDict.get(value, key):
            attributes[key] = item
    vars(rebuilt).update(attributes)
    return rebuilt


def _is_single(value: Any) -> bool:
    """Return whether a value contains nothing that is visited."""
    return value is None or type(value) in _OFTEN or isinstance(value, _SINGLE)


_NOTHING = object()
_UNDER_WAY = object()
_PLAIN = (tuple, list, set, frozenset)
# A lookup here is faster than isinstance with the following.
_OFTEN = {bool, int, float, str, torch.dtype, torch.device, torch.layout}
_SINGLE = (
    bool, int, float, complex, str, bytes, type, nn.Module, ModuleType,
    FunctionType, BuiltinFunctionType, MethodType, partial,
)  # fmt: skip
