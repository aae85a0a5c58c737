"""Find the tensors that a sweep changes, and the index of one position, head or channel in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookscope.interp.edits.attention import NoHeadsError, columns_of, count_of, heads_around
from hookscope.interp.edits.batch_first import describe_module, has_batch_first, with_tokens_first
from hookscope.interp.edits.nested_values import Part, get, listed, path_of, tensors
from hookscope.interp.edits.selection import numbers_in
from hookscope.layers import LayerNotFoundError, Modules, Which, pick
from hookscope.layers.modules import NEVER_CALLED

__all__ = ["Columns", "Site", "check_columns", "find_sites"]

Kind = Literal["layer", "position", "head", "channel"]
_AXIS = {
    "position": "positions are axis 1 of (batch, positions, features)",
    "channel": "channels are axis 1 of (batch, channels) or (batch, channels, height, width)",
}
_DIMENSIONS = {"position": (3,), "channel": (2, 4, 5)}  # numbers of axes for which axis 1 is the usual one
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd)
_FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass(frozen=True)
class Columns:
    """The columns of a sweep.

    Attributes:
        kind: the things that the numbers count; "layer" if the whole tensor is changed.
        numbers: the numbers; [0] for the whole tensor.
        axis: the axis along which they count; None for the usual one.

    """

    kind: Kind
    numbers: tuple[int, ...]
    axis: int | None = None

    def name(self, number: int) -> str:
        """Name one column, such as "position 3"."""
        return "the whole output" if self.kind == "layer" else f"{self.kind} {number}"


@dataclass(frozen=True, eq=False)
class Site:
    """One tensor of one call of a layer.

    Attributes:
        label: the layer's name as the user wrote it, with `#2` for its second call.
        name: the layer's name, or that of the output projection whose input holds its heads.
        module: the module of that name.
        call: which call of it, from 1; None for the only one.
        to: "output" or "input"; "heads" between the heads and the output projection of an `nn.MultiheadAttention`.
        path: the path to the tensor in a structure; None for the only tensor.
        heads: the number of heads in the last axis, and the slice of each head in the sweep.
        names: all names of the layer, the user's first.

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
        """A note if the layer has several names; else ""."""
        name, *others = map(repr, self.names)
        note = f"layer {name} is also named {', '.join(others)}; its row counts the calls under each name"
        return note if others else ""

    @property
    def width(self) -> int:
        """The number of values in a head; 0 without heads."""
        where = next(iter(self.heads[1].values())) if self.heads is not None else slice(0, 0)
        return int(where.stop - where.start)

    def find_path(self, value: Any) -> tuple[int | str, ...]:
        """Return the path to the tensor in the layer's output or inputs.

        Raises:
            ValueError: there are several tensors, and `part=` does not choose one.
            LookupError: there is no such part.

        """
        did = "returned" if self.to == "output" else "was given"
        if self.path is None:
            paths = [path for path, _ in tensors(value)]
            if not paths:
                raise ValueError(f"layer {self.label!r} {did} {listed(value)}")
            if len(paths) > 1:
                one = f", or part={{{self.label!r}: …}} for this layer alone" if self.call is None else ""
                raise ValueError(
                    f"layer {self.label!r} {did} several tensors. Choose one with SweepOptions(part=…){one}: "
                    f"{listed(value)}"
                )
            return paths[0]
        try:
            get(value, self.path)
        except LookupError:
            raise LookupError(f"layer {self.label!r} has no part={self.path!r}. It {did} {listed(value)}") from None
        return self.path

    def get_tensor(self, value: Any, path: tuple[int | str, ...]) -> Tensor:
        """Take the tensor at a path out of the layer's output or inputs.

        Raises:
            LookupError: the value at this path is not a tensor.

        """
        tensor = get(value, path)
        if not isinstance(tensor, Tensor):
            raise LookupError(f"layer {self.label!r}: part={path!r} is not a tensor. Choose one of {listed(value)}")
        return tensor

    def make_index(self, shape: torch.Size, columns: Columns, number: int) -> tuple[Any, ...]:
        """Return the index of one position, head or channel.

        Raises:
            ValueError: the tensor has no such axis.
            IndexError: the axis is shorter.

        """
        if columns.kind == "layer":
            return (...,)
        what = f"layer {self.label!r}"
        if self.heads is not None:
            count, where = self.heads
            if not shape or shape[-1] != count * self.width:
                raise ValueError(
                    f"{what}: the last axis of shape {tuple(shape)} does not have {count} heads of {self.width} "
                    "values, so heads= cannot find them. Name another layer, or use edit with an index"
                )
            return (..., where[number])
        axis = self._choose_axis(shape, columns) if columns.axis is None else columns.axis
        if not 0 < axis < len(shape):
            raise ValueError(
                f"{what}: shape {tuple(shape)} has no axis {axis} after the batch axis, which is axis 0. Pass an axis "
                f"from 1 to {len(shape) - 1}"
                if len(shape) > 1
                else f"{what}: shape {tuple(shape)} has no axis {axis} after the batch axis. Sweep the whole layer"
            )
        size = shape[axis]
        if not -size <= number < size:
            raise IndexError(
                f"{what} has no {columns.kind} {number}: axis {axis} of shape {tuple(shape)} has {size}. Pass "
                f"{columns.kind}s from 0 to {size - 1}"
            )
        return (*[slice(None)] * axis, number)

    def _choose_axis(self, shape: torch.Size, columns: Columns) -> int:
        """Return axis 1, unless the shape or the type of the layer contradicts it.

        Raises:
            ValueError: it does.

        """
        what, kind, last = f"layer {self.label!r}", columns.kind, len(shape) - 1
        if len(shape) not in _DIMENSIONS[kind]:
            raise ValueError(f"{what} has shape {tuple(shape)}, and {_AXIS[kind]}. {_suggest_axis(columns, shape)}")
        positions_last = kind == "position" and isinstance(self.module, _CHANNELS_FIRST)
        if positions_last or (kind == "channel" and last > 1 and isinstance(self.module, _FEATURES_LAST)):
            raise ValueError(
                f"{what} is a {type(self.module).__name__}, so its axis 1 does not count {kind}s. Pass "
                f"SweepOptions(axis={last})"
            )
        return 1


