"""Feature maps in one image, with a table of the values of each channel."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookscope.pictures.map_drawing import (
    Box,
    Layout,
    Maps,
    Mosaic,
    average_blocks,
    compose,
    describe_scale,
    encode_png,
    find_limits,
    say_scale,
    to_levels,
)
from hookscope.pictures.palette import COOLWARM, VIRIDIS
from hookscope.pictures.picture import Picture, Rows, as_text
from hookscope.pictures.pixel_text import text_width
from hookscope.pictures.words import count_text

_SHOWN = 16  # channels by default: a 4×4 grid
_NAMED = 8  # names that a caption lists
_ONLY = "the only channel"
_ZEROS = ("dead", "zero")  # the marks of a map of zeros: without and with a center
_MEANINGS = {"dead": "dead (all zeros)", "zero": "all zeros", "flat": "flat (all equal)", "NaN": "NaN", "inf": "inf"}


class FeatureGrid(Picture):
    """The result of `feature_grid`: a `Picture` with a row of ``rows`` for each channel.

    Attributes:
        channels: the channels in the order of their maps, row by row.
        scale: ``(low, high)`` if all maps share one scale, else ``"per channel"``.
        shape: the shape of the activation.
        mosaic: the image as palette indices, uint8 (height, width). `hookscope.pictures.palette` defines them.
        boxes: ``(left, top, width, height)`` of each map in the image, in pixels.

    """

    channels: list[int]
    scale: tuple[float, float] | str
    shape: tuple[int, ...]
    mosaic: Mosaic
    boxes: list[Box]


def feature_grid(
    activation: Tensor | NDArray[Any],
    *,
    channels: int | str | slice | Iterable[int] | None = None,
    sample: int = 0,
    scale: str | tuple[float, float] = "channel",
    center: float | None = None,
    columns: int | None = None,
    seed: int | None = None,
    size: int | None = None,
    title: str = "",
    names: Sequence[str] | None = None,
    axes: tuple[str, str] | None = None,
) -> FeatureGrid:
    """Draw the channels of an activation as a grid of maps, with the values of each channel as a table.

    Small maps are enlarged, and large ones are averaged. NaN has its own color. Details:
    https://hookscope.github.io/hookscope/limits/feature_grid.html

    Args:
        activation: (N, C, H, W), (C, H, W) or (H, W), a real tensor or a NumPy array.
        channels: how many channels (the first 16 by default), or which: a list, a range, a slice, or ``"all"``.
        sample: which sample of the batch.
        scale: ``"channel"`` for one scale per map, ``"shared"`` for all maps together, or ``(low, high)``.
        center: the value in the middle of a blue-gray-red scale: ``0`` for gradients.
        columns: the number of maps in a row. By default, the image is about three times as wide as high.
        seed: draw the channels at random with this seed.
        size: the approximate width of the image in pixels.
        title: the start of the caption, for example the name of the layer.
        names: a name for each of the C channels.
        axes: labels for the rows and columns of each map, for example ``("digit", "channel")``.

    Example:
        >>> import torch
        >>> activation = torch.arange(12.0).reshape(1, 3, 2, 2) - 4
        >>> feature_grid(activation, title="conv1")
        conv1: all 3 channels of 2 × 2. Each map has its own scale.
        channel  min  max  mean  % zeros
        -------  ---  ---  ----  -------
              0   -4   -1  -2.5        0
              1    0    3   1.5       25
              2    4    7   5.5        0

    """
    return draw_grid(
        activation,
        zeros=("dead" if center is None else "zero",),
        channels=channels,
        sample=sample,
        scale=scale,
        center=center,
        columns=columns,
        seed=seed,
        size=size,
        title=title,
        names=names,
        axes=axes,
    )


def draw_grid(
    activation: Tensor | NDArray[Any],
    *,
    zeros: tuple[str, ...],
    reading: str = "",
    channels: int | str | slice | Iterable[int] | None = None,
    sample: int = 0,
    scale: str | tuple[float, float] = "channel",
    center: float | None = None,
    columns: int | None = None,
    seed: int | None = None,
    size: int | None = None,
    title: str = "",
    names: Sequence[str] | None = None,
    axes: tuple[str, str] | None = None,
) -> FeatureGrid:
    """Draw the same grid as `feature_grid`, with other words above a map of zeros.

    Args:
        activation: see `feature_grid`, as for all other arguments.
        zeros: the words, the longest first; the first one that fits above every map of zeros is drawn.
        reading: a sentence on how the shape was read, if not here.
        channels: which channels.
        sample: which sample.
        scale: the scale or scales.
        center: the value in the middle of the scale.
        columns: the number of maps in a row.
        seed: draw the channels at random.
        size: the approximate width.
        title: the start of the caption.
        names: a name for each channel.
        axes: labels for rows and columns.

    """
    maps, axis_names = _read_shape(activation, sample)
    if names is not None and axis_names.startswith("(C,"):
        axis_names = count_text(len(maps), "map")  # named, they can be of anything, as one channel of several images
    picked, which = _pick(channels, len(maps), seed)
    if names is not None and len(names) != len(maps):
        raise ValueError(
            f"{count_text(len(names), 'name')} for {count_text(len(maps), 'channel')}. Pass one name for each channel"
        )
    values = _copy_maps(maps, picked)
    facts = _MapStats.of(values, "dead" if "dead" in zeros else "zero")
    low, high, shared = find_limits(facts.low, facts.high, scale, center)
    ends, how = describe_scale(shared, center)

    own = [str(channel) for channel in picked] if names is None else [names[channel] for channel in picked]
    bare = facts.label([str(channel) for channel in picked], zeros[-1])
    layout = Layout.fit(
        values.shape, bare, columns, size
    )  # not the names, so that a long name does not shrink the maps
    tried = [facts.label(own, word) for word in zeros]
    labels = next((each for each in tried if max(map(text_width, each)) <= layout.room), tried[-1])
    tiles = to_levels(average_blocks(values, layout.shrink), low, high)
    mosaic, boxes = compose(tiles, labels, layout, ends, axes)

    shape = _shape(activation)
    if names is not None and len(picked) <= _NAMED:
        which = ", ".join(own)
    alone = which == _ONLY and bool(title)
    head = title if alone else f"{title}: {which}" if title else which if which == ", ".join(own) else _capital(which)
    is_all = which == f"all {len(maps)} channels"
    each = " of " if is_all else ", each " if len(picked) > 1 else ", "
    notes = [f"{head}{each}{shape[-2]} × {shape[-1]}.", say_scale(len(picked), shared, center)]
    if len(shape) == 4 and shape[0] > 1:
        notes.append(f"Sample {operator.index(sample) % shape[0]} of {shape[0]}.")
    if axes:
        notes.append(f"Each row of a map is one {axes[0]}, each column one {axes[1]}.")
    if not isinstance(scale, str) and (outside := int(((values < low[0]) | (values > high[0])).sum())):
        notes.append(f"{outside} of {values.size} values lie outside the scale and take its end colors.")
    if layout.shrink > 1:
        notes.append(f"Drawn at 1/{layout.shrink} size: each pixel is the mean of {layout.shrink}² values.")
    alt = (
        f"{title + ': ' if title else ''}{count_text(len(picked), 'map')} of {shape[-2]}×{shape[-1]} in "
        f"{count_text(layout.rows, 'row')} and {count_text(layout.columns, 'column')}, {which}; {how}. "
        f"{reading or f'The shape {shape} is read as {axis_names}.'} "
        f"{f'Each row is one {axes[0]}, each column one {axes[1]}. ' if axes else ''}"
        f"{facts.summary(own if names is not None else [f'channel {channel}' for channel in picked])}"
    )
    png = encode_png(mosaic, VIRIDIS if center is None else COOLWARM)
    grid = FeatureGrid(png, alt, " ".join(filter(None, notes)), facts.rows(picked, names))
    grid.channels, grid.shape, grid.mosaic, grid.boxes = picked, shape, mosaic, boxes
    grid.scale = shared or "per channel"
    return grid


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shape(activation: Tensor | NDArray[Any]) -> tuple[int, ...]:
    return tuple(map(int, activation.shape))


# --- check the arguments ---------------------------------------------------------------------------------


def _read_shape(activation: object, sample: int) -> tuple[Tensor | NDArray[Any], str]:
    """Return the (C, H, W) maps, and how the shape was read."""
    if not isinstance(activation, Tensor | np.ndarray):
        raise TypeError(_not_a_tensor(activation))
    if isinstance(activation, Tensor):
        if activation.is_nested:
            raise TypeError(
                "activation is a nested tensor, whose parts can have different shapes. Pass activation.unbind()[0]"
            )
        if activation.is_meta:
            raise TypeError(
                "activation is on the meta device, so it has a shape but no values. Run the model on the CPU"
            )
        activation = activation.detach()
        if activation.is_quantized:
            activation = activation.dequantize()
        if activation.layout is not torch.strided:  # sparse, or the CPU backend's own layout
            activation = activation.to_dense()
    is_complex = activation.is_complex() if isinstance(activation, Tensor) else np.iscomplexobj(activation)
    if is_complex:
        raise TypeError("activation is complex, but a map needs real values. Pass activation.abs() or activation.real")
    shape = _shape(activation)
    if math.prod(shape) == 0:
        raise ValueError(
            f"activation has the shape {shape}, so it has no elements to draw. Pass one with at least one sample, "
            "channel, row and column"
        )
    if len(shape) == 4:
        at = operator.index(sample)
        if not -shape[0] <= at < shape[0]:
            raise IndexError(f"no sample {at}: the shape {shape} holds {shape[0]} samples. Pass 0 to {shape[0] - 1}")
        return activation[at], f"(N, C, H, W), sample {at % shape[0]}"
    if len(shape) in (2, 3) and sample != 0:
        raise ValueError(
            f"sample={sample}, but the shape {shape} has no batch axis. Leave sample out, or pass (N, C, H, W)"
        )
    if len(shape) == 3:
        return activation, f"(C, H, W), {count_text(shape[0], 'channel')} of one sample"
    if len(shape) == 2:
        return activation[
            None
        ], f"(H, W), one map of {count_text(shape[0], 'row')} and {count_text(shape[1], 'column')}"
    raise ValueError(_no_maps(shape))


def _no_maps(shape: tuple[int, ...]) -> str:
    start = f"activation has the shape {shape}, but maps need (N, C, H, W), (C, H, W) or (H, W). "
    if len(shape) == 0:
        return start + "It is a scalar. Print it instead"
    if len(shape) == 1:
        return start + "If it holds the features of one sample, pass activation[None] to draw them as one row"
    if len(shape) == 5:
        return start + "If it is a volume or a video (N, C, D, H, W), pass one slice: activation[:, :, 0]"
    return start + f"Select along or merge {len(shape) - 4} of its axes first"


def _not_a_tensor(activation: object) -> str:
    kind = type(activation).__name__
    want = "feature_grid draws one tensor"
    if activation is None:
        return f"{want}, not None. A backward hook gets None if no gradient flows there"
    if isinstance(activation, nn.Module):
        return f"{want}, not the module {kind}. Run the module and pass its output"
    if isinstance(activation, dict):
        keys = ", ".join(repr(key) for key in list(activation)[:8])
        return f"{want}, not a {kind}. Pass one of its values; the keys are {keys or 'none'}"
    if isinstance(activation, tuple | list):
        inside = ", ".join(
            f"{type(item).__name__} {tuple(item.shape)}" if isinstance(item, Tensor) else type(item).__name__
            for item in activation[:4]
        )
        return (
            f"{want}, not a {kind} of {len(activation)} ({inside or 'empty'}). Pass one of its items. The args, "
            "grad_input and grad_output of a hook are tuples, so write args[0] or grad_output[0]"
        )
    output = ". Pass its output" if hasattr(type(activation), "output") else ""
    return f"{want} or NumPy array, not an object of type {kind}{output}"


def _pick(channels: int | str | slice | Iterable[int] | None, count: int, seed: int | None) -> tuple[list[int], str]:
    """Return the channels to show, and a phrase that names them."""
    if channels is None:
        channels = min(_SHOWN, count)
    if isinstance(channels, str):
        if channels != "all":
            raise ValueError(
                f"channels={channels!r} is not a choice of channels. Pass a number, a list, a slice or 'all'"
            )
        channels = slice(None)
    if isinstance(channels, Tensor | np.ndarray):
        channels = channels.tolist()
    single = not isinstance(channels, slice | Iterable)
    if seed is not None and not single:
        raise ValueError("seed= draws channels at random, but channels= names them already. Pass a number of channels")
    asked = ""
    if single:
        wanted = _index(channels)
        if wanted < 1:
            raise ValueError(
                f"channels={wanted} asks for no channels. Pass 1 or more, or channels=[{wanted}] for this channel"
            )
        picked = list(range(min(wanted, count)))
        if wanted > count:
            asked = f" ({wanted} asked for)"
        elif seed is not None and wanted < count:
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(count, generator=generator, device="cpu")[:wanted]
            picked, asked = sorted(drawn.tolist()), f" (drawn with seed {seed})"
    elif isinstance(channels, slice):
        picked = list(range(count))[channels]
    else:
        picked = [_index(item) for item in channels]  # type: ignore[union-attr]
        for channel in picked:
            if not -count <= channel < count:
                raise IndexError(f"no channel {channel}: there are {count}. Pass 0 to {count - 1} (or -{count} to -1)")
        picked = [channel % count for channel in picked]
    if not picked:
        raise ValueError(f"channels={channels!r} selects none of the {count} channels. Pass at least one of them")
    return picked, describe_channels(picked, count) + asked


def _index(item: object) -> int:
    if isinstance(item, bool):
        raise TypeError(
            f"channels must be integers, not {item}. Turn a mask into integers: "
            "[i for i, show in enumerate(mask) if show]"
        )
    try:
        return operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"channels must be integers, not {type(item).__name__} {item!r}. Pass for example [0, 3]"
        ) from None


def describe_channels(picked: list[int], count: int) -> str:
    """Return a phrase that names some of `count` channels."""
    first, last = picked[0], picked[-1]
    if count == 1 and len(picked) == 1:
        return _ONLY
    if picked == list(range(count)):
        return f"both channels, 0 and {last}" if count == 2 else f"all {count} channels"
    if len(picked) == 1:
        return f"channel {first} of {count}"
    if picked == list(range(first, last + 1)):
        listed = f"{first} to {last}" if len(picked) > 2 else f"{first} and {last}"
    else:
        listed = _join(picked) if len(picked) <= 16 else f"{_join(picked[:12])}, … {last}"
    return (
        f"all {count} channels, {listed}" if sorted(picked) == list(range(count)) else f"channels {listed} of {count}"
    )


def _join(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _copy_maps(maps: Tensor | NDArray[Any], picked: list[int]) -> Maps:
    """Copy the chosen maps, as float32 if that is exact for the dtype, else as float64."""
    if isinstance(maps, Tensor):
        if maps.is_floating_point() and maps.dtype.itemsize <= 2:
            maps = maps.float()  # NumPy has neither bfloat16 nor float8
        maps = maps.cpu().resolve_neg().numpy()
    if maps.dtype.kind not in "biuf":
        raise TypeError(f"activation is an array of {maps.dtype}. Pass one of a numeric dtype")
    kind = np.float32 if maps.dtype.itemsize <= 2 or maps.dtype == np.float32 else np.float64
    return maps[picked].astype(kind, order="C", copy=False)


@dataclass(frozen=True)
class _MapStats:
    """Statistics of each map: min, max and mean of the finite values, and the counts of zeros, NaN and infinities."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    zeros: NDArray[np.int64]
    special: dict[str, NDArray[np.int64]]
    marks: list[str]  # a word above the map: dead (zero with a center), flat, NaN, inf
    size: int

    @classmethod
    def of(cls, values: Maps, dead: str) -> _MapStats:
        flat = values.reshape(len(values), -1)
        size = flat.shape[1]
        zeros = size - np.count_nonzero(flat, axis=1)
        finite = np.isfinite(flat)
        special: dict[str, NDArray[np.int64]] = {}
        if finite.all():
            low, high, mean = flat.min(axis=1), flat.max(axis=1), flat.mean(axis=1, dtype=np.float64)
        else:
            found = {"NaN": np.isnan(flat), "+inf": np.isposinf(flat), "-inf": np.isneginf(flat)}
            special = {name: where.sum(axis=1) for name, where in found.items() if where.any()}
            count = finite.sum(axis=1)
            low = np.where(count, np.where(finite, flat, np.inf).min(axis=1), np.nan)
            high = np.where(count, np.where(finite, flat, -np.inf).max(axis=1), np.nan)
            total = np.where(finite, flat, 0).sum(axis=1, dtype=np.float64)
            mean = np.where(count, total / np.maximum(count, 1), np.nan)
        marks = []
        for i in range(len(flat)):
            words = dict.fromkeys(name.lstrip("+-") for name, counts in special.items() if counts[i])
            if zeros[i] == size:
                words[dead] = None
            elif low[i] == high[i] and size > 1 and not words:
                words["flat"] = None
            marks.append(" ".join(words))
        return cls(low.astype(np.float64), high.astype(np.float64), mean, zeros, special, marks, size)

    def label(self, names: list[str], zeros: str) -> list[str]:
        """Return the text above each map: its name and its mark, with this word for a map of zeros."""
        marks = [zeros if mark in _ZEROS else mark for mark in self.marks]
        return [f"{name} {mark}".rstrip() for name, mark in zip(names, marks, strict=True)]

    def rows(self, picked: list[int], names: Sequence[str] | None) -> Rows:
        notes = {"dead": "dead: all zeros", "zero": "all zeros", "flat": "flat: all equal"}
        noted = any(mark in notes for mark in self.marks)
        rows = []
        for i, channel in enumerate(picked):
            row: dict[str, object] = {"channel": channel}
            if names is not None:
                row["name"] = names[channel]
            row |= {"min": float(self.low[i]), "max": float(self.high[i]), "mean": float(self.mean[i])}
            # Only an exact 100 % must be shown as 100.
            share = 100 * int(self.zeros[i]) / self.size
            row["% zeros"] = share if share == 100 else min(share, 99.99)
            row |= {name: int(counts[i]) for name, counts in self.special.items()}
            if noted:
                row["note"] = notes.get(self.marks[i])
            rows.append(row)
        return rows

    def summary(self, names: list[str]) -> str:
        parts = ["No value is finite"]
        if not np.isnan(self.low).all():
            least, most = int(np.nanargmin(self.low)), int(np.nanargmax(self.high))
            parts = [
                f"Values run from {as_text(self.low[least])} ({names[least]}) "
                f"to {as_text(self.high[most])} ({names[most]})"
            ]
        for word, meaning in _MEANINGS.items():
            found = [name for name, mark in zip(names, self.marks, strict=True) if word in mark.split()]
            if found:
                more = f" and {len(found) - 12} more" if len(found) > 12 else ""
                parts.append(f"{meaning}: {_join_names(found[:12])}{more}")
        return "; ".join(parts) + "."


def _join_names(names: list[str]) -> str:
    """Join names, and write the word "channel" once if they are only numbers."""
    numbers = [name.removeprefix("channel ") for name in names]
    if len(names) > 1 and all(name != number for name, number in zip(names, numbers, strict=True)):
        return f"channels {', '.join(numbers)}"
    return ", ".join(names)
