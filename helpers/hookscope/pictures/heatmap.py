"""Draw a table of values as a heat map, with names along two sides and a scale below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookscope.pictures.map_drawing import draw_scale_bar, encode_png, hatch, to_levels
from hookscope.pictures.palette import EDGE, LEVELS, NAN, NEG_INF, PAPER, POS_INF, VIRIDIS
from hookscope.pictures.picture import as_text
from hookscope.pictures.pixel_text import LINE, render_text, text_width
from hookscope.pictures.tokens import shorten_token

__all__ = ["Heatmap", "draw_heatmap"]

_GAP = 6  # pixels
_HATCH = 4  # pixels; smaller cells get no pattern
_LETTERS = 14  # characters of a name


@dataclass(frozen=True)
class Heatmap:
    """A heat map as PNG, with the position of its cells.

    Attributes:
        png: the bytes of the PNG.
        size: the width and height, in pixels.
        box: the left and top of the first cell, and the width and height of all cells.
        ends: the values at the two ends of the color scale, as text.

    """

    png: bytes
    size: tuple[int, int]
    box: tuple[int, int, int, int]
    ends: tuple[str, str]


def draw_heatmap(
    values: NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    log: bool = False,
    low: float | None = None,
    width: int = 640,
    height: int = 330,
    largest: tuple[int, int] = (30, 24),
) -> Heatmap:
    """Draw a table of values as a heat map, from dark (lowest) to bright (highest). NaN is black with dots.

    Args:
        values: [rows, columns].
        rows: a name for each row.
        columns: a name for each column, written upwards.
        log: use a logarithmic scale. Values of 0 or less get the color of the lowest positive value.
        low: the value at the dark end, instead of the lowest value.
        width: the approximate width of the image in pixels. A cell has at least 3.
        height: the approximate height of all cells in pixels.
        largest: the maximum width and height of a cell.

    Example:
        >>> picture = draw_heatmap(np.array([[0.0, 0.5], [1.0, np.nan]]), ["first", "second"], ["the", "cat"])
        >>> picture.ends, picture.box[2:]
        (('0', '1'), (60, 48))

    """
    table, below, above, ends = _scale(values, log, low)
    down = max(3, min(largest[1], height // max(1, table.shape[0])))
    names = _choose_names(rows, down)
    left = max([text_width(name) for name in names.values()], default=0) + 2 * _GAP
    across = max(3, min(largest[0], (width - left - LINE) // max(1, table.shape[1])))
    colors = to_levels(table[None], np.array([below]), np.array([above]))[0]
    if ends[0] == ends[1]:  # values that differ by rounding only get one color
        colors[np.isfinite(table)] = LEVELS // 2
    special = [index for index in (NAN, POS_INF, NEG_INF) if (colors == index).any()]
    cells = np.repeat(np.repeat(colors, across, axis=1), down, axis=0)
    if special and min(across, down) >= _HATCH:
        hatch(cells)
    above_it = _choose_names(columns, across)
    head = max([text_width(name) for name in above_it.values()], default=0) + 2 * _GAP
    bar = draw_scale_bar(ends, special)
    high, long = cells.shape
    mosaic = np.full(
        (head + max(high, LINE) + 2 * _GAP + len(bar) + _GAP, max(left + long + LINE, bar.shape[1] + 2 * _GAP)),
        PAPER,
        dtype=np.uint8,
    )
    mosaic[head - 1 : head + high + 1, left - 1 : left + long + 1] = EDGE
    mosaic[head : head + high, left : left + long] = cells
    for number, name in names.items():
        line, top = render_text(name), head + number * down + (down - LINE) // 2
        mosaic[top : top + LINE, left - _GAP - line.shape[1] : left - _GAP] = line
    for number, name in above_it.items():
        line, start = np.rot90(render_text(name)), left + number * across + (across - LINE) // 2
        mosaic[head - _GAP - len(line) : head - _GAP, start : start + LINE] = line
    mosaic[-len(bar) - _GAP : -_GAP, _GAP : _GAP + bar.shape[1]] = bar
    size = (mosaic.shape[1], mosaic.shape[0])
    return Heatmap(encode_png(mosaic, VIRIDIS), size, (left, head, long, high), ends)


def _scale(
    values: NDArray[np.floating], log: bool, low: float | None
) -> tuple[NDArray[np.float64], float, float, tuple[str, str]]:
    """Return the values to color, both ends of the scale, and the ends as text."""
    table = np.asarray(values, dtype=np.float64)
    known = table[np.isfinite(table) & ((table > 0) | (not log))]
    first, last = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if low is not None:
        first = low
        last = max(last, low)
    ends = (as_text(first), as_text(last))
    if not log or not known.size:
        return table, first, last, ends
    with np.errstate(invalid="ignore"):
        table = np.where(np.isfinite(table), np.log(np.maximum(table, first)), table)
    return table, math.log(first), math.log(last), ends


def _choose_names(names: Sequence[str], step: int) -> dict[int, str]:
    """Return only as many names as fit without overlap."""
    apart = math.ceil(LINE / step)
    short = {number: shorten_token(names[number], _LETTERS) for number in range(0, len(names), apart)}
    return {number: name for number, name in short.items() if name}
