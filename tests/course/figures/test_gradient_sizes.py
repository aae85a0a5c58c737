"""The sizes of gradients over a digit: the picture shows what was summed, and says nothing of where it comes from."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from hookscope import samples
from hookscope_course.figures.gradient_sizes import gradient_sizes


def test_the_red_square_is_where_the_gradient_is() -> None:
    gradient = torch.zeros(1, 3, 14, 14)
    gradient[0, 1, 2, 11] = -4.0
    gradient[0, 2, 2, 11] = 1.0
    picture = gradient_sizes(torch.zeros(1, 1, 28, 28), {"A": gradient, "B": torch.zeros(1, 5, 7, 7)}, "Two")
    assert picture.rows == [
        {"picture": "A", "size": "14×14", "smallest": 0.0, "largest": 5.0},
        {"picture": "B", "size": "7×7", "smallest": 0.0, "largest": 0.0},
    ]
    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")).astype(int)
    down, across = np.nonzero((pixels[..., 0] < 130) & (pixels[..., 0] > pixels[..., 1] + 60))
    half = pixels.shape[1] / 2
    assert len(down)
    assert across.max() < half, "the red is in A only"
    assert across.mean() > half / 2, "column 11 of 14"
    assert down.mean() < pixels.shape[0] / 2, "row 2 of 14"


def test_the_alt_text_has_the_names() -> None:
    picture = gradient_sizes(samples.digit(5), {"A": torch.ones(1, 2, 14, 14)}, "Ones")
    assert picture.alt == "1 picture over a digit: A. Ones: a redder square has a larger gradient."


def test_a_small_picture_shows_the_same_numbers() -> None:
    gradients = {"A": torch.ones(1, 2, 14, 14)}
    large, small = (gradient_sizes(samples.digit(5), gradients, "Ones", side=side) for side in (4.1, 2.05))
    wide, narrow = (Image.open(io.BytesIO(each.png)).width for each in (large, small))
    assert abs(wide - 2 * narrow) <= 2
    assert large.rows == small.rows
