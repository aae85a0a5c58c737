"""A picture is stored in a palette where nobody sees it, and as it is where somebody would."""

import io

import numpy as np
from PIL import Image

from hookscope.pictures.compact import compact


def opened(pixels):
    image = Image.open(io.BytesIO(compact(pixels)))
    return image.mode, np.asarray(image.convert("RGB")).astype(int)


def test_up_to_256_colours_stay_as_they_are():
    grey = np.random.default_rng(0).permutation(np.arange(128 * 128, dtype=np.uint8)).reshape(128, 128)
    few = np.stack([grey, 255 - grey, grey // 2], axis=-1)
    mode, pixels = opened(few)
    assert mode == "P"
    assert (pixels == few).all()


def test_shades_that_nobody_tells_apart_share_a_place_in_the_palette():
    x, y = np.meshgrid(np.arange(200), np.arange(200))
    smooth = np.stack([x, y, np.full_like(x, 90)], axis=-1)
    grainy = (smooth + np.random.default_rng(0).integers(0, 8, smooth.shape)).astype(np.uint8)
    mode, pixels = opened(grainy)
    assert mode == "P"
    assert 0 < np.abs(pixels - grainy).max() <= 24
    plain = io.BytesIO()
    Image.fromarray(grainy).save(plain, "PNG", optimize=True)
    assert len(compact(grainy)) < len(plain.getvalue()) / 2
    mode, pixels = opened(smooth.astype(np.uint8))  # whose rows differ by the same everywhere: small as it is
    assert mode == "RGB"
    assert (pixels == smooth).all()


def test_colours_that_a_palette_would_change_are_all_kept():
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    mode, pixels = opened(noise)
    assert mode == "RGB"
    assert (pixels == noise).all()
