"""marimo: notebooks are converted, and run in the order of what they read and write, not of the page."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Page

from lessons.build.lesson_source import NOTEBOOKS
from lessons.site.pages import find_widget_cells
from tests.browser.frontends.trials import Tried
from tests.shared.lab import SIZE, STEP_MILLISECONDS

# Between two cells none may be running for a moment.
_ENDED = """async () => {
    for (let quiet = 0; quiet < 20; quiet += 1) {
        if (document.querySelector("[data-status=running], [data-status=queued]")) return false;
        await new Promise((done) => setTimeout(done, 100));
    }
    return true;
}"""


class Marimo:
    """A marimo, run by an interpreter that has it.

    Args:
        python: the interpreter.
        browser: where to open it.

    """

    def __init__(self, python: Path, browser: Browser) -> None:
        self._marimo, self._browser = [str(python), "-m", "marimo", "--quiet"], browser

    def run_all(self, course: Path, tried: Tried) -> None:
        """Run every notebook of a folder; writes cells, failed, widgets and drawn."""
        for notebook in sorted(course.glob("*.ipynb")):
            script = self._converted(notebook)
            outcome = script.with_suffix(".out.ipynb")
            words = ["export", "ipynb", script.name, "--include-outputs", "-o", outcome.name]
            subprocess.run([*self._marimo, *words], cwd=course, capture_output=True, check=False)  # 1: a cell failed
            code = [cell for cell in nbformat.read(outcome, 4).cells if cell.cell_type == "code"]
            outcome.unlink()
            tried.cells += len(code)
            if failed := sum(any(each.output_type == "error" for each in cell.outputs) for cell in code):
                tried.failed[notebook.stem] = failed
            print(f"    {notebook.stem}: {len(code)} cells, {failed} failed", flush=True)
            if not find_widget_cells(json.loads((NOTEBOOKS / notebook.name).read_text(encoding="utf-8"))["cells"]):
                continue
            with self.page(notebook) as page:
                widgets = page.locator("marimo-anywidget").all()
                tried.widgets += len(widgets)
                for widget in widgets:
                    with suppress(Exception):  # not drawn, and then not counted
                        widget.locator("[data-state=ready], [data-state=still]").first.wait_for(timeout=5000)
                        tried.drawn += 1

    @contextmanager
    def page(self, notebook: Path) -> Iterator[Page]:
        """Open one notebook in the browser, with all its cells run."""
        script = self._converted(notebook)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["edit", script.name, "--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(
            [*self._marimo, *words], cwd=notebook.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_for(address)
            page = self._browser.new_page(viewport=SIZE)
            page.set_default_timeout(STEP_MILLISECONDS)
            page.goto(address)
            page.locator("[data-status]").first.wait_for()
            page.get_by_test_id("run-button").last.click()
            page.wait_for_timeout(1000)  # a page of words has run before one could see it run
            deadline = time.monotonic() + 240  # a cell that never ends is not waited for
            while not page.evaluate(_ENDED) and time.monotonic() < deadline:
                pass
            yield page
            page.close()
        finally:
            server.terminate()
            server.wait(timeout=20)

    def _converted(self, notebook: Path) -> Path:
        script = notebook.with_suffix(".py")
        subprocess.run(
            [*self._marimo, "convert", notebook.name, "-o", script.name],
            cwd=notebook.parent,
            input="y\n" * 2,  # overwrite it
            text=True,
            capture_output=True,
            check=True,
        )
        return script


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
