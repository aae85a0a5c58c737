"""Parts of a gradient, and a gradient of a gradient."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import drag
from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes


def asks(stage: Locator, **guesses: str) -> None:
    for name, text in guesses.items():
        stage.locator(f"[data-asks='{name.replace('_', '.')}']").fill(text)


@pytest.mark.slow
def test_parts_by_mouse(figures: FigurePage) -> None:
    stage = draw(figures, "GradientParts")
    run = stage.get_by_role("button", name="Run backward")
    expect(stage.locator("[data-part='out step 2']")).to_have_text("?")
    expect(run).to_have_attribute("aria-disabled", "true")
    asks(stage, w_grad="18")
    run.click()
    expect(stage.locator(".sc-say")).to_have_text(
        "The parts of the three steps add up: 4 + 8 + 6 = 18.", timeout=20_000
    )
    expect(stage.locator(".pt-why")).to_contain_text("1 of 1 right.")

    peg_ = stage.locator("[data-peg='main']")
    [slot] = measure_boxes(stage.locator("[data-place='h2'] circle"))
    drag(peg_, (slot["x"] + slot["width"] / 2, slot["y"] + slot["height"] / 2))
    figures.told("print(parts.place, parts.effect, parts.ran)", "h2 look False")
    stage.get_by_label("The hook", exact=True).select_option("double")
    asks(stage, got="4", w_grad="30")
    run.click()
    expect(stage.locator(".sc-say")).to_have_text(
        "The hook on h2 fires once. It gets 2, and returns 4. w.grad is 8 + 16 + 6 = 30.", timeout=20_000
    )
    expect(stage.locator(".pt-why")).to_have_text(
        "1 of 2 right.the hook gets 2: the gradient of h2 is w, 2, times that of h3, 1."
    )
    figures.told("print(parts.guesses, parts.ran)", "{'got': '4', 'w.grad': '30'} True")


def test_parts_by_keyboard_and_with_less_motion(figures: FigurePage) -> None:
    stage = draw(figures, "GradientParts")
    figures.kernel("parts.start_over()")
    figures.page.emulate_media(reduced_motion="reduce")
    try:
        peg_ = stage.locator("[data-peg='main']")
        peg_.focus()
        for key in ("ArrowUp", "ArrowLeft", "Enter"):
            figures.page.keyboard.press(key)
        figures.told("print(parts.place, parts.effect)", "step 2 double")
        figures.kernel("parts.place = 'w'")
        expect(peg_).to_have_attribute("aria-label", re.compile("hook on w, doubles"))
        asks(stage, got="18", w_grad="36")
        stage.locator("[data-asks='w.grad']").press("Enter")
        expect(stage.locator(".pt-why")).to_contain_text("2 of 2 right.")
    finally:
        figures.page.emulate_media(reduced_motion="null")


def test_a_derivative_of_a_derivative(figures: FigurePage) -> None:
    stage = draw(figures, "GradientParts, twice")
    figures.page.emulate_media(reduced_motion="reduce")
    try:
        for effect, second in (("look", "12"), ("double", "40"), ("removed", "24"), ("detach", "8")):
            stage.get_by_label("The hook", exact=True).select_option(effect)
            asks(stage, first="4" if effect == "look" else "8", second=second)
            stage.get_by_role("button", name="Differentiate twice").click()
            expect(stage.locator(".pt-why")).to_contain_text("2 of 2 right.")
            figures.told("print(twice.gradients['second'])", f"{second}.0")
    finally:
        figures.page.emulate_media(reduced_motion="null")
