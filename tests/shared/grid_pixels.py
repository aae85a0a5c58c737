"""Feature maps as they were drawn: where each lies, what stands there, and the numbers beside them."""

import torch

from hookscope.pictures import palette as pal
from hookscope.pictures.pixel_text import LINE, render_text

TOP = pal.LEVELS - 1

MIDDLE = pal.LEVELS // 2


def read_map(grid, i=0, shape=None):
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


def read_label(grid, i=0):
    """The line of text above map i, as palette indices."""
    left, top, width, _ = grid.boxes[i]
    return grid.mosaic[top - LINE : top, left : left + width]


def shows_text(pixels, text):
    line = render_text(text)
    written, rest = pixels[:, : line.shape[1]], pixels[:, line.shape[1] :]
    return bool((written[:-1] == line[:-1]).all() and (rest[:-1] == pal.PAPER).all())  # the last row is the frame


def list_numbers(grid, key):
    return [row[key] for row in grid.rows]


BASE = (torch.arange(2 * 3 * 4 * 5) % 50).reshape(2, 3, 4, 5)
