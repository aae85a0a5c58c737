"""Feature maps as they were drawn: where each lies, what stands there, and the numbers beside them."""

import torch

from hookscope.pictures import palette as pal
from hookscope.pictures.mosaic import letters

TOP = pal.LEVELS - 1

MIDDLE = pal.LEVELS // 2


def drawn(grid, i=0, shape=None):
    """The palette index of every value of map i; each must fill its square (unless it is hatched)."""
    left, top, width, height = grid.boxes[i]
    rows, columns = shape or grid.shape[-2:]
    zoom = width // columns
    assert (columns * zoom, rows * zoom) == (width, height)
    tile = grid.mosaic[top : top + height, left : left + width].reshape(rows, zoom, columns, zoom)
    squares = tile.transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    values = squares.max(axis=-1)
    for special in (pal.NAN, pal.POS_INF, pal.NEG_INF):
        values[(squares == special).any(axis=-1)] = special
    plain = values <= TOP
    assert (squares[plain] == values[plain][:, None]).all()
    return values.tolist()


def label(grid, i=0):
    """The text pixels above map i."""
    left, top, width, _ = grid.boxes[i]
    return grid.mosaic[top - 13 : top - 2, left : left + width] == pal.INK


def says(pixels, text):
    mask = letters(text)
    rest = pixels[:, mask.shape[1] :]
    return bool((pixels[:, : mask.shape[1]] == mask).all() and not rest.any())


def numbers(grid, key):
    return [row[key] for row in grid.rows]


BASE = (torch.arange(2 * 3 * 4 * 5) % 50).reshape(2, 3, 4, 5)
