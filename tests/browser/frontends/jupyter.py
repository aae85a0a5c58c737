"""JupyterLab and Notebook 7, which are drawn by the same parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.browser.frontends.trials import Tried
from tests.shared.lab import SIZE, STEP_MILLISECONDS, serving

# The module that is run, the address of a notebook, and what it has to be told beyond what JupyterLab is told anyway.
LAB = "jupyterlab", "lab/tree"
NOTEBOOK = "notebook", "notebooks", "--JupyterNotebookApp.expose_app_in_browser=True"

_IDLE = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.status === "idle";
}"""
# Which cells are code, which of these failed, and which have a widget: the answer of the kernel, drawn or not.
_CELLS = """() => [...window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells].map((cell, place) => {
    const outputs = cell.cell_type === "code" ? cell.getOutputs() : [];
    const holds = (type) => outputs.some((each) => each.data && type in each.data);
    return {
        place,
        code: cell.cell_type === "code",
        failed: outputs.some((each) => each.output_type === "error" || each.name === "stderr"),
        widget: holds("application/vnd.jupyter.widget-view+json"),
    };
})"""
_DRAW_ALL = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.notebookConfig = { ...notebook.notebookConfig, windowingMode: "none" };
}"""
_SHOW = "(place) => window.jupyterapp.shell.currentWidget.content.scrollToItem(place)"
_DRAWN = """(place) => {
    const { node } = window.jupyterapp.shell.currentWidget.content.widgets[place];
    return node.querySelector("[data-state=ready], [data-state=still]") !== null;
}"""


class Jupyter:
    """One of the two, run by an interpreter that has it.

    Args:
        python: the interpreter.
        browser: where to open it.
        kind: LAB or NOTEBOOK.

    """

    def __init__(self, python: Path, browser: Browser, kind: tuple[str, ...]) -> None:
        self._python, self._browser = python, browser
        self._module, self._path, *self._options = kind

    def run_all(self, course: Path, tried: Tried) -> None:
        """Run every notebook of a folder; writes cells, failed, widgets and drawn."""
        with self._served(course) as address:
            for notebook in sorted(course.glob("*.ipynb")):
                with self._opened(address(notebook)) as page:
                    cells: list[dict[str, Any]] = page.evaluate(_CELLS)
                    tried.cells += sum(cell["code"] for cell in cells)
                    if failed := sum(cell["failed"] for cell in cells):
                        tried.failed[notebook.stem] = failed
                    for place in (cell["place"] for cell in cells if cell["widget"]):
                        tried.widgets += 1
                        page.evaluate(_SHOW, place)
                        tried.drawn += self._is_drawn(page, place)

    @contextmanager
    def page(self, notebook: Path) -> Iterator[Page]:
        """Open one notebook in the browser, with all its cells run."""
        with self._served(notebook.parent) as address, self._opened(address(notebook)) as page:
            # What is far from sight is not in the page; the trials look for it there.
            page.evaluate(_DRAW_ALL)
            yield page

    def _is_drawn(self, page: Page, place: int) -> bool:
        for _ in range(50):
            if page.evaluate(_DRAWN, place):
                return True
            page.wait_for_timeout(100)
        return False

    @contextmanager
    def _served(self, folder: Path) -> Iterator[Any]:
        options = [f"--ServerApp.root_dir={folder}", "--allow-root", *self._options]
        with tempfile.TemporaryDirectory() as home:
            command = [str(self._python), "-m", self._module, *options]
            with serving(command, Path(home)) as (url, token):
                yield lambda notebook: f"{url}/{self._path}/{notebook.name}?reset&token={token}"

    @contextmanager
    def _opened(self, address: str) -> Iterator[Page]:
        page = self._browser.new_page(viewport=SIZE)
        page.set_default_timeout(STEP_MILLISECONDS)
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(_IDLE, timeout=4 * STEP_MILLISECONDS)
        run = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
        page.evaluate(run)
        page.wait_for_function(_IDLE, timeout=4 * STEP_MILLISECONDS)
        yield page
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        page.close()
