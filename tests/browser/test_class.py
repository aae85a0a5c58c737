"""A teacher shows a chapter to a class: at 1280 × 720, with a keyboard or a clicker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from hookscope_course.classroom.slide_order import split_into_slides
from hookscope_course.classroom.slides import write_slides
from hookscope_course.learner.copies import list_chapters
from hookscope_course.paths import NOTEBOOKS
from tests.shared.lab import SCREENSHOTS, STEP_MILLISECONDS, Lab, serving

WALKED = [pytest.param(path, id=path.stem[:2]) for path in list_chapters(NOTEBOOKS) if path.stem[:2] < "90"]
# The slides of that chapter, and the place of its first question, from 1.
SLIDES = [*split_into_slides(json.loads((NOTEBOOKS / "02_call_order.ipynb").read_text(encoding="utf-8"))["cells"])]
ASKED = next(at for at, slide in enumerate(SLIDES, start=1) if "**Predict.**" in slide[0]["source"])
WORDS = "td, th, caption, figcaption, p, li, label, button, select, summary, output, .op-row, .hs-layer *, .pm-side"
# What is on the screen: the active cell and its output (top and bottom, from the top of the screen), and the slide.
SEEN = """(words) => {
    const notebook = window.jupyterapp.shell.currentWidget.content, { activeCell: cell, outerNode: page } = notebook;
    const screen = page.getBoundingClientRect();
    const place = (node) => {
        const box = node.getBoundingClientRect();
        return [Math.round(box.top - screen.top), Math.round(box.bottom - screen.top)];
    };
    const output = cell.outputArea?.node;
    const sizes = [...(output?.querySelectorAll(words) ?? [])].filter((node) => node.offsetHeight && node.innerText);
    // In a drawing, a word that lies: how high it is on the screen, beside its own height.
    const drawn = [...(output?.querySelectorAll(".hookscope svg text") ?? [])].flatMap((word) => {
        const own = word.getBBox(), box = word.getBoundingClientRect();
        const lies = own.height && box.height && box.height < 2 * box.width * (own.height / own.width);
        return lies ? [(parseFloat(getComputedStyle(word).fontSize) * box.height) / own.height] : [];
    });
    const outputs = cell.outputArea?.model.toJSON() ?? [];
    return {
        at: notebook.activeCellIndex, last: notebook.widgets.length - 1, kind: cell.model.type,
        runs: cell.model.executionCount,
        cell: place(cell.node), output: output ? place(output) : null, screen: Math.round(screen.height),
        slide: page.scrollHeight, scrolled: Math.round(page.scrollTop),
        number: document.querySelector(".hookscope-class-number").textContent,
        smallest: Math.min(...sizes.map((node) => parseFloat(getComputedStyle(node).fontSize) * node.currentCSSZoom)),
        drawn: Math.min(...drawn),
        errors: outputs.filter((one) => one.output_type === "error").map((one) => one.evalue),
    };
}"""
# The cell has been run, its widgets have drawn themselves, and what came out is in sight as far as there is room.
SHOWN = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content, { activeCell: cell, outerNode: page } = notebook;
    const kernel = notebook.parent.sessionContext.session.kernel;
    const drawn = [...cell.node.querySelectorAll("img")].every((image) => image.complete);
    if (!cell.model.executionCount || kernel.status !== "idle" || !drawn) return false;
    if (cell.node.querySelector("[data-state=busy]")) return false;
    const output = cell.outputArea.node.getBoundingClientRect(), screen = page.getBoundingClientRect();
    return output.bottom < screen.bottom + 2 || Math.abs(output.top - screen.top) < 2;
}"""
MOVED = """([at, scrolled, runs]) => {
    const notebook = window.jupyterapp.shell.currentWidget.content, { activeCell: cell } = notebook;
    const ran = cell.model.executionCount !== runs && notebook.parent.sessionContext.session.kernel.status === "idle";
    return ran || notebook.activeCellIndex !== at || Math.round(notebook.outerNode.scrollTop) !== scrolled;
}"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@contextmanager
def shown(chapter: Path, lab: Lab, tmp: Path) -> Iterator[Page]:
    """Give the page that a class sees, with a kernel that waits."""
    command = [sys.executable, "-m", "hookscope_course", "class", chapter.stem[:2], "--to", str(tmp / "class")]
    with serving(command, tmp) as (url, token):
        browser = lab.page.context.browser
        assert browser is not None
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(STEP_MILLISECONDS)
        page.goto(f"{url}/doc/tree/{chapter.name}?token={token}")
        try:
            expect(page.locator("body[data-jp-deck-mode='presenting']")).to_have_count(1)
            page.wait_for_function("() => document.querySelector('.jp-Notebook .jp-mod-active') !== null")
            page.wait_for_function(
                "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
            )
            yield page
        finally:
            page.close()


@pytest.fixture
def page(lab: Lab, tmp_path: Path) -> Iterator[Page]:
    with shown(NOTEBOOKS / "02_call_order.ipynb", lab, tmp_path) as page:
        yield page


def on_screen(page: Page) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell:visible")


def seen(page: Page) -> dict[str, Any]:
    page.evaluate(FRAMES)
    found: dict[str, Any] = page.evaluate(SEEN, WORDS)
    return found


def press(page: Page, key: str) -> None:
    """Press a key that moves or runs, and wait until it has."""
    before = seen(page)
    page.keyboard.press(key)
    page.wait_for_function(MOVED, arg=[before["at"], before["scrolled"], before["runs"]])


def go(page: Page, key: str, to: Locator) -> None:
    """Press a key, which goes from cell to cell and at a slide's end to the next one, until something is seen."""
    for _ in range(4 * len(SLIDES)):
        if to.count():
            return
        press(page, key)
    raise AssertionError(f"however often, {key} does not lead there")


