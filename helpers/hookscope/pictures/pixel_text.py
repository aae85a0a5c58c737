"""Text in a picture: Pillow's own outline font, as colours of an indexed picture."""

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

_SIZE, _RISE = 13, 2  # pixels: of the letters, and how far up they are moved, since the font leaves room above
_STEPS = np.array([PAPER, EDGE, SHADE, INK], dtype=np.uint8)  # from no ink to full ink
_LIKE = str.maketrans({"×": "x", "−": "-", "–": "-", "→": "->", "…": "...", "²": "2"})


@lru_cache(maxsize=4096)
def render_text(text: str) -> NDArray[np.uint8]:
    """Return ``text`` as palette indices, uint8 (`LINE`, width): ink on paper, with two greys at the edges.

    What the font lacks becomes what looks like it, or ``?``.

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
    """Replace what the font lacks by what looks like it, or by ``?``.

    Example:
        >>> replace_missing("2×2 → 緑")
        '2x2 -> ?'

    """
    return "".join(letter if _has_glyph(letter) else "?" for letter in text.translate(_LIKE))


@lru_cache(maxsize=1)
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=_SIZE)  # a bitmap font where Pillow was built without FreeType


@lru_cache(maxsize=4096)
def _has_glyph(letter: str) -> bool:
    """Tell whether the font has a letter; in the place of one that it lacks it draws always the same box."""
    if letter.isascii():
        return letter.isprintable()
    try:
        return bytes(_font().getmask(letter)) != bytes(_font().getmask("\U0010fffd"))
    except UnicodeError:  # the bitmap font
        return False
