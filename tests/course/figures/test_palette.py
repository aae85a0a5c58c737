"""The figures' colors: one file, readable words, and meanings that stay apart for every kind of color vision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from hookscope.pictures.colors import CSS, DARK, LIGHT

ROOT = Path(__file__).parents[3]
THEMES = {"light": LIGHT, "dark": DARK}
GROUNDS = ("page", "frame", "door")
DIRECTIONS = ("forward", "backward")
MEANINGS = (*DIRECTIONS, "hook", "changed", "right", "wrong")
DATA = tuple(name for name in LIGHT if name.startswith("data-"))
WORDS = [
    *product(("ink", "muted"), GROUNDS),
    *((name, "page") for name in (*MEANINGS, *DATA)),
    *((word, f"{name}-soft") for name in (*DIRECTIONS, "hook", "changed", "wrong") for word in ("ink", name)),
    *(("page", ground) for ground in (*MEANINGS, "accent", "muted")),
]
SIGNS = [*product((*MEANINGS, "accent", "line"), GROUNDS)]


def linear(color: str) -> np.ndarray:
    parts = np.array([*bytes.fromhex(color[1:])]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    low, high = sorted(linear(each) @ [0.2126, 0.7152, 0.0722] for each in (one, two))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_words_and_signs_stand_out(theme: dict[str, str]) -> None:
    """Axe cannot see what stands behind a word in a drawing, so contrast is computed here."""
    weak = [(a, b) for a, b in WORDS if contrast(theme[a], theme[b]) < 4.5]
    weak += [(a, b) for a, b in SIGNS if contrast(theme[a], theme[b]) < 3]
    weak += [("white", "shade")] if contrast("#ffffff", theme["shade"]) < 4.5 else []
    assert weak == []


def test_the_ring_of_what_fires_has_an_edge_in_light_and_shines_in_dark() -> None:
    assert contrast(LIGHT["ink"], LIGHT["fire"]) > 4.5
    assert contrast(DARK["page"], DARK["fire"]) > 4.5


def test_dark_is_one_theme_wherever_it_is_asked_for() -> None:
    light, *dark = (dict(re.findall(r"--hs-([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in re.split("body", CSS))
    assert light == LIGHT
    assert dark == [DARK, DARK]


def test_no_color_has_two_meanings() -> None:
    meanings: dict[str, set[str]] = {}
    for theme in THEMES.values():
        for name, color in theme.items():
            meanings.setdefault(color, set()).add(name)
    assert [names for names in meanings.values() if len(names) > 1] == []


# Color vision without one kind of cone: Machado, Oliveira and Fernandes (2009), full strength, on linear RGB.
VISIONS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# A difference in CIE Lab that is just seen is 2.3, side by side (Mahy 1994). Lines and small signs, apart from each
# other, need several times that: 15.
APART = 15
# To the color-blind, a hook has the blue of forward. It is told by its shape: a round peg with a sign. Forward is an
# arrow, or the frame of a box.
OTHER_SIGN = {frozenset(("forward", "hook"))}


def lab(light: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    share = np.clip(to_xyz @ np.clip(light, 0, 1) / [0.95047, 1, 1.08883], 0, None)
    x, y, z = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_meanings_stay_apart_for_every_color_vision(theme: dict[str, str], vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(theme[name])) for name in (*MEANINGS, *DATA)}
    pairs = [pair for of in (MEANINGS, DATA) for pair in combinations(of, 2) if frozenset(pair) not in OTHER_SIGN]
    close = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in pairs}
    assert {pair: distance for pair, distance in close.items() if distance < APART} == {}


HEX = re.compile(r"(?<![\w&/])#(?:[0-9a-fA-F]{6}|[0-9a-fA-F]{3})(?![\w-])")
WRITTEN = ("py", "js", "css", "svg", "md", "toml")
DRAWINGS = {  # fixed, but held to the palette
    "lessons/93_cheat_sheet/one_pass.svg",
    "lessons/site/favicon.svg",
    "helpers/hookscope/graphs/graph.py",
}
# Colors without a meaning.
ELSEWHERE = {
    "lessons/index/lesson.md": "the button: a text of Markdown has no style sheet",
    "helpers/hookscope/palette.toml": "the palette",
    "helpers/hookscope/pictures/colors.py": "its examples",
    "helpers/hookscope/pictures/picture.py": "the white ground of an image, and the gray of its frame in the dark",
    "helpers/hookscope/interp/widgets/patch_map.js": "black or white on the color of a value",
    "helpers/hookscope/interp/widgets/patch_map.css": "black and white on the color of a value",
    "helpers/hookscope/widgets/common.css": "the white ground of an image",
    "helpers/hookscope_course/figures/author_slider/figure.css": "the white ground of an image",
    "helpers/hookscope_course/figures/sliding_filter/figure.css": "black and white on the gray of a pixel",
    "helpers/hookscope_course/figures/where_it_looks/figure.css": "the white ground of an image, and its map of colors",
}


def colors_of(path: Path) -> Iterator[str]:
    for found in HEX.findall(path.read_text(encoding="utf-8")):
        digits = found[1:].lower()
        yield "#" + (digits if len(digits) == 6 else "".join(2 * digit for digit in digits))


def test_a_color_is_written_in_the_palette_only() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): {*colors_of(path)}
        for folder in ("helpers", "lessons")
        for end in WRITTEN
        for path in (ROOT / folder).rglob(f"*.{end}")
    }
    with_colors = {name for name, colors in files.items() if colors}
    assert with_colors - DRAWINGS - {*ELSEWHERE} == set()
    assert {*ELSEWHERE} <= with_colors, "a file of the list has no color any more"
    assert {name: strange for name in DRAWINGS if (strange := files[name] - {*LIGHT.values()})} == {}


def test_letters_and_corners_come_from_one_stack_and_one_scale() -> None:
    """Sizes in pixels are those of a drawing's own units, or of a letter that fills a box."""
    scale = {
        "font-family": r"var\(--hs-(words|mono)\)|inherit",
        "font-size": r"var\(--hs-(tiny|small|large|huge)\)|inherit|1em|[\d.]+px",
        "border-radius": r"var\(--hs-round\)|0( var\(--hs-round\)){2} 0|0|50%",
    }
    own: dict[str, set[str]] = {}
    for path in (ROOT / "helpers").rglob("*.css"):
        if path.name in ("common.css", "class.css"):  # the scale, and JupyterLab's own letters
            continue
        rules = re.findall(r"(font-family|font-size|border-radius): ([^;}]+)", path.read_text(encoding="utf-8"))
        own[str(path)] = {value for name, value in rules if not re.fullmatch(scale[name], value.strip())}
    assert {name: values for name, values in own.items() if values} == {}


def test_letters_of_matplotlib_are_ten_pixels_high_or_more() -> None:
    """Of 100 pixels in an inch: 7.2 points. No figure is wider than the 1280 pixels of a screen."""
    small = {
        path.name: sizes
        for folder in ("helpers", "lessons")
        for path in (ROOT / folder).rglob("*.py")
        if (
            sizes := [
                size
                for size in re.findall(r"fontsize\"?[=:] ?([\d.]+)", path.read_text(encoding="utf-8"))
                if float(size) < 7.2
            ]
        )
    }
    assert small == {}


def test_the_cheat_sheet_shows_both_ways_in_their_colors() -> None:
    drawing = (ROOT / "lessons/93_cheat_sheet/one_pass.svg").read_text(encoding="utf-8")
    for word, name in {".forward": "forward", ".backward": "backward", ".peg": "hook"}.items():
        used = re.findall(rf"(?<![\w.]){re.escape(word)} {{ (?:stroke|fill): (#[0-9a-f]{{6}}) }}", drawing)
        assert used == [LIGHT[name]], word
