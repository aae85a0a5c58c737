"""Store the pictures of a built notebook in few bytes: as a palette, where no eye sees the difference.

In a learner's kernel every picture keeps all its colours.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from hookscope_course.strict.figures import describe_difference

__all__ = ["shrink"]

_COLOURS = 256  # that a palette holds
_SHADES, _SHARE = 24, 0.01  # of 255; of the pixels


def shrink(png: bytes) -> bytes:
    """Return a PNG that looks the same.

    Up to 256 colours are kept as they are. Of more, each pixel takes the nearest of 256 that are chosen for the
    picture, if at most 1 % of the pixels then differ by more than 24 of 255, and the tests of the notebooks find no
    difference. What is not smaller that way, or partly transparent, stays as it is.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (100, 100)).save(file, "PNG")
        >>> len(shrink(file.getvalue())) < len(file.getvalue())
        True

    """
    stored = Image.open(io.BytesIO(png))
    if stored.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        return png
    image = stored.convert("RGB")
    few = image.getcolors(_COLOURS)
    # With no more colours than the palette has room for, median cut gives each its own place.
    reduced = image.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    smaller = _encode_png(reduced)
    off = np.abs(np.asarray(reduced.convert("RGB"), dtype=np.int16) - np.asarray(image)).max(axis=-1)
    same = off.max() == 0 if few else (off > _SHADES).mean() <= _SHARE and not describe_difference(png, smaller)
    return min(png, _encode_png(image), *([smaller] if same else []), key=len)


def _encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
