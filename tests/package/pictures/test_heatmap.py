"""A table as a picture: colours follow the numbers, cells lie where it says, NaN has a colour of its own."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hookscope.pictures.heatmap import Heatmap, draw_heatmap
from hookscope.pictures.palette import LEVELS, NAN


def cells(drawn: Heatmap, shape: tuple[int, int]) -> np.ndarray:
    """The palette index in the upper left of each cell, where hatching leaves it."""
    image = np.array(Image.open(io.BytesIO(drawn.png)))
    assert image.shape == drawn.size[::-1]
    left, top, width, height = drawn.box
    rows, columns = shape
    down, across = height // rows, width // columns
    return image[top : top + height : down, left : left + width : across]


def test_colours_follow_the_numbers_from_the_lowest_or_from_a_given_end() -> None:
    values = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, np.nan]])
    found = cells(drawn := draw_heatmap(values, ["a", "b"], ["x", "y", "z"]), (2, 3))
    assert found[0].tolist() == [0, LEVELS // 2, LEVELS - 1]
    assert found[1, 2] not in range(LEVELS)
    assert drawn.ends == ("1", "3")
    from_0 = cells(drawn := draw_heatmap(values, ["a", "b"], ["x", "y", "z"], low=0.0), (2, 3))
    assert from_0[0].tolist() == [round(at / 3 * (LEVELS - 1)) for at in (1, 2, 3)]
    assert drawn.ends == ("0", "3")


def test_a_logarithm_keeps_small_differences_in_sight() -> None:
    values = np.array([[1.0, 10.0, 100.0, 0.0, np.nan]])
    found = cells(drawn := draw_heatmap(values, ["a"], list("vwxyz"), log=True), (1, 5))
    assert found[0, :4].tolist() == [0, LEVELS // 2, LEVELS - 1, 0]
    assert drawn.ends == ("1", "100")


@pytest.mark.parametrize("values", [np.full((2, 2), 4.0), np.full((2, 2), np.nan), np.zeros((2, 2))])
@pytest.mark.parametrize("log", [False, True])
def test_equal_numbers_and_none(values: np.ndarray, log: bool) -> None:
    found = cells(draw_heatmap(values, ["a", "b"], ["", ""], log=log), (2, 2))
    if np.isnan(values).any():
        assert (found >= NAN).all()
    else:
        assert len(np.unique(found)) == 1
        assert (found < LEVELS).all()
        rounded = cells(
            draw_heatmap(values * (1 + 1e-7 * np.arange(4).reshape(2, 2)), ["a", "b"], ["", ""], log=log), (2, 2)
        )
        assert (rounded == found).all()


def test_it_fits_the_width_as_long_as_a_cell_can_be_seen() -> None:
    names = [f"token {place}" for place in range(60)]
    for width in (300, 500, 800):
        drawn = draw_heatmap(np.random.default_rng(0).random((4, 60)), list("abcd"), names, width=width)
        assert drawn.size[0] <= width
        assert drawn.box[2] >= 60 * 3
    assert draw_heatmap(np.ones((2, 500)), list("ab"), [""] * 500, width=300).box[2] == 1500
    names = ["<img>", "\n", "unbelievably long indeed", "\u7dd1"]
    assert draw_heatmap(np.ones((4, 4)), names, names).png.startswith(b"\x89PNG")
