"""A teacher shows a chapter to a class: at 1280 × 720, with a keyboard or a clicker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.shared.lab import PATIENCE, SCREENSHOTS, Lab, serving


@pytest.fixture
def page(lab: Lab, tmp_path: Path) -> Iterator[Page]:
    command = [sys.executable, "-m", "hookscope_course", "class", "02", "--to", str(tmp_path / "class")]
    with serving(command, tmp_path) as (url, token):
        browser = lab.page.context.browser
        assert browser is not None
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{url}/doc/tree/02_call_order.ipynb?token={token}")
        try:
            yield page
        finally:
            page.close()


def on_screen(page: Page) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell:visible")


def go(page: Page, key: str, to: Locator) -> None:
    """Press a key, which goes from cell to cell and at a slide's end to the next one, until something is seen."""
    for _ in range(12):
        if to.count():
            return
        active = page.locator(".jp-Notebook .jp-mod-active")
        before = active.get_attribute("data-windowed-list-index")
        page.keyboard.press(key)
        expect(active).not_to_have_attribute("data-windowed-list-index", str(before))
    raise AssertionError(f"twelve times {key} do not lead there")


def test_a_teacher_walks_through_a_chapter(page: Page) -> None:
    expect(page.locator("body[data-jp-deck-mode='presenting']")).to_have_count(1)
    expect(on_screen(page).first).to_contain_text("02 · Call order")
    page.wait_for_function("() => document.querySelector('.jp-Notebook .jp-mod-active') !== null")
    predict = on_screen(page).filter(has_text="Predict.")
    go(page, "PageDown", predict)
    # The question stands alone, with the cell for the guess; of what comes next nothing is to be seen.
    expect(on_screen(page)).to_have_count(2)
    expect(on_screen(page).last).to_contain_text("guess = Guess(____)")
    expect(page.get_by_text("Run.", exact=False).filter(visible=True)).to_have_count(0)
    page.screenshot(path=SCREENSHOTS / "class-predict.png")
    for words in (predict.locator("p").first, on_screen(page).last.locator(".cm-line").first):
        assert words.evaluate("line => parseFloat(getComputedStyle(line).fontSize)") >= 22
    assert page.locator(".jp-Notebook").evaluate("page => page.scrollWidth <= page.clientWidth")

    # The cell for the guess runs where it stands; with the last cell of a slide done, it goes on.
    page.keyboard.press("PageDown")
    expect(on_screen(page).last).to_contain_class("jp-mod-active")
    page.keyboard.press("Shift+Enter")
    expect(on_screen(page).first).to_contain_text("Run.")
    expect(predict).to_have_count(0)
    go(page, "PageUp", predict)
    expect(on_screen(page).last.locator(".jp-OutputArea-output")).to_have_count(1)
