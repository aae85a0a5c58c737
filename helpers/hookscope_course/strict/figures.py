"""Find the figures in a cell's outputs, and say whether two of them look different."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["DATA_URI", "describe_difference", "find_figures", "replace_random_ids"]

KINDS = ("image/png", "image/jpeg", "image/webp")
DATA_URI = r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=]+)"

# A figure is looked at in squares of 12 x 12 pixels, about a letter. It looks different if in one of them a few pixels
# changed from ink to paper, or nearly all changed their shade. Measured: a digit of 8 points at 72 dpi that became
# another has 3 such pixels, other letters, ticks, bars and points 4 to 144; blur, half a pixel's shift and JPEG have 2
# at most. Of the square, 101 pixels changed by over 20 shades in the worst of these; a paler area changes all 144.
SIDE = 12
INK, FEW = 128, 3
SHADES, NEARLY_ALL = 20, 120


def find_figures(outputs: Iterable[Any]) -> list[bytes]:
    """List the figures in a cell's outputs, in order; one that is both alone and in HTML counts once."""
    found: list[bytes] = []
    for output in outputs:
        data = output.get("data", {})
        in_html = re.findall(
            DATA_URI, _join_lines(data.get("text/html", ""))
        )  # where a built notebook has its only copy
        alone = [_join_lines(data[kind]) for kind in KINDS if kind in data]
        found += map(base64.b64decode, in_html or alone)
    return found


def describe_difference(saved: bytes, now: bytes) -> str:
    """Say what makes two figures look different; empty if they look the same.

    Changes of less than 20 of 255 shades are not seen, nor pale ones in an area smaller than 12 x 12 pixels.

    Args:
        saved: a PNG, JPEG or WebP.
        now: another one.

    Example:
        >>> def gray(shade):
        ...     file = io.BytesIO()
        ...     Image.new("L", (40, 40), shade).save(file, "png")
        ...     return file.getvalue()
        >>> describe_difference(gray(100), gray(110)), describe_difference(gray(100), gray(200))
        ('', 'most changes are around pixel (6, 6), in 144 of 144 pixels there')

    """
    if saved == now:
        return ""
    a, b = _read_pixels(saved), _read_pixels(now)
    if a.shape != b.shape:
        return f"{a.shape[1]}×{a.shape[0]} pixels became {b.shape[1]}×{b.shape[0]}"
    change = np.abs(a - b).max(axis=-1)
    area = min(SIDE, change.shape[0]) * min(SIDE, change.shape[1])
    for shades, least in ((INK, FEW), (SHADES, NEARLY_ALL * area / SIDE**2)):
        counts = _count_in_squares(change > shades)
        if counts.max() >= least:
            top, left = np.unravel_index(counts.argmax(), counts.shape)
            pixel = (int(left) + SIDE // 2, int(top) + SIDE // 2)
            return f"most changes are around pixel {pixel}, in {counts.max()} of {area} pixels there"
    return ""


def replace_random_ids(svg: str) -> str:
    """Number the ids of an SVG and leave out its date: matplotlib makes both anew for each drawing.

    Example:
        >>> replace_random_ids('<path id="m91ab"/><use href="#m91ab"/>')
        '<path id="id0"/><use href="#id0"/>'

    """
    svg = re.sub(r"<dc:date>.*?</dc:date>", "<dc:date/>", svg, flags=re.DOTALL)
    numbers = {name: f"id{number}" for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)))}
    return re.sub(r'(?<=\bid=")[^"]+(?=")|(?<=#)[\w.-]+', lambda found: numbers.get(found[0], found[0]), svg)


def _join_lines(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def _read_pixels(figure: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return the colors of a figure on white paper, of shape (height, width, 3)."""
    image = Image.open(io.BytesIO(figure)).convert("RGBA")
    paper = Image.new("RGBA", image.size, "white")
    paper.alpha_composite(image)
    return np.asarray(paper.convert("RGB"), dtype=np.int16)


def _count_in_squares(changed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Count the changed pixels in every square of the picture."""
    sums = np.zeros((changed.shape[0] + 1, changed.shape[1] + 1), dtype=np.int64)
    sums[1:, 1:] = changed.cumsum(0).cumsum(1)
    high, wide = min(SIDE, changed.shape[0]), min(SIDE, changed.shape[1])
    counts: np.ndarray[Any, Any] = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    return counts
