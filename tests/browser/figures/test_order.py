"""The order player on a bare page: by mouse, by keyboard, in both themes, on a narrow page."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage

HOSTILE = "<img src=x onerror=alert(1)>"
LONG = """
with hookscope.record(model) as long:
    for _ in range(100):
        model(x).sum().backward()
many = OrderPlayer(long)
many
"""


def test_player(figures: FigurePage) -> None:
    stage = draw(figures, "OrderPlayer", LONG)
    words, lit = stage.locator(".op-words"), stage.locator(".op-event.op-lit")
    expect(words).to_have_text("No hook has fired yet. 20 will.")
    expect(lit).to_have_count(0)

    # By mouse: buttons, a click on a line, the slider.
    press(stage, "Next")
    expect(words).to_have_text("forward pre-hook of layer (root), call 1: args ((1, 4),)")
    expect(stage.locator(".op-badge")).to_have_text("→ forward")
    expect(lit).to_contain_text("forward_pre")
    expect(stage.locator(".op-facts")).not_to_contain_text("inside")  # it is the root's own hook
    before = stage.screenshot()
    press(stage, "Last")
    expect(words).to_contain_text("full backward hook of layer (root)")
    expect(stage.locator(".op-badge")).to_have_text("← backward")
    expect(stage.get_by_role("button", name="Next")).to_have_attribute("aria-disabled", "true")
    assert stage.screenshot() != before
    figures.told("print(player.index, player.event.label)", "19 full_backward (root)")
    press(stage, "First")
    stage.locator(".op-event", has_text="output (1, 3)").first.click()
    expect(words).to_contain_text(f"forward hook of layer '0.{HOSTILE}', call 1: output (1, 3)")
    facts = stage.locator(".op-facts")
    expect(facts).to_contain_text(re.compile(r"inside\(root\) › 0registered as"))  # and not itself
    expect(facts).to_contain_text("values[[")
    assert figures.page.locator("img[src='x']").count() == 0
    stage.get_by_role("slider", name="event").fill("11")
    expect(words).to_contain_text("full backward pre-hook of layer '1'")

    # By keyboard, from anywhere in it; the notebook stays where it is.
    stage.get_by_role("listbox").focus()
    for key, index in (
        ("Home", 0),
        ("ArrowDown", 1),
        ("ArrowRight", 2),
        ("ArrowUp", 1),
        ("End", 19),
        ("ArrowLeft", 18),
    ):
        figures.page.keyboard.press(key)
        figures.told("print(player.index)", str(index))
    stage.get_by_role("slider", name="event").focus()
    for key, index in (("ArrowLeft", 17), ("ArrowUp", 18), ("ArrowDown", 17), ("Home", 0)):
        figures.page.keyboard.press(key)
        figures.told("print(player.index)", str(index))
    stage.get_by_label("speed").select_option("very fast")
    stage.get_by_role("listbox").focus()
    figures.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Pause")).to_have_count(1)
    expect(words).to_contain_text("full backward hook of layer (root)")
    expect(stage.get_by_role("button", name="Play")).to_have_count(1)

    # From the kernel, and looks.
    figures.kernel("player.index = 13")
    expect(words).to_contain_text("full backward pre-hook of layer '0'")
    long = player(figures, 1)
    assert figures.cut(long, ".op-text") == []

    # A long recording: few rows are in the page, every one is reached.
    long.scroll_into_view_if_needed()
    figures.told("print(len(many.events))", "2000")
    long.get_by_role("listbox").focus()
    figures.page.keyboard.press("End")
    expect(long.locator(".op-lit .op-number")).to_have_text("2000")
    expect(long.locator(".op-lit")).to_be_in_viewport()
    assert long.locator(".op-row").count() < 60


def player(figures: FigurePage, number: int = 0) -> Locator:
    return figures.page.locator("section[aria-label='Order player']").nth(number)


def press(stage: Locator, name: str) -> None:
    stage.get_by_role("button", name=name).click()
