"""The token picker on a bare page: by mouse and keyboard, in both themes, on a narrow page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes


def test_token_picker(figures: FigurePage) -> None:
    stage = draw(figures, "TokenPicker")
    told, pad, image = stage.locator(".tk-told"), stage.locator(".tk-map"), stage.locator(".tk-map img")
    tokens = stage.get_by_role("listbox", name="Tokens").get_by_role("option")
    lines = stage.locator(".tk-lines path")
    expect(told).to_contain_text("1.2, token 5 mat")
    expect(tokens).to_have_count(6)
    assert figures.page.locator("img[src='x']").count() == 0
    assert stage.locator("[role=option][tabindex='0']").count() == 1  # the Tab key stops once
    figures.settled(stage)
    assert lines.count() == int(figures.kernel("print(sum(weight >= 0.005 for weight in picker._weights[:5]))")) > 0
    first = image.get_attribute("src")

    # By keyboard: in the text, and in the map.
    tokens.nth(5).focus()
    for key in ("ArrowLeft", "ArrowLeft", "Home", "ArrowRight"):
        figures.page.keyboard.press(key)
    expect(tokens.nth(1)).to_be_focused()
    figures.told("print(picker.token, picker.layer)", "1 1.2")
    pad.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowRight"):  # no farther than the first row
        figures.page.keyboard.press(key)
    figures.told("print(picker.token, picker.layer)", "2 1.1")
    expect(told).to_have_text(figures.kernel("print(picker._description)"))
    expect(stage.locator("tr[aria-current]")).to_contain_text("1.1")
    assert image.get_attribute("src") == first  # the map is the same, and another cell is marked

    # By mouse: the lower left cell, which is the last layer and the first token.
    left, top, width, height = (int(part) for part in figures.kernel("print(*picker._box)").split())
    wide = int(figures.kernel("print(picker._size[0])"))
    scale = pad.evaluate("pad => pad.getBoundingClientRect().width") / wide
    pad.click(position={"x": (left + width / 12) * scale, "y": (top + height * 5 / 6) * scale})
    figures.told("print(picker.token, picker.layer)", "0 1.2")
    pad.click(position={"x": 2, "y": 2})  # beside the cells
    figures.told("print(picker.token, picker.layer, picker.head)", "0 1.2 0")
    cell, part = measure_boxes(stage.locator(".tk-map .tk-cell"), pad)
    assert cell["x"] - part["x"] == pytest.approx(left * scale, abs=2)
    assert cell["y"] - part["y"] == pytest.approx((top + height * 2 / 3) * scale, abs=2)

    # Another map, and attention as a map, of a layer with fewer heads.
    stage.get_by_label("Show", exact=True).select_option("norm")
    figures.told("print(picker.show)", "norm")
    assert image.get_attribute("src") != first
    expect(image).to_have_attribute("alt", figures.kernel("print(picker.alt)"))
    figures.kernel("picker.layer, picker.token, picker.head, picker.look = '1.0', 3, 3, 'map'")
    expect(lines).to_have_count(0)
    look = stage.locator(".tk-look img")
    expect(look).to_have_attribute("alt", figures.kernel("print(picker.look_alt)"))
    expect(stage.get_by_label("Head", exact=True)).to_have_value("3")
    pad.press("End")
    pad.press("ArrowDown")
    pad.press("ArrowDown")
    figures.told("print(picker.layer, picker.token, picker.head)", "1.2 5 1")
    stage.get_by_text("Show the PyTorch code").press("Enter")
    expect(stage.get_by_role("group", name="The PyTorch code")).to_have_text(figures.kernel("print(picker.code)"))


STORY = """
from hookscope import samples
from hookscope.widgets import TokenPicker
"""
MAKE = """
picker = TokenPicker(
    samples.story_lm(), "the dogs near the cat", tokenizer=samples.story_tokens, vocabulary=samples.STORY_WORDS
)
picker
"""


def test_a_text_is_typed(figures: FigurePage) -> None:
    figures.scratch(STORY, MAKE)
    stage = figures.stage("Token picker")
    entry, tokens = stage.get_by_label("Text"), stage.get_by_role("listbox", name="Tokens").get_by_role("option")
    expect(stage.locator(".tk-about")).to_contain_text("Click a cell of the map")
    expect(entry).to_have_value("the dogs near the cat")
    entry.fill("Mary gave Leo the ball to")
    entry.press("Enter")
    expect(tokens).to_have_count(7)
    figures.told("print(picker.text, picker.token)", "Mary gave Leo the ball to 6")
    expect(stage.locator("tr[aria-current]")).to_contain_text("MLP")
    expect(stage.locator("tr.tk-here")).to_have_count(2)
    entry.fill("the wolves")
    stage.get_by_role("button", name="Read").click()
    expect(stage.get_by_role("alert")).to_contain_text("'wolves' is not in the vocabulary")
    expect(tokens).to_have_count(7)
    entry.fill("the dog near the cats")
    entry.press("Enter")
    expect(tokens).to_have_count(6)
    expect(stage.get_by_role("alert")).to_be_hidden()
