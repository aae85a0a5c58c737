"""Render text with Pillow's built-in font, as palette indices."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.pictures.palette import EDGE, INK, PAPER, SHADE

__all__ = ["LINE", "render_text", "replace_missing", "text_width"]

LINE = 17
"""Height of a line of text, in pixels."""

_SIZE, _RISE = 13, 2  # pixels: the font size, and a shift upwards because the font leaves space above
_STEPS = np.array([PAPER, EDGE, SHADE, INK], dtype=np.uint8)  # from no ink to full ink
_LIKE = str.maketrans({"×": "x", "−": "-", "–": "-", "→": "->", "…": "...", "²": "2"})


@lru_cache(maxsize=4096)
def render_text(text: str) -> NDArray[np.uint8]:
    """Return a text as palette indices, uint8 (`LINE`, width), with two shades of gray at the edges.

    A character that the font lacks becomes a similar one, or ``?``.

    Example:
        >>> render_text("12").shape[0] == LINE, render_text("").shape[1]
        (True, 0)

    """
    from PIL import Image, ImageDraw

    font, text = _font(), replace_missing(text)
    image = Image.new("L", (math.ceil(font.getlength(text)), LINE))
    if image.width:
        ImageDraw.Draw(image).text((0, -_RISE), text, fill=255, font=font)
    line = _STEPS[(np.array(image, dtype=np.uint16).reshape(LINE, -1) * 3 + 127) // 255]
    line.flags.writeable = False
    return line


def text_width(text: str) -> int:
    """Return the width of a text, in pixels."""
    return int(render_text(text).shape[1])


def replace_missing(text: str) -> str:
    """Replace each character that the font lacks with a similar one, or with ``?``.

    Example:
        >>> replace_missing("2×2 → 緑")
        '2x2 -> ?'

    """
    return "".join(letter if _has_glyph(letter) else "?" for letter in text.translate(_LIKE))


@lru_cache(maxsize=1)
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=_SIZE)  # a bitmap font if Pillow was built without FreeType


@lru_cache(maxsize=4096)
def _has_glyph(letter: str) -> bool:
    """Return whether the font has a character. It draws the same box for all missing ones."""
    if letter.isascii():
        return letter.isprintable()
    try:
        return bytes(_font().getmask(letter)) != bytes(_font().getmask("\U0010fffd"))
    except UnicodeError:  # the bitmap font
        return False
