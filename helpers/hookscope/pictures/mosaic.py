"""Maps on a colour scale, their labels and a scale bar, put together as one indexed picture."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hookscope.pictures.palette import EDGE, INK, LEVELS, NAN, NEG_INF, PAPER, POS_INF, palette
from hookscope.pictures.picture import as_text

_WIDTH, _WIDEST = 800, 960  # pixels a picture aims at, and may have before its maps are shrunk
_TILE = 160  # a small map is not enlarged beyond this, unless a size is asked for
_TILE_KEPT = 112  # and a large one gets fewer columns rather than be shrunk below this
_GAP, _LINE = 6, 13  # pixels between tiles; height of a line of text
_HATCH = 4  # values drawn at least this large can carry a pattern

Mosaic = NDArray[np.uint8]
Box = tuple[int, int, int, int]
Ends = NDArray[np.float64]
Maps = NDArray[np.floating[Any]]


def limits(
    low: Ends, high: Ends, scale: str | tuple[float, float], center: float | None
) -> tuple[Ends, Ends, tuple[float, float] | None]:
    """Return the low and the high end of the scale of every map, and both as a pair if all maps share them.

    Args:
        low: the lowest finite value of every map, NaN if it has none.
        high: the highest.
        scale: ``"channel"``, ``"shared"`` or ``(low, high)``.
        center: what is to lie in the middle of the scale, or None.

    """
    if center is not None and not math.isfinite(center):
        raise ValueError(f"center={center}: give a finite number, 0 for gradients")
    shared = None
    if isinstance(scale, str):
        if scale not in ("channel", "shared"):
            raise ValueError(f"scale={scale!r}: give 'channel', 'shared' or a pair (low, high)")
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
            raise ValueError(f"scale={scale!r}: give 'channel', 'shared' or a pair (low, high)") from None
        if not (math.isfinite(first) and math.isfinite(second) and first < second):
            raise ValueError(f"scale={scale!r}: low must lie below high, both finite")
        if center is not None and not math.isclose(center - first, second - center):
            farthest = max(abs(first - center), abs(second - center))
            raise ValueError(
                f"scale={scale!r} does not reach equally far to both sides of center={center}; "
                f"give ({as_text(center - farthest)}, {as_text(center + farthest)})"
            )
        shared = (first, second)
    if shared is not None:
        low, high = np.full_like(low, shared[0]), np.full_like(high, shared[1])
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    if center is not None:  # a map that is the center everywhere takes the colour of the center
        room = (low == high) * max(1.0, abs(center))
        low, high = low - room, high + room
    return low, high, shared


def scale_text(shared: tuple[float, float] | None, center: float | None) -> tuple[tuple[str, str], str]:
    """Return what stands at the two ends of the scale bar, and the scale in words."""
    if center is None:
        ends = ("min", "max") if shared is None else (as_text(shared[0]), as_text(shared[1]))
        dark, middle, bright = "dark", "", "bright"
    else:
        reach = "max|x|" if center == 0 else f"max|x{-center:+.4g}|"
        at = "" if center == 0 else as_text(center)
        ends = (f"{at}-{reach}", f"{at}+{reach}") if shared is None else (as_text(shared[0]), as_text(shared[1]))
        dark, middle, bright = "blue", f" over {as_text(center)} (grey)", "red"
    whose = "each map has its own, from" if shared is None else "the same for every map, from"
    return ends, f"scale: {whose} {ends[0]} ({dark}){middle} to {ends[1]} ({bright})"


def levels(values: Maps, low: Ends, high: Ends) -> Mosaic:
    """Return palette indices: 0 at the low end, LEVELS - 1 at the high end, and those of NaN and ±inf."""
    with np.errstate(over="ignore"):
        span = high - low
    if (span > 1e30).any() or (span[span > 0] < 1e-30).any():  # beyond what float32 can divide
        values, low = values.astype(np.float64) / 4, low / 4  # a quarter, since float64 may overflow as well
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


def shrunk(values: Maps, factor: int) -> Maps:
    """Average blocks of factor × factor values; at the right and lower edge, of what is there."""
    if factor == 1:
        return values
    blocks = torch.nn.functional.avg_pool2d(torch.from_numpy(values)[None].double(), factor, ceil_mode=True)
    return blocks[0].numpy()


@dataclass(frozen=True)
class Layout:
    """How many maps stand in a row, and how large a value is drawn."""

    columns: int
    rows: int
    zoom: int  # pixels for a value, along each axis
    shrink: int  # values for a pixel, along each axis
    room: int  # width of a tile or of its label, whichever is larger

    @classmethod
    def fit(cls, shape: tuple[int, ...], labels: list[str], columns: int | None, size: int | None) -> Layout:
        """Choose the layout for maps of ``shape`` (count, height, width) under their labels.

        Args:
            shape: how many maps, their height and their width.
            labels: the texts above the maps; no column is narrower than any of them.
            columns: maps in one row; None for about as many as make the picture square.
            size: width of the picture to aim at, in pixels; None for the default.

        Raises:
            ValueError: ``columns`` or ``size`` is less than 1.

        """
        for name, given in (("columns", columns), ("size", size)):
            if given is not None and given < 1:
                raise ValueError(f"{name}={given}: give at least 1")
        count, height, width = shape
        aim, widest, tile = (_WIDTH, _WIDEST, _TILE) if size is None else (size, size, size)
        label = max(letters(text).shape[1] for text in labels)
        if columns is None:
            most = (widest - _GAP) // (max(label, min(width, _TILE_KEPT)) + _GAP)
            near = math.ceil(math.sqrt(count * height / width))
            # Within a third of a square, the number that fills the last row best.
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


def compose(tiles: Mosaic, labels: list[str], layout: Layout, ends: tuple[str, str]) -> tuple[Mosaic, list[Box]]:
    """Put labels, tiles and the scale bar together; return the picture and where each map lies in it."""
    special = [index for index in (NAN, POS_INF, NEG_INF) if (tiles == index).any()]
    tiles = np.repeat(np.repeat(tiles, layout.zoom, axis=2), layout.zoom, axis=1)
    if special and layout.zoom >= _HATCH:
        hatch(tiles)
    bar = _bar(ends, special)
    high, wide = tiles.shape[1:]
    across, down = layout.room + _GAP, _LINE + high + _GAP
    mosaic = np.full(
        (_GAP + layout.rows * down + _LINE + _GAP, max(layout.columns * across, bar.shape[1] + _GAP) + _GAP),
        PAPER,
        dtype=np.uint8,
    )
    boxes = []
    for i, (tile, label) in enumerate(zip(tiles, labels, strict=True)):
        left, top = _GAP + i % layout.columns * across, _GAP + i // layout.columns * down
        while letters(label).shape[1] > layout.room:
            label = label[:-1]
        text = _line(label)
        mosaic[top : top + _LINE, left : left + text.shape[1]] = text
        top += _LINE
        mosaic[top - 1 : top + high + 1, left - 1 : left + wide + 1] = EDGE
        mosaic[top : top + high, left : left + wide] = tile
        boxes.append((left, top, wide, high))
    mosaic[-_LINE - _GAP : -_GAP, _GAP : _GAP + bar.shape[1]] = bar
    return mosaic, boxes


def _line(text: str) -> Mosaic:
    mask = letters(text)[:_LINE]
    line = np.full((_LINE, mask.shape[1]), PAPER, dtype=np.uint8)
    line[: len(mask)][mask] = INK
    return line


def _swatch(colours: Mosaic) -> Mosaic:
    return np.pad(colours, ((0, 1), (0, 0)), constant_values=PAPER)


def _bar(ends: tuple[str, str], special: list[int]) -> Mosaic:
    """Return the scale from its low to its high end, and a sample of every colour that is not on it."""
    space = np.full((_LINE, _GAP), PAPER, dtype=np.uint8)
    ramp = np.tile(np.arange(0, LEVELS, 2, dtype=np.uint8), (_LINE - 1, 1))
    parts = [_line(ends[0]), space, _swatch(ramp), space, _line(ends[1])]
    for index in special:
        sample = np.full((_LINE - 1, 2 * _LINE), index, dtype=np.uint8)
        hatch(sample)
        name = {NAN: "NaN", POS_INF: "+inf", NEG_INF: "-inf"}[index]
        parts += [space, space, _swatch(sample), space, _line(name)]
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
    for special, pattern, colour in ((NAN, dots, PAPER), (POS_INF, rising, INK), (NEG_INF, falling, PAPER)):
        mosaic[(mosaic == special) & pattern] = colour


@lru_cache(maxsize=4096)
def letters(text: str) -> NDArray[np.bool_]:
    """Return ``text`` as a mask (height, width) in Pillow's small bitmap font; what it lacks becomes ``?``.

    Example:
        >>> letters("12").shape[1] == 2 * letters("1").shape[1] > 0
        True

    """
    from PIL import Image, ImageDraw, ImageFont

    # Pillow 10.1 to 10.3 hand out their outline font only: as legible, but not the same on every machine.
    font = getattr(ImageFont, "load_default_imagefont", ImageFont.load_default)()
    text = text.encode("latin-1", "replace").decode("latin-1")
    _, _, width, height = font.getbbox(text)
    image = Image.new("1", (math.ceil(width), math.ceil(height)))
    ImageDraw.Draw(image).text((0, 0), text, fill=1, font=font)
    mask = np.array(image)
    mask.flags.writeable = False
    return mask


def encode(mosaic: Mosaic, colours: NDArray[np.uint8]) -> bytes:
    """Return palette indices, uint8 (height, width), as the bytes of a PNG in `palette` of ``colours``.

    It is written here because Pillow stores indexed rows as they are, and looks for repeated stretches anywhere.
    Differences to the row above are mostly small, or runs of zeros where a map is enlarged: to look for runs alone
    (``Z_RLE``) takes two thirds of the time on real feature maps, and mostly less room.

    Example:
        >>> from hookscope.pictures.palette import VIRIDIS
        >>> encode(np.zeros((2, 2), dtype=np.uint8), VIRIDIS)[1:4]
        b'PNG'

    """
    return _png(mosaic, 3, {b"PLTE": palette(colours).tobytes()})


def encode_rgb(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture, uint8 (height, width, 3), as the bytes of a PNG.

    Example:
        >>> encode_rgb(np.zeros((2, 2, 3), dtype=np.uint8))[1:4]
        b'PNG'

    """
    return _png(pixels.reshape(len(pixels), -1), 2, {})


def _png(rows: NDArray[np.uint8], kind: int, more: dict[bytes, bytes]) -> bytes:
    height, width = rows.shape
    lines = np.full((height, width + 1), 2, dtype=np.uint8)  # every line begins with its filter: 2 is "up"
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
