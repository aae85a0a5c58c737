"""Figures on a bare page: widgets of this process, drawn by their own scripts in Chromium, without JupyterLab.

A `PageComm` takes the place of the kernel's comm: what a widget sends goes to the page, and what the page sets goes to
the widget, by the same messages as in JupyterLab. The page has JupyterLab's colors and fonts.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import itertools
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import comm
import ipywidgets
from comm.base_comm import BaseComm
from playwright.sync_api import Browser, Locator, Page, Route, expect

from hookscope.widgets.base import HookWidget
from tests.shared.lab import SCREENSHOTS, STEP_MILLISECONDS, axe, measure_boxes, pixels

SIZE = (1000, 900)
"""The page, in pixels: as wide as a notebook with the file browser closed."""
PANE = (848, 599)
"""What JupyterLab leaves for an output at 1280×720, with the file browser open; test_figures_in_lab.py measures it."""
NARROW = 358
"""What the site leaves on a telephone of 390 pixels."""
SOON = 20_000
"""Milliseconds, for each step: nothing here waits for a server."""
__all__ = ["NARROW", "PANE", "FigurePage", "figure_page", "measure_boxes"]

_ADDRESS = "http://127.0.0.1:9/figures"  # nothing listens there: the route below answers
_THEMES = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab"
_SCRIPT = Path(__file__).with_suffix(".js")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Figures</title>
<style id="theme"></style>
<style>
  body {{ margin: 0; padding: 8px; background: var(--jp-layout-color0); color: var(--jp-content-font-color1); }}
  .cell {{ margin: 0 0 24px; overflow: auto; }}
</style>
<body data-jp-theme-light="true"><main></main><script>{script}</script></body></html>"""


class PageComm(BaseComm):
    """Collects what widgets send, until the page fetches it."""

    sent: ClassVar[list[dict[str, Any]]] = []

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any) -> None:
        """Keep the state of an update, as JSON."""
        if msg_type == "comm_msg" and data and data.get("method") in ("update", "echo_update"):
            state = dict(data["state"])
            for path, buffer in zip(data.get("buffer_paths") or (), buffers or (), strict=True):
                state[path[0]] = buffer
            PageComm.sent.append({"id": self.comm_id, "state": _as_json(state)})
        elif msg_type == "comm_close":
            PageComm.sent.append({"id": self.comm_id, "closed": True})


def _as_json(state: dict[str, Any]) -> dict[str, Any]:
    def value(each: Any) -> Any:
        if isinstance(each, bytes | bytearray | memoryview):
            return {"base64": base64.b64encode(bytes(each)).decode("ascii")}
        return each

    return {name: value(each) for name, each in state.items()}


