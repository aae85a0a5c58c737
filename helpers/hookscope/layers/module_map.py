"""A dictionary whose keys are modules, compared by identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, overload

from torch import nn

__all__ = ["ModuleMap"]

_V = TypeVar("_V")


class ModuleMap(MutableMapping[nn.Module, _V]):
    """A dictionary of modules that does not call their `__hash__`.

    A module can define its own hash. For example, the hash of a `torchmetrics.Metric` changes with its state, so it
    changes in each pass, and a `dict` no longer finds the module.

    Args:
        items: a mapping, or pairs of a module and its value.

    Example:
        >>> relu = nn.ReLU()
        >>> calls = ModuleMap({relu: 1})
        >>> calls[relu], nn.ReLU() in calls
        (1, False)

    """

    __slots__ = ("_pairs",)

    @overload
    def __init__(self, items: Mapping[nn.Module, _V]) -> None: ...

    @overload
    def __init__(self, items: Iterable[tuple[nn.Module, _V]] = ()) -> None: ...

    def __init__(self, items: Mapping[nn.Module, _V] | Iterable[tuple[nn.Module, _V]] = ()) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        # With the module itself, because Python can give the ID of a deleted module to another one.
        self._pairs = {id(module): (module, value) for module, value in pairs}

    @classmethod
    def from_ids(cls, pairs: dict[int, tuple[nn.Module, _V]]) -> ModuleMap[_V]:
        """Return a map of modules and values that are stored by the ID of the module, without copying them."""
        made: ModuleMap[_V] = cls()
        made._pairs = pairs
        return made

    def __getitem__(self, module: nn.Module) -> _V:
        try:
            return self._pairs[id(module)][1]
        except KeyError:
            raise KeyError(module) from None

    def __setitem__(self, module: nn.Module, value: _V) -> None:
        self._pairs[id(module)] = (module, value)

    def __delitem__(self, module: nn.Module) -> None:
        del self._pairs[id(module)]

    def get(self, module: nn.Module, default: Any = None) -> Any:
        """Return the value of a module; hooks ask for it in each call, so this is faster than the inherited method."""
        pair = self._pairs.get(id(module))
        return default if pair is None else pair[1]

    def __iter__(self) -> Iterator[nn.Module]:
        return (module for module, _ in self._pairs.values())

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, module: object) -> bool:
        return id(module) in self._pairs

    def __repr__(self) -> str:
        return repr(dict(self._pairs.values()))
