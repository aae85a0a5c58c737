"""What is tried in each front end, and what is written down of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import nbformat
from playwright.sync_api import Error, Page, expect

from hookscope_course import exercises

MAP, PICKER = "02_call_order.ipynb", "06_layer_picker.ipynb"  # the chapters in which widgets are tried


@dataclass
class Tried:
    """What came of trying one front end.

    Attributes:
        release: of the front end.
        cells: code cells in all notebooks.
        failed: the cells that ended with an error, by notebook; no cell of a fresh copy does in JupyterLab.
        widgets: widgets in all notebooks that were looked for.
        drawn: those that were drawn.
        answers: for each thing that was done with hands, whether it was answered as in JupyterLab.

    """

    release: str
    cells: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    widgets: int = 0
    drawn: int = 0
    answers: dict[str, bool] = field(default_factory=dict)


class Frontend(Protocol):
    """A way to open the notebooks of a course."""

    def run_all(self, course: Path, tried: Tried) -> None:
        """Run every notebook of a folder; writes cells, failed, widgets and drawn."""

    def page(self, notebook: Path) -> AbstractContextManager[Page]:
        """Open one notebook in the browser, with all its cells run."""


def guess(page: Page) -> None:
    """A click that the page answers by itself: a wrong guess at the first hook of the map that plays."""
    stage = page.get_by_role("region", name="The map that plays").first
    stage.scroll_into_view_if_needed()
    stage.locator(".sc-peg[data-kind='forward']").click()
    expect(stage.locator(".sc-ask")).to_contain_text("Not yet.")


def pick(page: Page) -> None:
    """A click that the kernel answers: another layer's maps."""
    stage = page.locator("[data-state]", has=page.get_by_role("listbox", name="Layers")).first
    stage.scroll_into_view_if_needed()
    option = stage.get_by_role("option", name="block1.conv, ")
    option.scroll_into_view_if_needed()
    option.click()
    expect(stage).to_contain_text("block1.conv (Conv2d)")


def keys(page: Page) -> None:
    """The same by keyboard alone."""
    layers = page.get_by_role("listbox", name="Layers").first
    layers.focus()
    page.keyboard.press("Home")
    expect(page.locator("[data-state]", has=layers).first).to_contain_text("(the model)")
    page.keyboard.press("End")
    expect(layers.locator("[aria-selected=true]")).to_have_count(1)


def judged(page: Page) -> None:
    """A wrong answer to an exercise is told to be wrong, and a right one to be right."""
    for sign in ("✗", "✓"):
        page.get_by_role("status").filter(has_text=sign).first.scroll_into_view_if_needed()


TRIALS: dict[str, tuple[str, Callable[[Page], None]]] = {
    "a click that the page answers": (MAP, guess),
    "an exercise's answers, wrong and right": (MAP, judged),
    "a click that the kernel answers": (PICKER, pick),
    "the same by keyboard": (PICKER, keys),
}


def answered(course: Path) -> None:
    """Write a wrong answer to exercise 02.1 and a right one to 02.2 into a learner's copy."""
    first, second, *_ = exercises(2)
    notebook = nbformat.read(course / MAP, 4)
    cells = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    cells[0].source, cells[1].source = first.text.wrong[0][0].strip(), second.text.solution.strip()
    nbformat.write(notebook, course / MAP)


def try_out(frontend: Frontend, course: Path, release: str) -> Tried:
    """Try everything in one front end, on a fresh copy of the course that is written into."""
    tried = Tried(release)
    frontend.run_all(course, tried)
    answered(course)
    for notebook in (MAP, PICKER):
        with frontend.page(course / notebook) as page:
            for name, (where, trial) in TRIALS.items():
                if where == notebook:
                    tried.answers[name] = _done(trial, page)
    return tried


def _done(trial: Callable[[Page], None], page: Page) -> bool:
    try:
        trial(page)
    except (AssertionError, Error) as error:
        print(f"    {trial.__doc__}\n    {str(error).splitlines()[0]}")
        return False
    return True
