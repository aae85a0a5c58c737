"""Two runs and one arrow on a bare page: by mouse, by keyboard, revealed, narrow, and with less motion."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def box(stage: Locator, cell: str, run: int = 1) -> Locator:
    return stage.locator(f".tr-cell[data-cell='{cell}']").nth(run)


def wait_until_still(stage: Locator) -> None:
    """Wait until no arrow flies."""
    expect(stage).to_have_attribute("data-flying", "false")


def test_by_mouse(figures: FigurePage) -> None:
    stage = draw(figures, "TwoRuns")
    say, score = stage.locator(".sc-say"), stage.locator(".tr-score")
    expect(say).to_have_text("Click a box. A hook carries its value from the clean run into the corrupted one.")
    expect(stage.locator(".tr-red")).to_have_count(0)
    expect(stage.locator(".tr-bar output").first).to_have_text("0.002")
    expect(stage.get_by_label("Color shows")).to_be_hidden()

    box(stage, "blocks.0 10").click()
    wait_until_still(stage)
    expect(say).to_have_text("blocks.0 at 10 'Leo': the answer stays Leo; Mary has 0.002.")
    expect(score).to_have_text("1 patch, 0 of 7 red boxes found")
    box(stage, "tokens 10", run=0).click()  # the box that the value comes from does the same
    wait_until_still(stage)
    expect(say).to_have_text("tokens at 10 'Leo': the answer becomes Mary, 0.98.")
    expect(box(stage, "tokens 10")).to_have_class(re.compile("tr-red"))
    expect(stage.locator(".tr-bar output").first).to_have_text("0.98")
    expect(stage.locator(".tr-arrow")).not_to_have_class(re.compile("tr-gone"))
    figures.told("print(runs.tried, runs.at)", "[[3, 10], [0, 10]] [0, 10]")
    box(stage, "tokens 10").click()
    wait_until_still(stage)
    expect(score).to_have_text("2 patches, 1 of 7 red boxes found")

    stage.get_by_text("Numbers", exact=True).click()
    expect(stage.locator(".tr-numbers tbody tr")).to_have_count(4)
    stage.get_by_text("Numbers", exact=True).click()

    stage.get_by_role("button", name="Show all").click()
    expect(stage.locator(".tr-red")).to_have_count(7)
    box(stage, "blocks.1 14").click()
    wait_until_still(stage)
    figures.told("print(len(runs.tried), runs.at, runs.shown)", "2 [6, 14] True")
    stage.get_by_label("Color shows").select_option("logits")
    expect(stage.locator(".tr-bar output").nth(2)).to_be_visible()
    stage.get_by_role("button", name="Start over").click()
    expect(score).to_have_text("0 patches, 0 of 7 red boxes found")
    figures.told("print(runs.tried, runs.at, runs.shown, runs.measure)", "[] [] False probability")


def test_by_keyboard_and_with_less_motion(figures: FigurePage) -> None:
    stage = draw(figures, "TwoRuns")
    figures.kernel("runs.tried, runs.at, runs.shown = [], [], False")
    figures.page.emulate_media(reduced_motion="reduce")
    try:
        expect(stage.locator(".tr-cell[tabindex='0']")).to_have_count(1)
        stage.locator(".tr-cell[tabindex='0']").focus()
        for key in ("Home", "ArrowUp", "End", *["ArrowDown"] * 9, "Enter"):
            figures.page.keyboard.press(key)
        expect(stage.locator(".sc-say")).to_have_text("blocks.1 at 14 'to': the answer becomes Mary, 0.98.")
        figures.page.keyboard.press("ArrowLeft")
        expect(box(stage, "blocks.1 13")).to_be_focused()
        expect(box(stage, "blocks.1 13")).to_have_attribute("aria-label", "blocks.1 at 13 'ball', not patched yet")
        figures.page.keyboard.press("Space")
        expect(stage.locator(".tr-score")).to_have_text("2 patches, 1 of 7 red boxes found")
    finally:
        figures.page.emulate_media(reduced_motion="null")


def test_who_finds_all_is_told(figures: FigurePage) -> None:
    stage = draw(figures, "TwoRuns")
    figures.kernel(
        "runs.tried, runs.shown = [], False\nfor layer, position in runs.red: said = runs.patch(layer, position)"
    )
    expect(stage.locator(".tr-score")).to_have_text("All 7 red boxes found with 7 patches")
    told = json.loads(figures.kernel("import json; print(json.dumps([cell['said'] for cell in runs._cells[3]]))"))
    for position in (3, 12, 14):
        figures.kernel(f"said = runs.patch('blocks.0', {position})")
        expect(stage.locator(".sc-say")).to_have_text(told[position])
