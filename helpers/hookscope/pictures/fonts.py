"""Find fonts that together have every character of the texts in a matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["find_families"]

_BOXES = "Last Resort"  # draws a box for every character
_REGULAR = 400  # the weight of labels; other weights are a last resort


def find_families(texts: Iterable[str]) -> list[str]:
    """Return the font families for these texts: matplotlib's default ones, and more if a character is missing there.

    matplotlib takes each character from the first family that has it, and draws a box if no font has it.

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
    """Search the installed fonts for these characters."""
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