def _suggest_axis(columns: Columns, shape: torch.Size) -> str:
    """Say what to type if the shape does not show which axis is meant."""
    if len(shape) < 2:
        return "It has no axis after the batch axis. Sweep the whole layer, or choose another layer"
    if len(shape) > 2:
        return f"Please say which axis you mean, from SweepOptions(axis=1) to SweepOptions(axis={len(shape) - 1})"
    hint = f"If the {shape[1]} values of axis 1 are {columns.kind}s, pass SweepOptions(axis=1)"
    return hint + ("; if they are features, pass channels=" if columns.kind == "position" else "")


def check_columns(positions: Any, heads: Any, channels: Any, axis: int | None) -> Columns:
    """Check the options that choose the columns.

    Raises:
        TypeError: a number is not an integer.
        ValueError: several options are given, or one is empty, or contains a number twice.

    """
    given = {"position": positions, "head": heads, "channel": channels}
    named = {kind: numbers for kind, numbers in given.items() if numbers is not None}
    if len(named) > 1:
        raise ValueError(
            f"sweep takes one of positions=, heads= and channels=, and got {' and '.join(f'{k}s=' for k in named)}. "
            "Run a sweep for each"
        )
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool) or axis < 1):
        raise ValueError(f"axis={axis!r} is not an axis that a sweep can change: axis 0 is the batch. Pass 1 or more")
    if axis is not None and not named.keys() & {"position", "channel"}:
        raise ValueError(
            "axis= says where positions or channels are, and neither is given. Pass one of them, or leave out axis="
        )
    if not named:
        return Columns("layer", (0,))
    ((kind, numbers),) = named.items()
    return Columns(kind, _check_numbers(numbers, f"{kind}s"), axis)  # type: ignore[arg-type]


def _check_numbers(given: Any, name: str) -> tuple[int, ...]:
    try:
        numbers = tuple(numbers_in(given))
    except TypeError:
        raise TypeError(f"{name}={given!r}: pass integers, such as {name}=range(12) or {name}=[0, 3]") from None
    if not numbers:
        raise ValueError(f"{name}={given!r} is empty, so the sweep has no cells. Pass {name}=[0], or leave it out")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{name}={given!r} contains a number twice. Pass each number once")
    return numbers


