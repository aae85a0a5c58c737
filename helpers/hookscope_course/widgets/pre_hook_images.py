"""Draw the input of a layer without and with a hook, and describe the colors."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.pictures.mosaic import average_blocks, to_levels
from hookscope.pictures.palette import COOLWARM, INK, NAN, NEG_INF, PAPER, POS_INF, VIRIDIS, palette
from hookscope.pictures.picture import as_text
from hookscope.pictures.pixel_text import render_text

__all__ = ["ImagePainter", "draw_poster", "encode", "format_percent", "round_up", "to_json_number"]

_LARGEST = 448  # pixels along a side; larger images are shrunk
_SPECIAL = {NAN: "NaN black", POS_INF: "+inf pink", NEG_INF: "-inf dark red"}
_BLUE = (11, 92, 173)

Pixels = NDArray[np.uint8]
Bars = Sequence[tuple[str, float | None, float | None]]


class ImagePainter:
    """Draws tensors with the shape of `original`: the last two axes, on the scale of the original.

    If the original is the image itself and has 3 channels, it is drawn in color. Otherwise the mean over the channels
    is drawn.

    Attributes:
        in_color: whether the images are drawn in color.
        scale: the values of the darkest and the brightest color.
        span: the difference between the highest and the lowest value of the original.

    """

    def __init__(self, original: Tensor, image: Tensor) -> None:
        same = torch.equal(original.reshape(-1).cpu(), image.reshape(-1).cpu())
        self.in_color = same and original.shape[-3:-2] == (3,)
        low, high = _find_range(original)
        self.span = high - low if high > low else 1.0
        if not self.in_color:
            low, high = _find_range(torch.from_numpy(_average_channels(original)))
        self.scale = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high if high > low else low + 1)

    def paint(self, x: Tensor) -> tuple[Pixels, str]:
        """Return RGB pixels, uint8 (height, width, 3), and a description of the colors."""
        low, high = self.scale
        dark, bright, many = as_text(low), as_text(high), math.prod(x.shape[:-2])
        if self.in_color and x.isfinite().all():
            maps = x.reshape(3, *x.shape[-2:]).cpu().double().numpy()
            steps = np.clip((average_blocks(maps, _get_shrink(x)) - low) / (high - low), 0, 1)
            pixels = np.rint(steps * 255).astype(np.uint8).transpose(1, 2, 0)
            note = f"red, green and blue from {dark} (dark) to {bright} (full)"
        else:
            maps = _average_channels(x)
            pixels, special = _paint_map(maps, low, high, _get_shrink(x), VIRIDIS)
            note = f"{_describe_mean(many)}{dark} (dark) to {bright} (bright){special}"
        outside = int((np.isfinite(maps) & ((maps < low) | (maps > high))).sum())
        beyond = f"; {outside} of {maps.size} values are outside and have the end colors" if outside else ""
        smaller = f"; drawn at 1/{_get_shrink(x)} size" if _get_shrink(x) > 1 else ""
        return np.ascontiguousarray(pixels), note + beyond + smaller

    @staticmethod
    def difference(edited: Tensor, original: Tensor) -> tuple[Pixels, str]:
        """Return pixels of edited minus original, on a scale around 0, and a description of the colors."""
        difference = edited.cpu().double() - original.cpu().double()
        maps = _average_channels(difference)
        finite = np.abs(maps[np.isfinite(maps)])
        reach = float(finite.max()) if finite.size else 0.0
        pixels, special = _paint_map(maps, -(reach or 1.0), reach or 1.0, _get_shrink(edited), COOLWARM)
        mean = _describe_mean(math.prod(edited.shape[:-2]))
        if reach == 0 and not special:
            same = not difference.count_nonzero()
            return pixels, "no difference: 0 (grey) everywhere" if same else f"{mean}0 (grey) everywhere"
        return pixels, f"{mean}{as_text(-reach)} (blue) over 0 (grey) to {as_text(reach)} (red){special}"


def _find_range(x: Tensor) -> tuple[float, float]:
    """Return the lowest and highest finite value; 0 and 1 if there is none."""
    finite = x[x.isfinite()]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def round_up(number: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … that is not less."""
    unit = 10.0 ** math.floor(math.log10(number))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= number * 0.999)


def _get_shrink(x: Tensor) -> int:
    return math.ceil(max(x.shape[-2:]) / _LARGEST)


def _average_channels(x: Tensor) -> NDArray[np.float64]:
    """Return the mean over all axes but the last two, as one map (1, rows, columns)."""
    return x.reshape(-1, *x.shape[-2:]).cpu().double().mean(dim=0, keepdim=True).numpy()


def _paint_map(maps: NDArray[np.float64], low: float, high: float, shrink: int, colors: Pixels) -> tuple[Pixels, str]:
    """Return the pixels of one map, and the special values in it."""
    indices = to_levels(average_blocks(maps, shrink), np.array([low]), np.array([high]))[0]
    special = [text for index, text in _SPECIAL.items() if (indices == index).any()]
    return palette(colors)[indices], "".join(f", {text}" for text in special)


def _describe_mean(many: int) -> str:
    return f"mean of {many} channels, " if many > 1 else ""


def encode(pixels: Pixels) -> bytes:
    """Return RGB pixels as a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def draw_poster(pictures: Mapping[str, Pixels], bars: Bars) -> Pixels:
    """Draw images of one size next to each other, with their names, and two bars for each class below.

    The table of the widget has the probabilities.
    """
    ((height, width, _),) = {pixels.shape for pixels in pictures.values()}
    zoom = max(1, 168 // max(height, width))
    high, wide = zoom * height, zoom * width
    across = max(wide, 168) + 12
    table = palette(VIRIDIS)
    canvas = np.full((high + 46 + 16 * len(bars), len(pictures) * across + 12, 3), table[PAPER], dtype=np.uint8)
    for place, (name, pixels) in enumerate(pictures.items()):
        left = 12 + place * across
        _draw_text(canvas, 4, left, name)
        canvas[20 : 20 + high, left : left + wide] = pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)
    _draw_text(canvas, high + 26, 12, "softmax of the output: outlined = original, filled = edited")
    start, room = 130, canvas.shape[1] - 130 - 12
    for line, (name, before, after) in enumerate(bars):
        top = high + 43 + 16 * line
        _draw_text(canvas, top, 12, name[:18])
        long, filled = round(room * (before or 0)), round(room * (after or 0))
        canvas[top : top + 6, start : start + 1 + long] = table[INK]
        canvas[top + 1 : top + 5, start + 1 : start + long] = table[PAPER]
        canvas[top + 6 : top + 12, start : start + 1 + filled] = _BLUE
    return canvas


def _draw_text(canvas: Pixels, top: int, left: int, text: str) -> None:
    line = render_text(text)[: canvas.shape[0] - top, : canvas.shape[1] - left]
    canvas[top : top + line.shape[0], left : left + line.shape[1]] = palette(VIRIDIS)[line]


def to_json_number(number: Tensor) -> float | None:
    """Return a number for the page; None for NaN and infinity, which JSON does not have."""
    return float(number) if number.isfinite() else None


def format_percent(number: float | None) -> str:
    """Format a probability in percent."""
    return "NaN" if number is None else f"{100 * number:.1f} %"
