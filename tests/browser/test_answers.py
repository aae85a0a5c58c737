"""No answer on the screen: a fresh learner's copy, nothing run, with each question at the top of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from playwright.sync_api import ViewportSize

from hookscope_course.learner.copies import list_chapters, make_edition
from hookscope_course.paths import NOTEBOOKS
from tests.course.learner.test_edition import NOT_GIVEN_AWAY, standing
from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")
SIZES = ((1280, 800), (1440, 900), (1920, 1080))
PAGES = [path for path in list_chapters(NOTEBOOKS) if "= Guess(" in path.read_text(encoding="utf-8")]
LOOK = """async (place) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const panel = notebook.node.querySelector(".jp-WindowedPanel-outer");
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const squeezed = (text) => text.replace(/\\s+/g, " ").trim();
    const top = () => {
        const bold = [...notebook.widgets[place].node.querySelectorAll(".jp-RenderedMarkdown strong")];
        const predict = bold.find((each) => each.textContent === "Predict.");
        return (predict ? predict.closest("p") : notebook.widgets[place].node).getBoundingClientRect().top;
    };
    const shown = notebook.widgets.map((cell, at) => [cell, at]).filter(([cell]) => !cell.isHidden);
    const inSight = () => shown.filter(([cell]) => {
        const [box, seen] = [cell.node.getBoundingClientRect(), panel.getBoundingClientRect()];
        return cell.node.isConnected && box.bottom > seen.top && box.top < seen.bottom;
    });
    const drawn = ([cell]) => {
        if (cell.isPlaceholder()) return false;
        const text = cell.node.querySelector(".jp-RenderedMarkdown");
        return cell.model.type !== "markdown" || (cell.rendered && text && text.textContent.trim() !== "");
    };
    // The state to wait for: the question is at the top, and the panel is full of cells that are drawn, three frames
    // long. What scrollToItem promises does not always come, so nothing waits for that.
    const full = () => {
        const [cells, box] = [inSight(), panel.getBoundingClientRect()];
        const [last, at] = cells.at(-1) ?? [];
        const first = shown.indexOf(cells[0]);
        return cells.every(drawn) && cells.every((each, turn) => each === shown[first + turn]) && last !== undefined
            && (last.node.getBoundingClientRect().bottom >= box.bottom || at === shown.at(-1)[1]);
    };
    for (let [still, turn] = [0, 0]; still < 3; turn++) {
        if (turn > 2000) throw new Error(`cell ${place} does not come to the top, or is not drawn around it`);
        const away = notebook.widgets[place].node.isConnected ? top() - panel.getBoundingClientRect().top : NaN;
        if (Number.isNaN(away)) notebook.scrollToItem(place, "start").catch(() => null);
        else if (Math.abs(away) > 1) panel.scrollTop += away;
        still = Math.abs(away) <= 1 && full() ? still + 1 : 0;
        await frame();
    }
    const view = panel.getBoundingClientRect();
    const seen = (node) => {
        const parent = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
        if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return false;
        const range = document.createRange();
        range.selectNode(node);
        return [...range.getClientRects()].some((box) =>
            box.width > 0 && Math.min(box.bottom, view.bottom, innerHeight) - Math.max(box.top, view.top) > 1);
    };
    const found = [];
    let isNext = false;  // whether a heading has come since the question
    for (const [cell, at] of inSight()) {
        const note = (kind, text) => found.push({ cell: at, kind, text: squeezed(text) });
        for (const output of cell.node.querySelectorAll(".jp-OutputArea-output")) {
            if (seen(output)) note("output", output.textContent || output.innerHTML.slice(0, 80));
        }
        for (const line of cell.node.querySelectorAll(".cm-line")) {
            if (cell.model.type === "code" && seen(line)) note("code", line.textContent);
        }
        let why = false;
        for (const text of cell.node.querySelectorAll(".jp-RenderedMarkdown")) {
            const nodes = document.createTreeWalker(text, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
            for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
                if (/^H[1-6]$/.test(node.nodeName)) [why, isNext] = [false, at > place];
                if (/^(STRONG|B)$/.test(node.nodeName) && node.textContent === "Why.") why = true;
                if (node.nodeType !== Node.TEXT_NODE || !node.data.trim() || !seen(node)) continue;
                note(why ? "why" : isNext ? "next" : "text", node.data);
            }
        }
    }
    return found;
}"""


@dataclass(frozen=True)
class Question:
    """A question of a chapter.

    Attributes:
        name: such as "03, question 2".
        places: of the cell that asks, and of the one that takes the guess.
        answer: as `compare` shows it in the built notebook.

    """

    name: str
    places: tuple[int, int]
    answer: str


def questions(number: str, cells: list[NotebookNode], built: list[NotebookNode]) -> Iterator[Question]:
    """The questions of a chapter's learner's edition."""
    asks = [place for place, cell in enumerate(cells) if "**Predict.**" in cell.source]
    guesses = [place for place, cell in enumerate(cells) if "= Guess(" in cell.source]
    said = [
        output.data["text/plain"] for cell in built if "guess.compare(" in cell.source for output in cell.outputs[-1:]
    ]
    for count, (ask, guess, line) in enumerate(zip(asks, guesses, said, strict=True), start=1):
        answer = line.removeprefix("The answer: ").removesuffix(".")
        yield Question(f"{number}, question {count}", (ask, guess), answer)


@pytest.mark.parametrize(
    "paths",
    [pytest.param(PAGES[:3], id="00 to 02"), pytest.param(PAGES[3:], id="03 and later", marks=pytest.mark.slow)],
)
def test_no_answer_is_on_the_screen_while_its_question_is_asked(lab: Lab, paths: list[Path]) -> None:
    """An answer is in sight if text of a Why is, an output, or an alt text.

    So it is if the words below the question have it. What stands in code does not count. The question is
    at the top of the panel, and then the cell that takes the guess.
    """
    open_answers: dict[tuple[int, int], dict[str, str]] = {size: {} for size in SIZES}
    asked = 0
    for path in paths:
        fresh = lab.folder / f"fresh_{path.name}"
        fresh.write_bytes(make_edition(path))
        cells = nbformat.read(fresh, 4).cells
        found = [*questions(path.stem[:2], cells, nbformat.read(path, 4).cells)]
        asked += len(found)
        lab.open(fresh.name, again=True)
        for width, height in SIZES:
            lab.page.set_viewport_size(ViewportSize(width=width, height=height))
            for question in found:
                if told := in_sight(lab, question):
                    open_answers[width, height][question.name] = told
    counts = ", ".join(f"{len(open_answers[size])} of {asked} at {size[0]}×{size[1]}" for size in SIZES)
    each = [f"{size[0]}×{size[1]}: {name}: {told}" for size in SIZES for name, told in open_answers[size].items()]
    assert not any(open_answers.values()), "\n".join([f"answers in sight: {counts}", *each])


def in_sight(lab: Lab, question: Question) -> str:
    """What tells the answer while a question, or its guess, is at the top of the page; empty if nothing does."""
    for place in question.places:
        found: list[dict[str, Any]] = lab.page.evaluate(LOOK, place)
        below = [each for each in found if each["cell"] >= place]
        for each in below:
            is_alt = each["kind"] == "code" and re.search(r"\balt\s*=", each["text"])
            if each["kind"] in ("why", "output") or is_alt:
                return f"{each['kind']} in cell {each['cell']}: {each['text'][:100]!r}"
        words = " ".join(
            each["text"] for each in below if each["kind"] == "text" and each["cell"] > max(question.places)
        )
        is_word = question.answer not in ("yes", "no")  # these stand in many a sentence that tells nothing
        if (
            is_word
            and question.answer not in NOT_GIVEN_AWAY.get(question.name[:2], {})
            and standing(question.answer).search(words)
        ):
            return f"{question.answer!r} is read in the words below it: {words[:200]!r}"
    return ""
