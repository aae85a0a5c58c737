"""The figures' colors: axe cannot see what stands behind a word in a drawing, so contrast is computed here."""

from __future__ import annotations

import re
from itertools import product

import pytest

from hookscope_course.figures.kit import KIT

SHEET = (KIT / "scene.css").read_text(encoding="utf-8")
LIGHT, DARK, DARK_AUTO = (
    dict(re.findall(r"--sc-([a-z-]+): (#[0-9a-f]+);", block))
    for block in re.findall(r"\{([^{}]*--sc-page:[^{}]*)\}", SHEET)
)
GROUNDS = ("page", "frame", "door")
WORDS = [
    *product(("ink", "soft"), GROUNDS),
    *((way, "page") for way in ("forward", "backward", "good", "bad")),
    *(("ink", f"{way}-soft") for way in ("forward", "backward")),
    ("on-peg", "peg"),
]
SIGNS = [*product(("forward", "backward", "peg"), GROUNDS), *product(("line",), ("page", "frame"))]


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_and_signs_stand_out(theme):
    weak = [(a, b) for a, b in WORDS if contrast(theme[a], theme[b]) < 4.5]
    weak += [(a, b) for a, b in SIGNS if contrast(theme[a], theme[b]) < 3]
    assert weak == []


def test_the_ring_of_what_fires_has_an_edge_in_light_and_shines_in_dark():
    assert contrast(LIGHT["ink"], LIGHT["fire"]) > 4.5
    assert contrast(DARK["page"], DARK["fire"]) > 4.5


def test_dark_is_one_theme_wherever_it_is_asked_for():
    assert DARK == DARK_AUTO
    assert set(DARK) == set(LIGHT)


def test_forward_and_backward_differ_to_the_color_blind():
    """Blue and orange differ in their blue part, which those who mix up red and green see."""
    for theme in (LIGHT, DARK):
        forward, backward = (int(theme[way][5:7], 16) for way in ("forward", "backward"))
        assert forward - backward > 100
