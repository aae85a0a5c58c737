"""What every figure promises in a browser: by mouse, by keyboard, dark, narrow, with less motion, without a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from hookscope_course.figures.kit.promises import Controls
from tests.browser.figures.scene import touching, wait_until_still
from tests.browser.figures.table import FIGURES, draw
from tests.shared.figure_page import NARROW, PANE, FigurePage, measure_boxes

pytestmark = [pytest.mark.parametrize("name", FIGURES), pytest.mark.usefixtures("_fast")]
GONE = "Python was restarted:"
SAVED = "This is the state from when the notebook was saved."
MOVES = """(root) => [...root.querySelectorAll("*")].filter((part) => {
    const style = getComputedStyle(part);
    const lasts = (text) => text.split(",").some((each) => parseFloat(each) > 0);
    return lasts(style.transitionDuration) || (style.animationName !== "none" && lasts(style.animationDuration));
}).map((part) => part.getAttribute("class"))"""
# What can be clicked, and is reached neither by Tab nor by arrows from another one of its kind.
UNREACHED = """(root) => {
    const clicked = "button, [role=button], [role=option], [role=switch], [role=radio], input, select";
    const seen = [...root.querySelectorAll(clicked)].filter((part) => part.checkVisibility() && !part.disabled);
    const group = (part) => part.closest("[role=listbox], [role=grid], svg") ?? `${part.tagName} ${part.classList[0]}`;
    const reached = new Set(seen.filter((part) => part.tabIndex >= 0).map(group));
    return seen.filter((part) => part.tabIndex < 0 && !reached.has(group(part)) && group(part).tabIndex !== 0)
        .map((part) => part.outerHTML.slice(0, 100));
}"""


@pytest.fixture
def _fast(figures: FigurePage) -> Iterator[None]:
    """Play ten times as fast: the tests of one figure play at a reader's speed."""
    figures.speed = 10
    yield
    figures.speed = 1


def read(figures: FigurePage, figure: Controls) -> str:
    return figures.kernel(f"print({figure.reads})")


def click(stage: Locator, figure: Controls) -> None:
    for each in figure.clicks:
        stage.locator(each).first.click()
        wait_until_still(stage)


def test_by_mouse_in_both_themes(figures: FigurePage, name: str) -> None:
    """A reader clicks; before and after, and in the dark, axe finds nothing."""
    figure, stage = FIGURES[name], draw(figures, name)
    assert figures.axe() == [], "light"
    assert not figure.clicks or read(figures, figure) != figure.clicked, "the clicks are to change something"
    click(stage, figure)
    figures.told(f"print({figure.reads})", figure.clicked)
    figures.screenshot(f"{name}-light", stage)
    assert figures.axe() == [], "light, after the clicks"
    figures.theme(dark=True)
    assert figures.axe(only="color-contrast") == [], "dark"
    figures.screenshot(f"{name}-dark", stage)


def test_narrow_without_a_kernel_and_by_keyboard_with_less_motion(figures: FigurePage, name: str) -> None:
    """Nothing sticks out on a narrow page. Without a kernel, only what needs none works. With one, Tab or arrows reach
    all that can be clicked, no key goes on to the notebook, and nothing moves.
    """
    figure = FIGURES[name]
    with figures.less_motion():
        stage = draw(figures, name)
        for width in (600, NARROW, PANE[0]):
            figures.width(width)
            wide, seen = stage.evaluate("stage => [stage.scrollWidth, stage.clientWidth]")
            assert wide <= seen + 1, width
            if figure.touch:
                assert touching(stage) == [], width
            figures.screenshot(f"{name}-{width}", stage)
        if figure.pane:
            assert measure_boxes(stage.locator(".sc-figure").or_(stage).last)[0]["height"] <= PANE[1]

        before = read(figures, figure)
        figures.freeze()  # as it is drawn from a saved notebook
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
        figures.thaw()

        assert stage.evaluate(MOVES) == []
        assert stage.evaluate(UNREACHED) == []
        assert read(figures, figure) != figure.pressed, "the keys are to change something"
        stage.locator(figure.focus).first.focus()
        for key in figure.keys:
            figures.page.keyboard.press(key)
            wait_until_still(stage)
        figures.told(f"print({figure.reads})", figure.pressed)
        assert figures.leaked_keys() == []
        assert figures.page.evaluate("() => document.activeElement.matches(':focus-visible')"), "the focus is unseen"
        for play in stage.locator(".sc-play:enabled").all():
            play.click()
            wait_until_still(stage)
        for scene in stage.locator(".sc-scene[data-flights]").all():
            assert scene.get_attribute("data-flights") == "0"
