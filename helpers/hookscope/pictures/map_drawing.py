"""Compose maps, their labels and a scale bar into one image with a palette."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hookscope.pictures.palette import EDGE, INK, LEVELS, NAN, NEG_INF, PAPER, POS_INF, palette
from hookscope.pictures.picture import as_text
from hookscope.pictures.pixel_text import LINE, render_text, text_width

_WIDTH, _WIDEST = 800, 960  # pixels: the desired width, and the width above which maps are shrunk
_TILE = 160  # pixels: without size=, a small map is not enlarged beyond this
_TILE_KEPT = 112  # pixels: a large map is not shrunk below this as long as fewer columns help
_GAP = 6  # pixels between tiles
_HATCH = 4  # pixels; smaller squares get no pattern

Mosaic = NDArray[np.uint8]
Box = tuple[int, int, int, int]
Ends = NDArray[np.float64]
Maps = NDArray[np.floating[Any]]


def find_limits(
    low: Ends, high: Ends, scale: str | tuple[float, float], center: float | None
) -> tuple[Ends, Ends, tuple[float, float] | None]:
    """Return the low and the high end of the scale of each map, and both as a pair if all maps share one scale.

    Args:
        low: the lowest finite value of each map, NaN if there is none.
        high: the highest finite value of each map.
        scale: ``"channel"``, ``"shared"`` or ``(low, high)``.
        center: the value in the middle of the scale, or None.

    """
    if center is not None and not math.isfinite(center):
        raise ValueError(f"center={center} is not finite. Pass a finite value, for example 0 for gradients")
    shared = None
    if isinstance(scale, str):
        if scale not in ("channel", "shared"):
            raise ValueError(f"scale={scale!r} is not a scale. Pass 'channel', 'shared' or a pair (low, high)")
        if center is not None:
            reach = np.maximum(np.abs(low - center), np.abs(high - center))
            low, high = center - reach, center + reach
        if scale == "shared":
            known = not np.isnan(low).all()
            shared = (float(np.nanmin(low)), float(np.nanmax(high))) if known else (math.nan, math.nan)
    else:
        try:
            first, second = map(float, scale)
        except (TypeError, ValueError):
            raise ValueError(
                f"scale={scale!r} is not a scale. Pass 'channel', 'shared' or a pair (low, high)"
            ) from None
        if not (math.isfinite(first) and math.isfinite(second) and first < second):
            raise ValueError(f"scale={scale!r} is not a range. Pass two finite values (low, high) with low < high")
        if center is not None and not math.isclose(center - first, second - center):
            farthest = max(abs(first - center), abs(second - center))
            raise ValueError(
                f"scale={scale!r} is not symmetric around center={center}. "
                f"Pass ({as_text(center - farthest)}, {as_text(center + farthest)})"
            )
        shared = (first, second)
    if shared is not None:
        low, high = np.full_like(low, shared[0]), np.full_like(high, shared[1])
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    if center is not None:  # a map that equals the center everywhere gets the color of the center
        room = (low == high) * max(1.0, abs(center))
        low, high = low - room, high + room
    return low, high, shared


def say_scale(count: int, shared: tuple[float, float] | None, center: float | None, middle: str = "gray") -> str:
    """Return a sentence for a caption that describes the scale and its middle; empty if there is nothing to say.

    Args:
        count: the number of maps.
        shared: the ends of the scale, if there is one for all maps.
        center: the value in the middle.
        middle: the color of the middle.

    """
    zero = "" if center is None else f"{as_text(center)} is {middle}"
    if shared is None:
        whose = "" if count == 1 else "each map has its own scale"
    else:
        whose = "the scale runs" if count == 1 else "all maps share one scale,"
        whose += f" from {as_text(shared[0])} to {as_text(shared[1])}"
    words = "; ".join(filter(None, [whose, zero]))
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def describe_scale(shared: tuple[float, float] | None, center: float | None) -> tuple[tuple[str, str], str]:
    """Return the labels at the two ends of the scale bar, and the scale as a sentence."""
    if center is None:
        ends = ("min", "max") if shared is None else (as_text(shared[0]), as_text(shared[1]))
        dark, middle, bright = "dark", "", "bright"
    else:
        reach = "max|x|" if center == 0 else f"max|x{-center:+.4g}|"
        at = "" if center == 0 else as_text(center)
        ends = (f"{at}-{reach}", f"{at}+{reach}") if shared is None else (as_text(shared[0]), as_text(shared[1]))
        dark, middle, bright = "blue", f" over {as_text(center)} (gray)", "red"
    whose = "each map has its own, from" if shared is None else "the same for every map, from"
    return ends, f"scale: {whose} {ends[0]} ({dark}){middle} to {ends[1]} ({bright})"


def to_levels(values: Maps, low: Ends, high: Ends) -> Mosaic:
    """Return palette indices: 0 at the low end, LEVELS - 1 at the high end, and special ones for NaN and ±inf."""
    with np.errstate(over="ignore"):
        span = high - low
    if (span > 1e30).any() or (span[span > 0] < 1e-30).any():  # float32 cannot divide by these
        values, low = values.astype(np.float64) / 4, low / 4  # a quarter, because float64 can overflow, too
        span = high / 4 - low
    kind = values.dtype
    factor = (LEVELS - 1) / np.where(span == 0, 1, span)
    with np.errstate(invalid="ignore"):  # NaN and ±inf are overwritten below
        steps = values - low.astype(kind)[:, None, None]
        steps *= factor.astype(kind)[:, None, None]
        steps += 0.5
        tiles: Mosaic = np.clip(steps, 0, LEVELS - 0.5, out=steps).astype(np.uint8)
    if not np.isfinite(values).all():
        for index, where in ((NAN, np.isnan), (POS_INF, np.isposinf), (NEG_INF, np.isneginf)):
            tiles[where(values)] = index
    return tiles


def average_blocks(values: Maps, factor: int) -> Maps:
    """Average blocks of factor × factor values. Blocks at the right and lower edge can be smaller."""
    if factor == 1:
        return values
    blocks = torch.nn.functional.avg_pool2d(torch.from_numpy(values)[None].double(), factor, ceil_mode=True)
    return blocks[0].numpy()


@dataclass(frozen=True)
class Layout:
    """The number of maps in a row, and the size of a value in pixels."""

    columns: int
    rows: int
    zoom: int  # pixels for a value, along each axis
    shrink: int  # values for a pixel, along each axis
    room: int  # width of a tile or of its label, whichever is larger

    @classmethod
    def fit(cls, shape: tuple[int, ...], labels: list[str], columns: int | None, size: int | None) -> Layout:
        """Choose the layout for maps of this shape and their labels.

        Args:
            shape: the number of maps, their height and their width.
            labels: the texts above the maps. A column is at least as wide as the widest label.
            columns: the number of maps in a row; None for an image about three times as wide as high.
            size: the approximate width of the image in pixels; None for the default.

        Raises:
            ValueError: ``columns`` or ``size`` is less than 1.

        """
        for name, given in (("columns", columns), ("size", size)):
            if given is not None and given < 1:
                raise ValueError(f"{name}={given} is too small. Pass 1 or more")
        count, height, width = shape
        aim, widest, tile = (_WIDTH, _WIDEST, _TILE) if size is None else (size, size, size)
        label = max(map(text_width, labels))
        if columns is None:
            most = (widest - _GAP) // (max(label, min(width, _TILE_KEPT)) + _GAP)
            # Three times as wide as high, so that an image and what is said below it fit on one screen.
            near = max(1, int(math.sqrt(3 * count * height / width)))
            # Among the numbers up to a third above that, take the one that fills the last row best.
            columns = min(range(near, math.ceil(near * 4 / 3) + 1), key=lambda number: -count % number)
            columns = max(1, min(columns, most))
        columns = min(columns, count)
        zoom = min(((aim - _GAP) // columns - _GAP) // width, tile // max(height, width))
        shrink = 1
        if zoom < 1:
            space = max(1, (widest - _GAP) // columns - _GAP)
            zoom, shrink = 1, max(math.ceil(width / space), math.ceil(height / widest))
        room = max(label, math.ceil(width / shrink) * zoom)
        return cls(columns, math.ceil(count / columns), zoom, shrink, room)


def compose(
    tiles: Mosaic,
    labels: list[str],
    layout: Layout,
    ends: tuple[str, str] | None,
    axes: tuple[str, str] | None = None,
) -> tuple[Mosaic, list[Box]]:
    """Compose maps, labels and the scale bar; return the image and the box of each map.

    Args:
        tiles: the maps as palette indices, (count, height, width).
        labels: the texts above the maps. If all are empty, no space is reserved.
        layout: the arrangement of the maps.
        ends: the labels of the scale bar; None for no bar.
        axes: labels for the rows and columns of a map, which are then numbered.

    """
    special = [index for index in (NAN, POS_INF, NEG_INF) if (tiles == index).any()]
    shape = tiles.shape[1:]
    tiles = np.repeat(np.repeat(tiles, layout.zoom, axis=2), layout.zoom, axis=1)
    if special and layout.zoom >= _HATCH:
        hatch(tiles)
    bar = np.zeros((0, 0), dtype=np.uint8) if ends is None else draw_scale_bar(ends, special)
    left_ruler, lower_ruler = draw_rulers(axes, shape, layout.zoom) if axes else (np.zeros((0, 0), np.uint8),) * 2
    high, across_tile = tiles.shape[1:]
    head = LINE if any(labels) else 0
    across, down = layout.room + left_ruler.shape[1] + _GAP, head + high + lower_ruler.shape[0] + _GAP
    mosaic = np.full(
        (
            _GAP + layout.rows * down + (len(bar) + _GAP if ends else 0),
            max(layout.columns * across, bar.shape[1] + _GAP) + _GAP,
        ),
        PAPER,
        dtype=np.uint8,
    )
    boxes = []
    for i, (tile, label) in enumerate(zip(tiles, labels, strict=True)):
        left, top = _GAP + i % layout.columns * across, _GAP + i // layout.columns * down
        while text_width(label) > layout.room:
            label = label[:-1]
        left += left_ruler.shape[1]
        if head:
            mosaic[top : top + LINE, left : left + text_width(label)] = render_text(label)
        top += head
        mosaic[top : top + len(left_ruler), left - left_ruler.shape[1] : left] = left_ruler
        mosaic[top + high : top + high + len(lower_ruler), left : left + lower_ruler.shape[1]] = lower_ruler
        mosaic[top - 1 : top + high + 1, left - 1 : left + across_tile + 1] = EDGE
        mosaic[top : top + high, left : left + across_tile] = tile
        boxes.append((left, top, across_tile, high))
    if ends:
        mosaic[-LINE - _GAP : -_GAP, _GAP : _GAP + bar.shape[1]] = bar
    return mosaic, boxes


def draw_rulers(axes: tuple[str, str], shape: tuple[int, ...], zoom: int) -> tuple[Mosaic, Mosaic]:
    """Return the rulers at the left of a map and below it: the axis label, and numbers from 0.

    Args:
        axes: labels for the rows and the columns.
        shape: the number of rows and columns.
        zoom: the size of a value in pixels.

    """
    room = max(text_width(str(number)) for number in range(shape[0]))
    left = np.full((shape[0] * zoom, LINE + room + _GAP), PAPER, dtype=np.uint8)
    for row in range(0, shape[0], math.ceil((LINE - 3) / zoom)):
        number = render_text(str(row))
        top = min(max(0, row * zoom + (zoom - LINE) // 2), len(left) - LINE)
        if top >= 0:
            left[top : top + LINE, -number.shape[1] - _GAP + 2 : -_GAP + 2] = number
    name = np.rot90(render_text(axes[0]))[: len(left)]
    start = (len(left) - len(name)) // 2
    left[start : start + len(name), :LINE] = name
    below = np.full((2 * LINE, shape[1] * zoom), PAPER, dtype=np.uint8)
    for column in range(0, shape[1], math.ceil((text_width(str(shape[1] - 1)) + _GAP) / zoom)):
        number = render_text(str(column))
        at = min(max(0, column * zoom + (zoom - number.shape[1]) // 2), below.shape[1] - number.shape[1])
        if at >= 0:
            below[1:LINE, at : at + number.shape[1]] = number[:-1]
    name = render_text(axes[1])[:, : below.shape[1]]
    start = (below.shape[1] - name.shape[1]) // 2
    below[LINE:, start : start + name.shape[1]] = name
    return left, below


def _pad_swatch(colors: Mosaic) -> Mosaic:
    return np.pad(colors, ((0, 1), (0, 0)), constant_values=PAPER)


def draw_scale_bar(ends: tuple[str, str], special: list[int]) -> Mosaic:
    """Return the color scale from low to high, followed by a sample of each special color."""
    space = np.full((LINE, _GAP), PAPER, dtype=np.uint8)
    ramp = np.tile(np.arange(0, LEVELS, 2, dtype=np.uint8), (LINE - 1, 1))
    parts = [render_text(ends[0]), space, _pad_swatch(ramp), space, render_text(ends[1])]
    for index in special:
        sample = np.full((LINE - 1, 2 * LINE), index, dtype=np.uint8)
        hatch(sample)
        name = {NAN: "NaN", POS_INF: "+inf", NEG_INF: "-inf"}[index]
        parts += [space, space, _pad_swatch(sample), space, render_text(name)]
    return np.concatenate(parts, axis=1)


def hatch(mosaic: NDArray[np.uint8]) -> None:
    """Draw, in place, dots over `NAN`, rising lines over `POS_INF` and falling lines over `NEG_INF`.

    Args:
        mosaic: palette indices, uint8 (..., height, width).

    Example:
        >>> tile = np.full((4, 4), POS_INF, dtype=np.uint8)
        >>> hatch(tile)
        >>> ["".join("/" if index == INK else " " for index in row) for row in tile]
        ['   /', '  / ', ' /  ', '/   ']

    """
    y, x = np.ogrid[: mosaic.shape[-2], : mosaic.shape[-1]]
    dots, rising, falling = (y % 4 // 2 + x % 4 // 2) % 2 == 0, (x + y) % 4 == 3, (x - y) % 4 == 0
    for special, pattern, color in ((NAN, dots, PAPER), (POS_INF, rising, INK), (NEG_INF, falling, PAPER)):
        mosaic[(mosaic == special) & pattern] = color


def encode_png(mosaic: Mosaic, colors: NDArray[np.uint8], alpha: NDArray[np.uint8] | None = None) -> bytes:
    """Return palette indices, uint8 (height, width), as the bytes of a PNG with these colors.

    `alpha`, uint8 (256,), sets the opacity of each color; without it, all are opaque.

    Pillow does not filter indexed rows. Here each row is stored as the difference to the row above, which is often a
    run of zeros. ``Z_RLE`` looks only for such runs, so it takes two thirds of the time on real feature maps.

    Example:
        >>> from hookscope.pictures.palette import VIRIDIS
        >>> encode_png(np.zeros((2, 2), dtype=np.uint8), VIRIDIS)[1:4]
        b'PNG'

    """
    transparency = {} if alpha is None else {b"tRNS": alpha.tobytes()}
    return _png(mosaic, 3, {b"PLTE": palette(colors).tobytes(), **transparency})


def encode_rgb(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB image, uint8 (height, width, 3), as the bytes of a PNG.

    Example:
        >>> encode_rgb(np.zeros((2, 2, 3), dtype=np.uint8))[1:4]
        b'PNG'

    """
    return _png(pixels.reshape(len(pixels), -1), 2, {})


def _png(rows: NDArray[np.uint8], kind: int, more: dict[bytes, bytes]) -> bytes:
    height, width = rows.shape
    lines = np.full((height, width + 1), 2, dtype=np.uint8)  # each line begins with its filter type: 2 is "up"
    lines[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    squeeze = zlib.compressobj(1, strategy=zlib.Z_RLE)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width // 3 if kind == 2 else width, height, 8, kind, 0, 0, 0),
        **more,
        b"IDAT": squeeze.compress(lines.data) + squeeze.flush(),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks.items():
        png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))
    return png