def find_sites(modules: Modules, layers: Any, columns: Columns, part: Part | Mapping[Which, Part] | None) -> list[Site]:
    """Find the layers of the rows, in the given order.

    Raises:
        LayerNotFoundError: there is no such layer; names the nearest.
        ValueError: `layers` is empty, heads cannot be found, or a part names none of the layers.

    """
    single = isinstance(layers, (str, bytes, type, nn.Module)) or callable(layers)
    try:
        items: list[Which] = [layers] if single else list(layers)
    except TypeError:
        raise TypeError(
            f"layers={layers!r} does not name layers. Pass a name, a glob, a type or a module, or a list of these"
        ) from None
    if not items:
        raise ValueError("layers is empty, so the sweep has no rows. Pass at least one layer")
    found: dict[tuple[nn.Module, int | None], tuple[str, nn.Module, int | None]] = {}
    for item in items:
        for name, module, call in _pick_modules(modules, item):
            found.setdefault((module, call), (name, module, call))
    paths = _map_parts(modules, part, {module for module, _ in found})
    return [_make_site(modules, name, module, call, paths[module], columns) for name, module, call in found.values()]


def _map_parts(modules: Modules, part: Any, chosen: set[nn.Module]) -> dict[nn.Module, Any]:
    """Return the path to the tensor in the output of each layer; None for the only one."""
    if not isinstance(part, Mapping):
        return dict.fromkeys(chosen, path_of(part))
    paths: dict[nn.Module, Any] = dict.fromkeys(chosen)
    for item, one in part.items():
        named = chosen.intersection(pick(modules, item, several="one key of part= for each name").values())
        if not named:
            raise ValueError(f"part={{{item!r}: {one!r}}} names none of the layers in layers=")
        paths.update(dict.fromkeys(named, path_of(one)))
    return paths


def _pick_modules(modules: Modules, item: Which) -> Iterable[tuple[str, nn.Module, int | None]]:
    """Yield the names and modules that one item picks, and the number of the call if it names one."""
    if isinstance(item, str) and "#" in item:
        name, _, number = item.rpartition("#")
        if number.isdecimal() and int(number) >= 1 and modules.find(item) is None:
            for found, module in pick(modules, name).items():
                yield found, module, int(number)
            return
    chosen = pick(modules, item, several="layers=[*names]")
    if not isinstance(item, (str, nn.Module)) or len(chosen) > 1:  # a glob or a type skips lists, which never run
        called = {name: module for name, module in chosen.items() if not isinstance(module, NEVER_CALLED)}
        if not called:
            raise LayerNotFoundError(
                f"{item!r} picks only lists of modules, which are never called. Pick the modules in them", str(item)
            )
        chosen = called
    for name, module in chosen.items():
        yield name, module, None


def _make_site(modules: Modules, name: str, module: nn.Module, call: int | None, path: Any, columns: Columns) -> Site:
    label = (name or "(root)") + ("" if call is None else f"#{call}")
    around = with_tokens_first(modules, name) if columns.kind == "position" and columns.axis is None else None
    if around is not None:
        fix = "Make it with batch_first=True" if has_batch_first(around) else "Choose layers around it"
        raise ValueError(
            f"layer {label!r} is, or is in, a {describe_module(around)}, whose axis 0 counts tokens. A "
            f"sweep needs samples there. {fix}"
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
        raise ValueError(f"{error.why}. {_suggest_layer(modules, name)}") from None
    if path is not None and heads.to != "output":
        raise ValueError(
            f"part= chooses a tensor of the output, but heads= changes the input of {heads.name!r}. Leave out part="
        )
    return Site(label, heads.name, heads.module, call, heads.to, path, (heads.count, where), names)


def _suggest_layer(modules: Modules, name: str) -> str:
    """Say what to type if heads cannot be found; `edit` takes an index instead, and a sweep does not."""
    below = f"{name}." if name else ""
    inside = [
        known
        for module, known in modules.names.items()
        if known != name and known.startswith(below) and count_of(module, config=False) is not None
    ]
    such = f", such as {inside[0]!r}" if inside else ""
    return f"A sweep cannot use an index instead of heads=. Name another layer{such}, or use edit"
