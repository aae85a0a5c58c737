"""Letters that matplotlib's own font lacks are taken from another font of the machine, if one has them."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from matplotlib import rcParams
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from hookscope.pictures.fonts import find_families

CIRCLED = "Ⓐ"  # in STIX, which comes with matplotlib
BOLD = "𝐀"  # in the bold font of DejaVu Serif, whose regular one lacks it, and in the regular one of STIX
SLANTED = "\ue154"  # in a slanted font of STIX alone, which a label does not take by the name of the family


def has(family: str, letter: str) -> bool:
    return has_in_file(findfont(FontProperties(family=[family])), letter)


def has_in_file(path: str, letter: str) -> bool:
    return bool(get_font(path).get_char_index(ord(letter)))


def test_a_letter_is_looked_for_in_the_other_fonts() -> None:
    usual = rcParams["font.family"]
    assert not any(has(family, CIRCLED) for family in usual)
    found = find_families(["the", CIRCLED])
    assert found[: len(usual)] == usual
    assert has(found[-1], CIRCLED)


def test_a_family_is_named_only_if_its_upright_font_has_the_letter() -> None:
    assert any(has_in_file(font.fname, SLANTED) for font in fontManager.ttflist)
    assert all(has(family, SLANTED) for family in find_families([SLANTED])[len(rcParams["font.family"]) :])


def test_a_regular_font_comes_before_a_bold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sorted(fontManager.ttflist, key=lambda font: font.name != "DejaVu Serif")
    assert next(font.weight for font in first if has_in_file(font.fname, BOLD)) == 700
    monkeypatch.setattr(fontManager, "ttflist", first)
    assert has(find_families([BOLD])[-1], BOLD)


def test_nothing_is_added_for_letters_that_are_there_or_nowhere() -> None:
    assert find_families(["the", "é", "Ж"]) == rcParams["font.family"]
    assert find_families(["\U0010fffd"]) == rcParams["font.family"]  # a box of the font of last resort is no letter
