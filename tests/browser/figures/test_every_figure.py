"""What every figure promises in a browser: by mouse, by keyboard, dark, narrow, with less motion, without a kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import touching, wait_until_still
from tests.browser.figures.table import FIGURES, Figure
from tests.shared.figure_page import NARROW, PANE, FigurePage, places

pytestmark = pytest.mark.parametrize("name", FIGURES)
GONE = "The kernel of this widget has stopped."
SAVED = "This is the state from when the notebook was saved."
MOVES = """(root) => [...root.querySelectorAll("*")].filter((part) => {
    const style = getComputedStyle(part);
    const lasts = (text) => text.split(",").some((each) => parseFloat(each) > 0);
    return lasts(style.transitionDuration) || (style.animationName !== "none" && lasts(style.animationDuration));
}).map((part) => part.getAttribute("class"))"""
UNREACHED = """(root) => {
    const clicked = [...root.querySelectorAll("button, [role=button], [role=option], [role=switch], [role=radio], input, select")];
    return clicked.filter((part) => part.checkVisibility() && part.tabIndex < 0 && !part.disabled
        && !part.closest("[role=listbox], [role=grid], [role=radiogroup], [role=group], [role=application], svg")
    ).map((part) => part.outerHTML.slice(0, 100));
}"""


def draw(figures: FigurePage, name: str) -> tuple[Figure, Locator]:
    """Draw a figure on an empty page."""
    figure = FIGURES[name]
    figures.scratch(name, figure.code)
    return figure, figures.stage(figure.label)


def read(figures: FigurePage, figure: Figure) -> str:
    return figures.kernel(f"print({figure.reads})")


def click(stage: Locator, figure: Figure) -> None:
    for each in figure.clicks:
        stage.locator(each).first.click()
        wait_until_still(stage)


def test_by_mouse(figures: FigurePage, name: str) -> None:
    figure, stage = draw(figures, name)
    click(stage, figure)
    figures.told(f"print({figure.reads})", figure.clicked)
    figures.screenshot(f"{name}-clicked", stage)


def test_by_keyboard(figures: FigurePage, name: str) -> None:
    """Everything that can be clicked is reached by Tab or by arrows, and no key goes on to the notebook."""
    figure, stage = draw(figures, name)
    assert stage.evaluate(UNREACHED) == []
    stage.locator(figure.focus).first.focus()
    for key in figure.keys:
        figures.page.keyboard.press(key)
        wait_until_still(stage)
    figures.told(f"print({figure.reads})", figure.pressed)
    assert figures.leaked_keys() == []
    seen = figures.page.evaluate("() => document.activeElement.matches(':focus-visible')")
    assert seen, "nobody sees where the focus is"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(figures: FigurePage, name: str, dark: bool) -> None:
    """As it begins, and after the clicks."""
    figure, stage = draw(figures, name)
    figures.theme(dark)
    assert figures.axe() == []
    click(stage, figure)
    assert figures.axe() == []
    figures.screenshot(f"{name}-{'dark' if dark else 'light'}", stage)


def test_it_fits(figures: FigurePage, name: str) -> None:
    """It fits into a small window and a telephone: nothing sticks out, and no words touch."""
    figure, stage = draw(figures, name)
    for width in (PANE[0], 600, NARROW):
        figures.width(width)
        wide, seen = stage.evaluate("stage => [stage.scrollWidth, stage.clientWidth]")
        assert wide <= seen + 1, width
        if figure.touch:
            assert touching(stage) == [], width
        if figure.pane and width == PANE[0]:
            assert places(stage.locator(".sc-figure").or_(stage).last)[0]["height"] <= PANE[1]
        figures.screenshot(f"{name}-{width}", stage)


def test_with_less_motion_nothing_moves(figures: FigurePage, name: str) -> None:
    figure, stage = draw(figures, name)
    with figures.less_motion():
        assert stage.evaluate(MOVES) == []
        click(stage, figure)
        figures.told(f"print({figure.reads})", figure.clicked)
        for scene in stage.locator(".sc-scene[data-flights]").all():
            assert scene.get_attribute("data-flights") == "0"


def test_without_a_kernel_it_says_so(figures: FigurePage, name: str) -> None:
    """From a saved notebook, and when the kernel has stopped, it says so; then only what needs no kernel works."""
    figure, stage = draw(figures, name)
    before = read(figures, figure)
    figures.freeze()
    expect(stage.locator(".hs-saved")).to_contain_text(SAVED)
    expect(stage).to_have_attribute("data-state", "still")
    assert ("hs-alone" in str(stage.get_attribute("class"))) is figure.alone
    if not figure.alone:
        for each in figure.clicks:
            stage.locator(each).first.click(force=True)
        stage.locator(figure.focus).first.focus()
        for key in figure.keys:
            figures.page.keyboard.press(key)
        assert read(figures, figure) == before
        figures.leaked_keys()  # a key that does nothing is the notebook's
    figures.stop_kernel()
    expect(stage.locator(".hs-problem")).to_contain_text(GONE)
