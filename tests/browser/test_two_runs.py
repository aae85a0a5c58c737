"""Two runs and one arrow in a real JupyterLab: by mouse, by keyboard, revealed, narrow, and with less motion."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.test_scenes import ACTIVE_CELL, touching
from tests.shared.lab import Lab, places

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CODE = "from hookscope_course.scenes import TwoRuns\nruns = TwoRuns()\nruns"


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests: starting costs most."""
    lab.scratch("two_runs", CODE)
    return lab


def the_figure(lab: Lab) -> Locator:
    found = lab.page.get_by_role("region", name="Two runs and one arrow")
    found.scroll_into_view_if_needed()
    return found


def box(stage: Locator, cell: str, run: int = 1) -> Locator:
    return stage.locator(f".tr-cell[data-cell='{cell}']").nth(run)


def at_rest(stage: Locator) -> None:
    expect(stage).to_have_attribute("data-flying", "false")


def test_by_mouse(opened: Lab) -> None:
    lab, stage = opened, the_figure(opened)
    say, score = stage.locator(".sc-say"), stage.locator(".tr-score")
    expect(say).to_have_text("Click a box. A hook carries its value from the clean run into the corrupted one.")
    expect(stage.locator(".tr-red")).to_have_count(0)
    expect(stage.locator(".tr-bar output").first).to_have_text("0.002")
    expect(stage.get_by_label("Color shows")).to_be_hidden()

    box(stage, "blocks.0 10").click()
    at_rest(stage)
    expect(say).to_have_text("blocks.0 at 10 'Leo': the answer stays Leo; Mary has 0.002.")
    expect(score).to_have_text("1 patch, 0 of 7 red boxes found")
    box(stage, "tokens 10", run=0).click()  # the box that the value comes from does the same
    at_rest(stage)
    expect(say).to_have_text("tokens at 10 'Leo': the answer becomes Mary, 0.98.")
    expect(box(stage, "tokens 10")).to_have_class(re.compile("tr-red"))
    expect(stage.locator(".tr-bar output").first).to_have_text("0.98")
    expect(stage.locator(".tr-arrow")).not_to_have_class(re.compile("tr-gone"))
    lab.told("print(runs.tried, runs.at)", "[[3, 10], [0, 10]] [0, 10]")
    box(stage, "tokens 10").click()
    at_rest(stage)
    expect(score).to_have_text("2 patches, 1 of 7 red boxes found")

    stage.get_by_text("Numbers", exact=True).click()
    expect(stage.locator(".tr-numbers tbody tr")).to_have_count(4)
    stage.get_by_text("Numbers", exact=True).click()
    lab.look(stage, "two-runs")

    stage.get_by_role("button", name="Show all").click()
    expect(stage.locator(".tr-red")).to_have_count(7)
    box(stage, "blocks.1 14").click()
    at_rest(stage)
    lab.told("print(len(runs.tried), runs.at, runs.shown)", "2 [6, 14] True")
    stage.get_by_label("Color shows").select_option("logits")
    expect(stage.locator(".tr-bar output").nth(2)).to_be_visible()
    lab.look(stage, "two-runs-logits")
    stage.get_by_role("button", name="Start over").click()
    expect(score).to_have_text("0 patches, 0 of 7 red boxes found")
    lab.told("print(runs.tried, runs.at, runs.shown, runs.measure)", "[] [] False probability")


def test_by_keyboard_and_with_less_motion(opened: Lab) -> None:
    lab, stage = opened, the_figure(opened)
    lab.kernel("runs.tried, runs.at, runs.shown = [], [], False")
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        expect(stage.locator(".tr-cell[tabindex='0']")).to_have_count(1)
        stage.locator(".tr-cell[tabindex='0']").focus()
        cell = lab.page.evaluate(ACTIVE_CELL)
        for key in ("Home", "ArrowUp", "End", *["ArrowDown"] * 9, "Enter"):
            lab.page.keyboard.press(key)
        expect(stage.locator(".sc-say")).to_have_text("blocks.1 at 14 'to': the answer becomes Mary, 0.98.")
        lab.page.keyboard.press("ArrowLeft")
        expect(box(stage, "blocks.1 13")).to_be_focused()
        expect(box(stage, "blocks.1 13")).to_have_attribute("aria-label", "blocks.1 at 13 'ball', not patched yet")
        lab.page.keyboard.press("Space")
        expect(stage.locator(".tr-score")).to_have_text("2 patches, 1 of 7 red boxes found")
        assert lab.page.evaluate(ACTIVE_CELL) == cell
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_who_finds_all_is_told(opened: Lab) -> None:
    lab, stage = opened, the_figure(opened)
    lab.kernel(
        "runs.tried, runs.shown = [], False\nfor layer, position in runs.red: said = runs.patch(layer, position)"
    )
    expect(stage.locator(".tr-score")).to_have_text("All 7 red boxes found with 7 patches")
    told = json.loads(lab.kernel("import json; print(json.dumps([cell['said'] for cell in runs._cells[3]]))"))
    for position in (3, 12, 14):
        lab.kernel(f"said = runs.patch('blocks.0', {position})")
        expect(stage.locator(".sc-say")).to_have_text(told[position])


def test_on_each_page(opened: Lab) -> None:
    lab, stage = opened, the_figure(opened)
    lab.kernel("runs.shown = True; said = runs.patch('blocks.0', 14)")
    for width, height in ((1280, 720), (390, 844)):
        lab.page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            lab.command("application:toggle-left-area")
        stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
        lab.settled(stage)
        assert touching(stage) == [], width
        [figure] = places(stage.locator(".sc-figure"))
        assert figure["width"] <= width
        if width > 1000:
            [pane] = places(lab.page.locator(".jp-WindowedPanel-outer").first)
            assert figure["height"] <= pane["height"]
        lab.screenshot(f"two-runs-{width}")
    lab.command("application:toggle-left-area")
    lab.page.set_viewport_size({"width": 1280, "height": 800})