class FigurePage:
    """One page of Chromium with figures on it.

    Attributes:
        page: the Playwright page.
        console_errors: what the page wrote to the console as an error, or could not do.
        outside: requests that left the page (there must be none).
        names: the variables of the code that made the figures.
        speed: how much faster than a reader's the figures play that are drawn from now on.

    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.console_errors: list[str] = []
        self.outside: list[str] = []
        self.names: dict[str, Any] = {}
        self.speed = 1
        self._shown: dict[str, HookWidget] = {}
        script = _SCRIPT.read_text(encoding="utf-8")
        self._html = _PAGE.format(script=script)
        page.on("console", lambda said: self.console_errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        page.route("**/*", self._answer)
        page.expose_function("hookscopeSet", self._set)

    def _answer(self, route: Route) -> None:
        if route.request.url == _ADDRESS:
            route.fulfill(body=self._html, content_type="text/html")
        else:
            self.outside.append(route.request.url)
            route.abort()

    def _set(self, model: str, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Set traits of a widget, as the page asks; return what all widgets send then."""
        self._shown[model].set_state(state)
        return self._take()

    def _take(self) -> list[dict[str, Any]]:
        sent, PageComm.sent = PageComm.sent, []
        return [each for each in sent if each["id"] in self._shown]

    # -- as in `Lab` --------------------------------------------------------------------------------------------------

    def scratch(self, *cells: str) -> None:
        """Run cells on an empty page, and draw the widget that each returns."""
        ipywidgets.Widget.close_all()
        PageComm.sent.clear()
        self._shown.clear()
        self.names = {"__name__": "figures"}
        self.page.goto(_ADDRESS)
        self.theme(dark=False)
        for number, cell in enumerate(cells):
            value = _run(cell, self.names)
            if isinstance(value, HookWidget):
                self._shown[value.model_id] = value
                self._draw(value, number)
        self.settled()

    def _draw(self, widget: HookWidget, number: int, live: bool = True) -> None:
        state = {name: value for name, value in widget.get_state().items() if name not in ("_esm", "_css", "layout")}
        self.page.evaluate(
            "what => draw(what)",
            {
                "id": widget.model_id,
                "cell": number,
                "state": _as_json(state),
                "layout": {"comm_live": live},
                "esm": str(widget._esm).replace("const SPEED = 1;", f"const SPEED = {self.speed};"),
                "css": str(widget._css),
            },
        )

    def kernel(self, code: str) -> str:
        """Run code beside the cells, and show the page what changed; return what it prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            _run(code, self.names)
        self.page.evaluate("sent => take(sent)", self._take())
        return printed.getvalue().strip()

    def told(self, code: str, printed: str) -> None:
        """Once the figures are settled, running code prints this: Python knows what the page shows."""
        self.settled()
        end = time.monotonic() + SOON / 1000
        while (said := self.kernel(code)) != printed and time.monotonic() < end:
            self.page.wait_for_timeout(20)
        assert said == printed, said

    def stage(self, label: str, number: int = 0) -> Locator:
        """Return the figure that says this of itself, in sight."""
        found = self.page.get_by_role("region", name=label).nth(number)
        found.scroll_into_view_if_needed()
        return found

    def settled(self, widget: Locator | None = None) -> None:
        """Wait until a figure, or every one, shows the answer to what was asked last."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        staged = (
            self.page.locator("[data-state]")
            if widget is None
            else widget.locator("xpath=descendant-or-self::*[@data-state]")
        )
        for found in staged.all():
            expect(found).to_have_attribute("data-state", re.compile("ready|still"))

    def theme(self, dark: bool) -> None:
        """Take the colors of JupyterLab's dark or light theme."""
        name = f"theme-{'dark' if dark else 'light'}-extension"
        css = (_THEMES / name / "index.css").read_text(encoding="utf-8")
        self.page.evaluate(
            """([css, light]) => {
                document.querySelector("#theme").textContent = css;
                document.body.dataset.jpThemeLight = light;
            }""",
            [re.sub(r"url\([^)]*\)", "none", css), str(not dark).lower()],
        )

    def width(self, pixels: int) -> None:
        """Give the cells of the page this width."""
        self.page.evaluate("pixels => { document.querySelector('main').style.width = `${pixels}px`; }", pixels)
        self.settled()

    def screenshot(self, name: str, of: Locator | None = None) -> None:
        """Keep an image of a figure, or of the page, if somebody asks for images: HOOKSCOPE_SCREENSHOTS=folder."""
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            (of or self.page).screenshot(path=SCREENSHOTS / f"{name}.png")

    def cut(self, widget: Locator, selector: str, width: int = 592) -> list[str]:
        """Return the text of what sticks out of its place in a figure; 592 pixels are a window of 1024×768."""
        self.width(width)
        parts = widget.locator(selector)
        assert parts.count(), selector
        cut: list[str] = parts.evaluate_all(
            "parts => parts.filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.innerText)"
        )
        self.width(PANE[0])
        return cut

    def axe(self, selector: str = ".hookscope", only: str = "") -> list[str]:
        """Let axe-core look at what the selector finds; return its violations (WCAG A and AA), one sentence each."""
        return axe(self.page, selector, only)

    def pixels(self, selector: str) -> str:
        """Return the pixels of an <img>, as a data URL: equal for equal pictures only."""
        self.settled()
        return pixels(self.page.locator(selector))

    @contextlib.contextmanager
    def less_motion(self) -> Iterator[None]:
        """A reader who has asked for less motion."""
        self.page.emulate_media(reduced_motion="reduce")
        try:
            yield
        finally:
            self.page.emulate_media(reduced_motion="no-preference")

    # -- what only this page can do -----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Draw the figures again as JupyterLab does from a saved notebook, with no kernel."""
        self._draw_again(live=False)

    def thaw(self) -> None:
        """Draw the figures again as JupyterLab does when the page is loaded again, and the kernel is still there."""
        self._draw_again(live=True)

    def _draw_again(self, live: bool) -> None:
        self.page.evaluate("() => clear()")
        for number, widget in enumerate(self._shown.values()):
            self._draw(widget, number, live)
        self.settled()

    def stop_kernel(self) -> None:
        """Tell the figures, as JupyterLab does, that their kernel has gone."""
        self.page.evaluate("() => stop()")

    def leaked_keys(self) -> list[str]:
        """Return the keys since the last call that a notebook would take for its own, such as an arrow."""
        found: list[str] = self.page.evaluate("() => leaked.splice(0)")
        return found


_count = itertools.count()


def _run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    file = f"<cell {next(_count)}>"
    exec(compile(tree, file, "exec"), names)
    return eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None  # type: ignore[attr-defined]


@contextlib.contextmanager
def figure_page(browser: Browser) -> Iterator[FigurePage]:
    """Open the page for figures; widgets that are made meanwhile talk to it."""
    before, comm.create_comm = comm.create_comm, PageComm
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    page.set_default_timeout(SOON)
    expect.set_options(timeout=SOON)
    try:
        yield FigurePage(page)
    finally:
        expect.set_options(timeout=STEP_MILLISECONDS)
        ipywidgets.Widget.close_all()
        comm.create_comm = before
        page.close()
