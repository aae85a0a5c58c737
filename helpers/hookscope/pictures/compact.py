"""Store the pixels of a picture in few bytes: as a palette, where no eye sees the difference."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["compact"]

_COLOURS = 256  # that a palette holds
_SHADES, _SHARE = 24, 0.01  # of 255; of the pixels: less than this looks the same


def compact(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture as the bytes of a PNG that looks the same.

    Up to 256 colours are kept as they are. Of more, each pixel takes the nearest of 256 that are chosen for the
    picture, if at most 1 % of the pixels then differ by more than 24 of 255 in red, green or blue and that takes fewer
    bytes; else all are kept.

    Args:
        pixels: uint8 (height, width, 3).

    Example:
        >>> compact(np.zeros((2, 2, 3), dtype=np.uint8))[1:4]
        b'PNG'

    """
    from PIL import Image

    image = Image.fromarray(pixels)
    few = image.getcolors(_COLOURS)
    # With no more colours than the palette has room for, median cut gives each its own place.
    reduced = image.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    off = np.abs(np.asarray(reduced.convert("RGB"), dtype=np.int16) - pixels).max(axis=-1)
    same = off.max() == 0 if few else (off > _SHADES).mean() <= _SHARE
    kept = _encoded(image)
    return min(_encoded(reduced), kept, key=len) if same else kept


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
