"""Say where a sweep changes something: a tensor of one call of a layer, and a position, head or channel of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookscope.interp.edits.attention import NoHeadsError, columns_of, count_of, heads_around
from hookscope.interp.edits.batch_first import said_of, with_tokens_first
from hookscope.interp.edits.parts import Part, get, listed, path_of, tensors
from hookscope.interp.edits.selection import numbers_in
from hookscope.layers import LayerNotFoundError, Modules, Which, pick

__all__ = ["Columns", "Site", "check_columns", "find_sites"]

Kind = Literal["layer", "position", "head", "channel"]
_AXIS = {
    "position": "positions are axis 1 of (batch, positions, features)",
    "channel": "channels are axis 1 of (batch, channels) or (batch, channels, height, width)",
}


@dataclass(frozen=True)
class Columns:
    """What is changed of each layer, one at a time.

    Attributes:
        kind: what the numbers count; "layer" where the whole tensor is changed.
        numbers: which ones; [0] for the whole tensor.
        axis: which axis they count along; None for the usual one.

    """

    kind: Kind
    numbers: tuple[int, ...]
    axis: int | None = None

    def name(self, number: int) -> str:
        """Name one of them, as in "position 3"."""
        return "the whole output" if self.kind == "layer" else f"{self.kind} {number}"


@dataclass(frozen=True, eq=False)
class Site:
    """One tensor of one call of a layer.

    Attributes:
        label: the layer's name as it was asked for, with `#2` for its second call.
        name: the layer's name, or that of the output projection that has its heads in its input.
        module: the layer of that name.
        call: which call of it, from 1; None for the only one.
        to: "output" or "input"; "heads" between the heads and the output projection of an `nn.MultiheadAttention`.
        path: which tensor of a structure; None for the only one.
        heads: how many heads lie side by side on the last axis, and where each is, by its number.
        names: every name of the layer that was asked for, as it was asked for first.

    """

    label: str
    name: str
    module: nn.Module
    call: int | None
    to: str
    path: tuple[int | str, ...] | None
    heads: tuple[int, dict[int, slice]] | None
    names: tuple[str, ...]

    @property
    def note(self) -> str:
        """What there is to know of a layer that has several names; "" if it has one."""
        name, *others = map(repr, self.names)
        return f"layer {name} is also {', '.join(others)}: one row, in which calls under each name count" * bool(others)

    @property
    def width(self) -> int:
        """How many values a head has; 0 without heads."""
        where = next(iter(self.heads[1].values())) if self.heads is not None else slice(0, 0)
        return int(where.stop - where.start)

    def find_path(self, value: Any) -> tuple[int | str, ...]:
        """Return the path to the tensor that is meant in what the layer returned or was given.

        Raises:
            ValueError: it has several tensors, and nothing says which.
            LookupError: it has no such part.

        """
        did = "returned" if self.to == "output" else "was given"
        if self.path is None:
            paths = [path for path, _ in tensors(value)]
            if len(paths) != 1:
                ask = "several tensors; say which: " if paths else ""
                own = f"; for this layer alone write part={{{self.label!r}: …}}" if paths and self.call is None else ""
                raise ValueError(f"layer {self.label!r} {did} {ask}{listed(value)}{own}")
            return paths[0]
        try:
            get(value, self.path)
        except LookupError:
            raise LookupError(f"layer {self.label!r} has no part={self.path!r}; it {did} {listed(value)}") from None
        return self.path

    def get_tensor(self, value: Any, path: tuple[int | str, ...]) -> Tensor:
        """Take the tensor at a path out of what the layer returned or was given.

        Raises:
            LookupError: what is there is no tensor.

        """
        tensor = get(value, path)
        if not isinstance(tensor, Tensor):
            raise LookupError(f"layer {self.label!r}: part={path!r} is no tensor; there is {listed(value)}")
        return tensor

    def make_index(self, shape: torch.Size, columns: Columns, number: int) -> tuple[Any, ...]:
        """Return the index of one position, head or channel.

        Raises:
            ValueError: the tensor has no such axis.
            IndexError: the axis is not that long.

        """
        if columns.kind == "layer":
            return (...,)
        if self.heads is not None:
            count, where = self.heads
            if not shape or shape[-1] != count * (where[number].stop - where[number].start):
                raise ValueError(
                    f"layer {self.label!r}: its {count} heads do not make up the last axis of {tuple(shape)}"
                )
            return (..., where[number])
        axis, what = columns.axis, f"layer {self.label!r}"
        usual = {"position": (3,), "channel": (2, 4, 5)}[columns.kind]
        if axis is None and len(shape) not in usual:
            raise ValueError(
                f"{what} has shape {tuple(shape)}, and {_AXIS[columns.kind]}; {_suggest_axis(columns, shape)}"
            )
        if axis is None and (last := self._find_axis(columns, len(shape))):
            kind = type(self.module).__name__
            raise ValueError(
                f"{what} is a {kind}, and its axis 1 has no {columns.kind}s: say which axis, as axis={last}"
            )
        axis = 1 if axis is None else axis
        if not 0 < axis < len(shape):
            raise ValueError(f"{what}: shape {tuple(shape)} has no axis {axis} after that of the batch, which is 0")
        size = shape[axis]
        if not -size <= number < size:
            raise IndexError(
                f"{what} has no {columns.kind} {number}: axis {axis} of {tuple(shape)} has {size}, so 0 to {size - 1}"
            )
        return (*[slice(None)] * axis, number)

    def _find_axis(self, columns: Columns, axes: int) -> int:
        """Return the axis that must be meant where the kind of the layer says that it is not axis 1; else 0."""
        if columns.kind == "position" and isinstance(self.module, _CHANNELS_FIRST):
            return axes - 1
        return axes - 1 if columns.kind == "channel" and axes > 2 and isinstance(self.module, _FEATURES_LAST) else 0


def _suggest_axis(columns: Columns, shape: torch.Size) -> str:
    """Say what to type where the shape does not say which axis is meant."""
    if len(shape) < 2:
        return "it has no axis after that of the batch, so sweep the whole layer, or choose another"
    if len(shape) > 2:
        return f"say which axis is meant, from axis=1 to axis={len(shape) - 1}"
    ask = f"if axis 1, of {shape[1]} values, has the {columns.kind}s, write axis=1"
    return ask + ("; if it has features, write channels=" if columns.kind == "position" else "")


_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd)
_FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


def check_columns(positions: Any, heads: Any, channels: Any, axis: int | None) -> Columns:
    """Check what was asked for.

    Raises:
        TypeError: not whole numbers.
        ValueError: several of them, nothing, or a number twice.

    """
    given = {"position": positions, "head": heads, "channel": channels}
    asked = {kind: what for kind, what in given.items() if what is not None}
    if len(asked) > 1:
        raise ValueError(f"give one of positions=, heads= and channels=, not {' and '.join(f'{k}s=' for k in asked)}")
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool) or axis < 1):
        raise ValueError(f"axis={axis!r}: give the number of an axis, from 1; axis 0 is that of the batch")
    if axis is not None and not asked.keys() & {"position", "channel"}:
        raise ValueError("axis= goes with positions= or channels=")
    if not asked:
        return Columns("layer", (0,))
    ((kind, what),) = asked.items()
    return Columns(kind, _check_numbers(what, f"{kind}s"), axis)  # type: ignore[arg-type]


def _check_numbers(what: Any, name: str) -> tuple[int, ...]:
    try:
        numbers = tuple(numbers_in(what))
    except TypeError:
        raise TypeError(f"{name}={what!r}: give whole numbers, as {name}=range(12) or {name}=[0, 3]") from None
    if not numbers:
        raise ValueError(f"{name}={what!r} is empty: there is nothing to sweep")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{name}={what!r} has a number twice")
    return numbers


def find_sites(modules: Modules, layers: Any, columns: Columns, part: Part | Mapping[Which, Part] | None) -> list[Site]:
    """Find the layers that were asked for, in the order in which they were.

    Raises:
        LayerNotFoundError: no such layer; names the nearest.
        ValueError: none were given, or heads are asked for and not to be found, or a part is of none of the layers.

    """
    single = isinstance(layers, (str, type, nn.Module)) or callable(layers)
    try:
        items: list[Which] = [layers] if single or isinstance(layers, bytes) else list(layers)
    except TypeError:
        raise TypeError(f"layers={layers!r}: give names, globs, types or modules, one or a list of them") from None
    if not items:
        raise ValueError("layers is empty: there is nothing to sweep")
    found: dict[tuple[nn.Module, int | None], tuple[str, nn.Module, int | None]] = {}
    for item in items:
        for name, module, call in _pick_modules(modules, item):
            found.setdefault((module, call), (name, module, call))
    paths = _map_parts(modules, part, {module for module, _ in found})
    return [_make_site(modules, name, module, call, paths[module], columns) for name, module, call in found.values()]


def _map_parts(modules: Modules, part: Any, chosen: set[nn.Module]) -> dict[nn.Module, Any]:
    """Return the path to the tensor that is meant in what each layer returns; None for the only one."""
    if not isinstance(part, Mapping):
        return dict.fromkeys(chosen, path_of(part))
    paths: dict[nn.Module, Any] = dict.fromkeys(chosen)
    for item, one in part.items():
        named = chosen.intersection(pick(modules, item).values())
        if not named:
            raise ValueError(f"part={{{item!r}: {one!r}}}: that is none of the layers of this sweep")
        paths.update(dict.fromkeys(named, path_of(one)))
    return paths


def _pick_modules(modules: Modules, item: Which) -> Iterable[tuple[str, nn.Module, int | None]]:
    """Yield what one item means: names, modules, and the number of the call if it names one."""
    if isinstance(item, str) and "#" in item:
        name, _, number = item.rpartition("#")
        if number.isdecimal() and int(number) >= 1 and modules.find(item) is None:
            for found, module in pick(modules, name).items():
                yield found, module, int(number)
            return
    chosen = pick(modules, item)
    if not isinstance(item, (str, nn.Module)) or len(chosen) > 1:  # a glob or a type takes what is called
        lists = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
        called = {name: module for name, module in chosen.items() if not isinstance(module, lists)}
        if not called:
            raise LayerNotFoundError(f"{item!r} picks only lists of modules, which are never called", str(item))
        chosen = called
    for name, module in chosen.items():
        yield name, module, None


def _make_site(modules: Modules, name: str, module: nn.Module, call: int | None, path: Any, columns: Columns) -> Site:
    label = (name or "(root)") + ("" if call is None else f"#{call}")
    around = with_tokens_first(modules, name) if columns.kind == "position" and columns.axis is None else None
    if around is not None:
        said = said_of(around)
        raise ValueError(
            f"layer {label!r} is, or is in, a {said}, tokens before samples, and a sweep takes the first axis for that "
            f"of samples; {'make it with batch_first=True' if 'batch_first' in said else 'choose layers around it'}"
        )
    names = (name, *(other for other in modules.names_of(module) if other != name))
    if columns.kind != "head":
        return Site(label, name, module, call, "output", path, None, names)
    try:
        heads = heads_around(modules, name, module, "output")
        where = {}
        for number in columns.numbers:
            each = columns_of(heads, number)
            where[number] = slice(each[0], each[-1] + 1)
    except NoHeadsError as error:
        raise ValueError(f"{error.why}; {_suggest_layer(modules, name)}") from None
    if path is not None and heads.to != "output":
        raise ValueError(f"part= does not go with heads=, which lie in what goes into {heads.name!r}")
    return Site(label, heads.name, heads.module, call, heads.to, path, (heads.count, where), names)


def _suggest_layer(modules: Modules, name: str) -> str:
    """Say what to do where heads are not to be found: `edit` takes an index in their place, and a sweep does not."""
    below = f"{name}." if name else ""
    inside = [
        known
        for module, known in modules.names.items()
        if known != name and known.startswith(below) and count_of(module, config=False) is not None
    ]
    such = f", such as {inside[0]!r}" if inside else ""
    return f"a sweep takes no index in their place, so name another layer{such}, or use edit"
