"""The attention picker on a bare page: by keyboard, in both themes, on a narrow page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def test_attention_picker(figures: FigurePage) -> None:
    stage = draw(figures, "AttentionPicker")
    image, caption = stage.locator("img"), stage.locator(".at-caption")
    expect(caption).to_contain_text("head 0 of 4")
    expect(stage.locator(".at-numbers tbody tr")).to_have_count(4)
    assert figures.page.locator("img[src='x']").count() == 0
    figures.settled(stage)
    first = image.get_attribute("src")
    assert image.evaluate("each => getComputedStyle(each).imageRendering") == "auto"  # there are letters on it

    # By keyboard: head 3 of the first layer, then the second layer, which has two.
    stage.get_by_label("Head", exact=True).focus()
    for _ in range(3):
        figures.page.keyboard.press("ArrowDown")
    figures.told("print(picker.head)", "3")
    expect(caption).to_contain_text("head 3 of 4")
    assert image.get_attribute("src") != first
    stage.get_by_label("Layer", exact=True).focus()
    figures.page.keyboard.press("ArrowDown")
    figures.told("print(picker.layer, picker.head)", "1.self_attn 1")
    expect(caption).to_contain_text("head 1 of 2")
    expect(image).to_have_attribute("alt", figures.kernel("print(picker.alt)"))
    expect(stage.get_by_label("Sample", exact=True)).to_be_hidden()

    # From Python, as a lesson would.
    figures.kernel("picker.layer, picker.head = '0.self_attn', 2")
    expect(stage.get_by_label("Layer", exact=True)).to_have_value("0.self_attn")
    expect(caption).to_contain_text("head 2 of 4")
