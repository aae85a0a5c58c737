"""Text in pictures is drawn in an outline font at a size to read, and what the font lacks is replaced."""

import numpy as np
import pytest

from hookscope.pictures import palette as pal
from hookscope.pictures.pixel_text import LINE, render_text, replace_missing, text_width


def test_letters_are_dark_on_paper_with_soft_edges():
    line = render_text("15 dead")
    assert line.shape == (LINE, text_width("15 dead"))
    assert set(np.unique(line)) == {pal.PAPER, pal.EDGE, pal.SHADE, pal.INK}
    assert not line.flags.writeable
    ink = np.flatnonzero((render_text("H") != pal.PAPER).any(axis=1))
    assert len(ink) >= 9  # pixels: the bitmap font's capitals had 7
    for row in render_text("|gÉ")[[0, -1]]:  # nothing is cut off at the top or the bottom
        assert (row == pal.PAPER).all()


def test_the_greys_between_ink_and_paper_fall_evenly():
    colours = pal.palette(pal.VIRIDIS)[[pal.PAPER, pal.EDGE, pal.SHADE, pal.INK], 0].astype(int)
    assert (np.diff(colours) < -50).all()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1 (Conv2d)", "conv1 (Conv2d)"),
        ("2×2 → 3", "2x2 -> 3"),
        ("−1 … 4", "-1 ... 4"),
        ("a\tb\x00", "a?b?"),
        ("緑", "?"),
    ],
)
def test_what_the_font_lacks_is_replaced(text, shown):
    assert replace_missing(text) == shown
    assert np.array_equal(render_text(text), render_text(shown))
