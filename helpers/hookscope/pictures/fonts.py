"""Find fonts that together have every letter of the texts in a matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["find_families"]

_BOXES = "Last Resort"  # has a box for every letter
_REGULAR = 400  # weight of labels; another is taken only where no such font has a letter


def find_families(texts: Iterable[str]) -> list[str]:
    """Name the font families for some texts: matplotlib's own, and more where those lack a letter.

    matplotlib takes each letter from the first family that has it. A letter that no font of the machine has stays a
    box.

    Example:
        >>> find_families(["the", "cat"])
        ['sans-serif']

    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    usual = list(rcParams["font.family"])
    lacking = frozenset("".join(texts))
    for family in usual:
        lacking -= _find_glyphs(findfont(FontProperties(family=[family])), lacking)
    return [*usual, *_search_fonts(lacking)]


@lru_cache(maxsize=256)
def _search_fonts(lacking: frozenset[str]) -> tuple[str, ...]:
    """Look through the fonts of the machine for some letters."""
    from matplotlib.font_manager import fontManager

    upright = [font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith(_BOXES)]
    found = []
    for font in sorted(upright, key=lambda font: font.weight != _REGULAR):
        if not lacking:
            break
        if had := _find_glyphs(font.fname, lacking):
            found.append(font.name)
            lacking -= had
    return tuple(found)


def _find_glyphs(path: str, letters: frozenset[str]) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    font = get_font(path)
    return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))
