"""The bridge on a bare page: dragged, played, by keyboard, narrow, dark, and with less motion."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import wait_until_still
from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes


def sees(stage: Locator) -> list[str]:
    """What the two boxes say that the hooks see."""
    return stage.locator(".br-plate").all_text_contents()


def drag_to(figures: FigurePage, stage: Locator, rank: int, to: str, *, drop: bool = True) -> None:
    """Drag the hook of a rank to the place whose name begins so."""
    place = stage.locator(".sc-slot").nth(6 * rank + int(figures.kernel(f"print([*HOOKS].index({to!r}))")))
    hook, goal = measure_boxes(stage.locator(f".sc-peg[data-rank='{rank}'] .sc-body"), place.locator("circle"))
    figures.page.mouse.move(hook["x"] + hook["width"] / 2, hook["y"] + hook["height"] / 2)
    figures.page.mouse.down()
    figures.page.mouse.move(goal["x"] + goal["width"] / 2, goal["y"] + goal["height"] / 2, steps=8)
    if drop:
        figures.page.mouse.up()


def test_both_hooks_are_dragged_over_the_bridge(figures: FigurePage) -> None:
    stage = draw(figures, "Bridge")
    figures.kernel("from hookscope_course.figures.bridge.figure import HOOKS")
    say = stage.locator(".sc-say")
    expect(say).to_have_text("A forward pre-hook gets the input: 2 on rank 0, 4 on rank 1.")
    drag_to(figures, stage, 0, "tensor hook")
    expect(say).to_have_text("A tensor hook on the weight gets the gradient: 2 on rank 0, 4 on rank 1.")
    figures.told("print(bridge.place)", "2")
    first, second = measure_boxes(*(stage.locator(f".sc-peg[data-rank='{rank}'] .sc-body") for rank in (0, 1)))
    assert abs(first["x"] - second["x"]) < 1, "the other one follows"

    drag_to(figures, stage, 1, "communication hook", drop=False)
    assert sees(stage) == ["on rank 02", "on rank 14"]
    figures.page.mouse.up()
    drag_to(figures, stage, 1, "step pre-hook", drop=False)
    assert sees(stage) == ["on rank 03", "on rank 13"], "while it is held, too"
    figures.told("print(bridge.place)", "4")
    figures.page.mouse.up()
    figures.told("print(bridge.place)", "5")
    expect(stage.locator(".br-deck")).to_have_class(re.compile("br-crossed"))

    drag_to(figures, stage, 0, "tensor hook", drop=False)
    figures.page.mouse.move(5, 5)
    figures.page.mouse.up()  # beside all measure_boxes, it goes back
    expect(say).to_have_text(re.compile("3 on both ranks"))
    assert sees(stage) == ["on rank 03", "on rank 13"]


def test_it_plays_and_the_values_meet(figures: FigurePage) -> None:
    stage = draw(figures, "Bridge")
    figures.kernel("said = bridge.move('communication hook')")
    expect(stage.locator(".sc-say")).to_contain_text("before all_reduce")
    stage.get_by_role("button", name="Next").click()
    expect(stage.locator(".sc-token").first).to_be_visible()
    expect(stage.locator(".sc-token text").first).to_have_text("3")
    expect(stage.locator(".sc-say")).to_contain_text("3 on both ranks")
    expect(stage.locator(".sc-token").first).to_be_hidden()
    stage.get_by_role("button", name="Play").click()
    expect(stage.locator(".sc-player")).to_have_attribute("data-playing", "true")
    figures.kernel("said = bridge.move('communication hook')")
    wait_until_still(stage)
    assert sees(stage) == ["on rank 03", "on rank 13"], "it plays on to the end"


def test_by_keyboard_and_with_less_motion(figures: FigurePage) -> None:
    stage = draw(figures, "Bridge")
    figures.kernel("bridge.place = 0")
    expect(stage.locator(".sc-say")).to_contain_text("gets the input")
    figures.page.emulate_media(reduced_motion="reduce")
    try:
        stage.locator(".sc-peg[data-rank='1']").focus()
        for key, place in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 5), ("Enter", 0)):
            figures.page.keyboard.press(key)
            figures.told("print(bridge.place)", str(place))
        stage.get_by_role("slider", name="station").focus()
        for key, place in (("ArrowRight", 1), ("End", 5), ("ArrowLeft", 4), ("ArrowRight", 5)):
            figures.page.keyboard.press(key)
            figures.told("print(bridge.place)", str(place))
        assert sees(stage) == ["on rank 03", "on rank 13"]
        name = "step pre-hook on rank 1, value 3; arrow keys move it on both ranks"
        expect(stage.get_by_role("button", name=name)).to_be_visible()
    finally:
        figures.page.emulate_media(reduced_motion="null")


def test_a_place_can_be_clicked_and_space_plays(figures: FigurePage) -> None:
    stage = draw(figures, "Bridge")
    figures.kernel("bridge.place = 0")
    stage.locator(".sc-slot").nth(6 + 3).locator("circle").click()  # the fourth place of rank 1
    figures.told("print(bridge.place)", "3")
    expect(stage.locator(".sc-peg[data-rank='1']")).to_be_focused()
    figures.page.keyboard.press("Home")
    figures.told("print(bridge.place)", "0")
    figures.page.keyboard.press("Space")
    expect(stage.locator(".sc-play")).to_have_text(re.compile("Pause"))
    figures.told("print(bridge.place)", "5")
