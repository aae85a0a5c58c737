"""The bridge in a real JupyterLab: dragged, played, by keyboard, narrow, dark, and with less motion."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.test_scenes import ACTIVE_CELL, at_rest, touching
from tests.shared.lab import Lab, places

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CODE = "from hookscope_course.scenes import Bridge\nbridge = Bridge()\nbridge"


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests: starting costs most."""
    lab.scratch("bridge", CODE)
    return lab


def sees(stage: Locator) -> list[str]:
    """What the two boxes say that the hooks see."""
    return stage.locator(".br-plate").all_text_contents()


def drag(lab: Lab, stage: Locator, rank: int, to: str, *, drop: bool = True) -> None:
    """Drag the hook of a rank to the place whose name begins so."""
    place = stage.locator(".sc-slot").nth(6 * rank + int(lab.kernel(f"print([*HOOKS].index({to!r}))")))
    hook, goal = places(stage.locator(f".sc-peg[data-rank='{rank}'] .sc-body"), place.locator("circle"))
    lab.page.mouse.move(hook["x"] + hook["width"] / 2, hook["y"] + hook["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(goal["x"] + goal["width"] / 2, goal["y"] + goal["height"] / 2, steps=8)
    if drop:
        lab.page.mouse.up()


def test_both_hooks_are_dragged_over_the_bridge(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The bridge")
    lab.kernel("from hookscope_course.scenes.bridge import HOOKS")
    say = stage.locator(".sc-say")
    expect(say).to_have_text("A forward pre-hook is given the input: rank 0 sees 2, rank 1 sees 4.")
    drag(lab, stage, 0, "tensor hook")
    expect(say).to_have_text("A tensor hook on the weight is given the gradient: rank 0 sees 2, rank 1 sees 4.")
    lab.told("print(bridge.place)", "2")
    first, second = places(*(stage.locator(f".sc-peg[data-rank='{rank}'] .sc-body") for rank in (0, 1)))
    assert abs(first["x"] - second["x"]) < 1, "the other one follows"

    drag(lab, stage, 1, "communication hook", drop=False)
    assert sees(stage) == ["rank 0 sees2", "rank 1 sees4"]
    lab.page.mouse.up()
    drag(lab, stage, 1, "step pre-hook", drop=False)
    assert sees(stage) == ["rank 0 sees3", "rank 1 sees3"], "while it is held, too"
    lab.told("print(bridge.place)", "4")
    lab.page.mouse.up()
    lab.told("print(bridge.place)", "5")
    expect(stage.locator(".br-deck")).to_have_class(re.compile("br-crossed"))
    lab.look(stage, "bridge")

    drag(lab, stage, 0, "tensor hook", drop=False)
    lab.page.mouse.move(5, 5)
    lab.page.mouse.up()  # beside all places, it goes back
    expect(say).to_have_text(re.compile("both ranks see 3"))
    assert sees(stage) == ["rank 0 sees3", "rank 1 sees3"]


def test_it_plays_and_the_values_meet(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The bridge")
    lab.kernel("said = bridge.move('communication hook')")
    expect(stage.locator(".sc-say")).to_contain_text("what goes over the bridge")
    stage.get_by_role("button", name="Next").click()
    expect(stage.locator(".sc-token").first).to_be_visible()
    expect(stage.locator(".sc-token text").first).to_have_text("3")
    expect(stage.locator(".sc-say")).to_contain_text("both ranks see 3")
    expect(stage.locator(".sc-token").first).to_be_hidden()
    stage.get_by_role("button", name="Play").click()
    expect(stage.locator(".sc-player")).to_have_attribute("data-playing", "true")
    lab.kernel("said = bridge.move('communication hook')")
    at_rest(stage)
    assert sees(stage) == ["rank 0 sees3", "rank 1 sees3"], "it plays on to the end"


def test_by_keyboard_and_with_less_motion(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The bridge")
    lab.kernel("bridge.place = 0")
    expect(stage.locator(".sc-say")).to_contain_text("is given the input")
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        stage.locator(".sc-peg[data-rank='1']").focus()
        cell = lab.page.evaluate(ACTIVE_CELL)
        for key, place in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 5), ("Enter", 0)):
            lab.page.keyboard.press(key)
            lab.told("print(bridge.place)", str(place))
        stage.get_by_role("slider", name="station").focus()
        for key, place in (("ArrowRight", 1), ("End", 5), ("ArrowLeft", 4), ("ArrowRight", 5)):
            lab.page.keyboard.press(key)
            lab.told("print(bridge.place)", str(place))
        assert sees(stage) == ["rank 0 sees3", "rank 1 sees3"]
        name = "the hook on rank 1, step pre-hook, sees 3; arrow keys move it on both ranks"
        expect(stage.get_by_role("button", name=name)).to_be_visible()
        assert lab.page.evaluate(ACTIVE_CELL) == cell
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_on_each_page(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The bridge")
    for width, height in ((1280, 720), (390, 844)):
        lab.page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            lab.command("application:toggle-left-area")
        stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
        for place in range(6):
            lab.kernel(f"bridge.place = 0; bridge.place = {place}")
            lab.settled(stage)
            assert touching(stage) == [], (width, place)
        [figure] = places(stage.locator(".sc-figure"))
        assert figure["width"] <= width
        if width > 1000:
            [pane] = places(lab.page.locator(".jp-WindowedPanel-outer").first)
            assert figure["height"] <= pane["height"]
        lab.screenshot(f"bridge-{width}")
    lab.command("application:toggle-left-area")
    lab.page.set_viewport_size({"width": 1280, "height": 800})


def test_a_place_can_be_clicked_and_space_plays(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The bridge")
    lab.kernel("bridge.place = 0")
    stage.locator(".sc-slot").nth(6 + 3).locator("circle").click()  # the fourth place of rank 1
    lab.told("print(bridge.place)", "3")
    expect(stage.locator(".sc-peg[data-rank='1']")).to_be_focused()
    lab.page.keyboard.press("Home")
    lab.told("print(bridge.place)", "0")
    lab.page.keyboard.press("Space")
    expect(stage.locator(".sc-play")).to_have_text(re.compile("Pause"))
    lab.told("print(bridge.place)", "5")


def test_shift_enter_in_a_figure_that_was_touched_runs_the_next_cell(lab: Lab) -> None:
    """JupyterLab would run the figure's cell again, and what was done in the figure would be lost."""
    counted = "{0} = globals().get('{0}', 0) + 1\n".format
    lab.scratch("goes_on", counted("made") + CODE, counted("came"))
    stage, counts = lab.stage("The bridge"), "print(made, came, bridge.place)"
    lab.told(counts, "1 1 0")
    stage.locator(".sc-peg").first.click()
    lab.page.keyboard.press("ArrowRight")
    lab.told(counts, "1 1 2")
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "1 2 2")

    # The figure's cell can still be run again, from its code and after a click beside the figure.
    code = lab.page.locator(".jp-CodeCell").first
    code.locator(".cm-content").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "2 2 0")
    lab.stage("The bridge").locator(".sc-peg").first.click()
    code.locator(".jp-InputPrompt").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "3 2 0")
