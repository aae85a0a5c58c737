"""A picture is stored in a palette where nobody sees it, and as it is where somebody would."""

import base64
import io

import numpy as np
from PIL import Image

from lessons.build.image_compression import shrink, shrink_in


def png(pixels, mode=None):
    file = io.BytesIO()
    Image.fromarray(pixels, mode).save(file, "PNG", optimize=True)
    return file.getvalue()


def opened(pixels):
    image = Image.open(io.BytesIO(shrink(png(pixels))))
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
    assert len(shrink(png(grainy))) < len(png(grainy)) / 2
    mode, pixels = opened(smooth.astype(np.uint8))  # whose rows differ by the same everywhere: small as it is
    assert mode == "RGB"
    assert (pixels == smooth).all()


def test_colours_that_a_palette_would_change_are_all_kept():
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    mode, pixels = opened(noise)
    assert mode == "RGB"
    assert (pixels == noise).all()


def test_what_is_partly_transparent_stays_as_it_is():
    glass = np.zeros((50, 50, 4), dtype=np.uint8)
    glass[:20, :, 3] = 255
    assert shrink(png(glass)) == png(glass)


def test_every_picture_in_html_is_made_smaller_and_nothing_else_changes():
    large = io.BytesIO()
    Image.new("RGB", (60, 60), "teal").save(large, "PNG", compress_level=0)
    text = base64.b64encode(large.getvalue()).decode()
    page = '<img src="data:image/png;base64,{0}" alt="Teal."><p>{1}</p><img src="data:image/png;base64,{0}">'
    small = base64.b64encode(shrink(large.getvalue())).decode()
    assert len(small) < len(text) / 10
    assert shrink_in(page.format(text, "Words.")) == page.format(small, "Words.")