def test_a_teacher_walks_through_a_chapter(page: Page) -> None:
    expect(on_screen(page).first).to_contain_text("02 · Call order")
    expect(on_screen(page).get_by_role("link")).to_have_count(0)
    predict = on_screen(page).filter(has_text="Predict.")
    go(page, "PageDown", predict)
    # The question stands alone, with the cell for the guess; of what comes next nothing is to be seen.
    expect(on_screen(page)).to_have_count(2)
    expect(on_screen(page).last).to_contain_text('guess = Guess(____, about="02.0")')
    expect(page.get_by_text("Run.", exact=False).filter(visible=True)).to_have_count(0)
    if SCREENSHOTS:
        page.screenshot(path=SCREENSHOTS / "class-predict.png")
    for words in (predict.locator("p").first, on_screen(page).last.locator(".cm-line").first):
        assert words.evaluate("line => parseFloat(getComputedStyle(line).fontSize)") >= 22
    assert page.locator(".jp-Notebook").evaluate("page => page.scrollWidth <= page.clientWidth")
    number = page.locator(".hookscope-class-number")
    expect(number).to_have_text(f"{ASKED} / {len(SLIDES)}")

    # A clicker runs the cells on its way, and only once: no error for want of an import, and the guess can be clicked.
    press(page, "PageDown")
    expect(on_screen(page).last).to_contain_class("jp-mod-active")
    press(page, "PageDown")
    page.wait_for_function(SHOWN)
    expect(on_screen(page).last.locator(".jp-OutputArea-output")).to_have_count(1)
    expect(predict).to_have_count(1)
    assert seen(page)["errors"] == []
    assert seen(page)["runs"] == 1 + sum(cell["cell_type"] == "code" for slide in SLIDES[: ASKED - 1] for cell in slide)
    go(page, "PageDown", on_screen(page).filter(has_text="Run."))
    expect(on_screen(page).first).to_contain_text("Run.")
    expect(number).to_have_text(f"{ASKED + 1} / {len(SLIDES)}")

    # Back there, after another cell was looked at, it runs again; so does a cell that was edited.
    go(page, "PageUp", predict)
    expect(on_screen(page).last.locator(".jp-OutputArea-output")).to_have_count(1)
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type("print('what the class guessed')")
    for _ in range(2):
        page.keyboard.press("Shift+Enter")
        expect(on_screen(page).last.locator(".jp-OutputArea-output")).to_have_text("what the class guessed")
        expect(predict).to_have_count(1)
        page.keyboard.press("Enter")
        page.keyboard.type("#")


@pytest.mark.slow
@pytest.mark.parametrize("chapter", WALKED)
def test_nothing_of_a_chapter_is_missed_by_keyboard(chapter: Path, lab: Lab, tmp_path: Path) -> None:
    """Shift+Enter on each cell with code, and Page Down until it leads to the next cell: all has been on the screen."""
    steps = []
    with shown(chapter, lab, tmp_path) as page:
        while True:
            before = seen(page)
            if before["kind"] == "code":
                page.keyboard.press("Shift+Enter")
                page.wait_for_function(SHOWN)
            after = seen(page)
            steps.append({"before": before, "after": after})
            assert after["at"] == before["at"], "left before the class could see what came out"
            assert after["errors"] == []
            assert after["smallest"] is None or after["smallest"] >= 18, (after["at"], after["number"])
            assert after["drawn"] is None or after["drawn"] >= 16, (after["at"], after["number"])
            while seen(page)["at"] == after["at"]:
                there = seen(page)
                if there["at"] == there["last"] and there["cell"][1] <= there["screen"] + 2:
                    break
                press(page, "PageDown")
                gone = seen(page)["at"] != there["at"]
                assert gone == (there["cell"][1] <= there["screen"] + 2), "a part that nobody has seen"
            if after["at"] == after["last"]:
                break
    assert len(steps) == steps[-1]["after"]["last"] + 1
    if SCREENSHOTS:
        (SCREENSHOTS / f"class-{chapter.stem[:2]}.json").write_text(json.dumps(steps))


def test_slides_show_the_number_that_the_class_has(lab: Lab, tmp_path: Path) -> None:
    page_of_slides = write_slides("02", tmp_path)
    browser = lab.page.context.browser
    assert browser is not None
    page, wrong = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(error.message))
    page.goto(page_of_slides.as_uri())
    number, slide = page.locator(".slide-number"), page.locator("section.present")
    expect(number).to_have_text(f"1 / {len(SLIDES)}")
    while "Predict." not in slide.inner_text():
        was = slide.inner_html()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("was => document.querySelector('section.present').innerHTML !== was", arg=was)
    # As in the class; here more slides come before it, for what a cell puts out has a slide of its own.
    expect(number).to_have_text(f"{ASKED} / {len(SLIDES)}")
    shows = sum(bool(cell.get("outputs")) for slide in SLIDES[: ASKED - 1] for cell in slide)
    assert page.evaluate("() => Reveal.getSlidePastCount()") == ASKED - 1 + shows > ASKED - 1
    page.close()
    assert wrong == []
