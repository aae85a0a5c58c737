"""A real JupyterLab in a real browser: started on a learner's copy of the course, driven by Playwright."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect, sync_playwright

from hookscope_course.kernel_settings import KERNEL_ENV
from tests.shared import PATIENCE

SCREENSHOTS = Path(folder) if (folder := os.environ.get("HOOKSCOPE_SCREENSHOTS")) else None
"""Where browser tests keep images of what they saw, if somebody wants to look at them."""
STEP_MILLISECONDS = 180_000  # for each step; a test that passes does not wait
SIZE = ViewportSize(width=1280, height=900)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
"""The metadata of a notebook that says which kernel it wants, or JupyterLab asks."""
_PLACES = """async (parts) => {
  const frame = () => new Promise(requestAnimationFrame);
  const measure = () => parts.map((part) => part.getBoundingClientRect().toJSON());
  for (let before = measure(); ; ) {
    await frame();
    await frame();
    const now = measure();
    if (JSON.stringify(now) === JSON.stringify(before)) return now;
    before = now;
  }
}"""
_SELF_OR_INSIDE = "descendant-or-self::*[@data-state]"
# What JupyterLab itself says on the console: at every start, and when a kernel goes before it has answered what
# JupyterLab asked it of its own accord (about itself, its debugger). Anything else is ours.
LAB_NOISE = (
    "favicon",
    "ResizeObserver loop",
    "Canceled future for kernel_info_request",
    "Could not restore the debugger state: Canceled future",
)


def pixels(image: Locator) -> str:
    """Return the pixels of an <img>, as a data URL: equal for equal pictures only."""
    return str(
        image.evaluate(
            """async (image) => {
                await image.decode();
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
                canvas.getContext("2d").drawImage(image, 0, 0);
                return canvas.toDataURL();
            }"""
        )
    )


def measure_boxes(*parts: Locator) -> list[dict[str, float]]:
    """Return where parts of the page are: x, y, width and height, all read in one frame once nothing moves.

    Between two calls of Locator.bounding_box() JupyterLab may scroll, and then their places do not belong together.
    """
    found: list[dict[str, float]] = parts[0].page.evaluate(_PLACES, [part.element_handle() for part in parts])
    return found


def axe(page: Page, selector: str = "html", only: str = "") -> list[str]:
    """Let axe-core look at what the selector finds; return its violations (WCAG A and AA), one sentence each.

    Args:
        page: what is looked at.
        selector: the part of it.
        only: one rule; all of WCAG A and AA otherwise.

    """
    kinds = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    rules = {"runOnly": {"type": "rule", "values": [only]} if only else kinds, "resultTypes": ["violations"]}
    found = Axe().run(page, context=selector, options=rules).response["violations"]
    return [f"{rule['id']}: {node['html'][:120]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


class Lab:
    """A JupyterLab server and one browser page on it.

    Attributes:
        url: address with the token.
        folder: the learner's copy that it serves.
        page: the Playwright page.
        console_errors: what the page wrote to the console as an error.
        outside: requests that left this machine (there must be none).

    """

    def __init__(self, url: str, token: str, folder: Path, page: Page) -> None:
        self.url, self.token, self.folder, self.page = url, token, folder, page
        self.console_errors: list[str] = []
        self.outside: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self._note_error(str(error)))
        page.on("request", self._note_request)

    def _note_console(self, message: Any) -> None:
        if message.type == "error":
            self._note_error(message.text)

    def _note_error(self, text: str) -> None:
        if not any(noise in text for noise in LAB_NOISE):
            self.console_errors.append(text)

    def _note_request(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname not in ("127.0.0.1", "localhost"):
            self.outside.append(request.url)

    def open(self, notebook: str, again: bool = False) -> None:
        """Open a notebook and wait until it is drawn and its kernel is idle.

        The kernels of other notebooks are shut down: each may hold half a gigabyte.

        Args:
            notebook: its path in `folder`.
            again: stay in the JupyterLab that is open, which takes seconds to load, and take over the kernel of the
                notebook before, emptied, for a new one has to import torch first. Else JupyterLab is loaded in a fresh
                workspace, with a new kernel, unless this notebook has one.

        """
        stays = again and self._has_idle_kernel()
        if stays:  # before the other notebook can ask for the widgets that are in it
            self.kernel("import ipywidgets\nipywidgets.Widget.close_all()\n%reset -f")
            self.page.evaluate(
                """() => {
                    for (const tab of [...window.jupyterapp.shell.widgets("main")]) {
                        const context = tab.context;
                        if (context) context.model.dirty = false;  // else it asks whether to save
                        const session = context?.sessionContext;
                        if (session) {  // the course's setting ends a kernel with its tab, and this one is taken over
                            session.kernelPreference = { ...session.kernelPreference, shutdownOnDispose: false };
                        }
                        tab.dispose();
                    }
                }"""
            )
        else:
            self.page.goto("about:blank")
        access, sessions = {"Authorization": f"token {self.token}"}, f"{self.url}/api/sessions"
        taken = False
        for session in self.page.request.get(sessions, headers=access).json():
            if session["path"] == notebook and not stays:
                continue
            if stays and not taken:
                now = {"path": notebook, "name": notebook}
                self.page.request.patch(f"{sessions}/{session['id']}", headers=access, data=now)
                taken = True
            else:
                self.page.request.delete(f"{sessions}/{session['id']}", headers=access)
        if stays:
            self.page.evaluate(
                """async (path) => {
                    await window.jupyterapp.serviceManager.sessions.refreshRunning();
                    await window.jupyterapp.commands.execute("docmanager:open", { path });
                }""",
                notebook,
            )
        else:
            self.page.goto(f"{self.url}/lab/tree/{notebook}?reset&token={self.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("() => window.jupyterapp !== undefined")
        # The indicator says idle before there is a kernel; running a cell then asks which kernel to take.
        self.page.wait_for_function(
            """() => {
                const session = window.jupyterapp.shell.currentWidget?.sessionContext;
                return session?.isReady && session.session?.kernel?.status === "idle";
            }""",
            timeout=STEP_MILLISECONDS,
        )

    def _has_idle_kernel(self) -> bool:
        """Whether the page shows a notebook the kernel of which has nothing to do."""
        return bool(
            self.page.evaluate(
                """() => {
                    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
                    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
                }"""
            )
        )

    def command(self, name: str, arguments: dict[str, Any] | None = None, seconds: float = PATIENCE) -> None:
        """Run a JupyterLab command and wait for its end, but not for ever: `evaluate` alone knows no limit."""
        self.page.evaluate(
            """([name, args, seconds]) => Promise.race([
                window.jupyterapp.commands.execute(name, args).then(() => null),
                new Promise((_, fail) => setTimeout(fail, 1000 * seconds, new Error(`${name}: over ${seconds} s`))),
            ])""",
            [name, arguments or {}, seconds],
        )

    def run_all(self) -> None:
        """Run every cell; returns when the last one is done and JupyterLab has scrolled to it.

        It scrolls some time after the run has ended. A mouse button pressed before that is released over another cell,
        and the click is lost.
        """
        self.command("notebook:run-all-cells")
        self.page.evaluate(
            """async () => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                const there = notebook.scrollToItem(notebook.activeCellIndex, "smart", 0.05).catch(() => null);
                await Promise.race([there, new Promise((enough) => setTimeout(enough, 5000))]);
            }"""
        )

    def scratch(self, name: str, *cells: str, outputs: list[dict[str, Any]] | None = None, run: bool = True) -> None:
        """Write a notebook of code cells, open it and run all cells, in the kernel of the notebook before, emptied.

        Args:
            name: file name without suffix.
            *cells: the code.
            outputs: what the last cell has stored, as in a notebook that was saved.
            run: run all cells.

        """
        code = [nbformat.v4.new_code_cell(cell) for cell in cells]
        notebook = nbformat.v4.new_notebook(cells=code, metadata=KERNEL)
        if outputs is not None:
            notebook.cells[-1]["outputs"] = [nbformat.from_dict(output) for output in outputs]
            notebook.cells[-1]["execution_count"] = len(cells)
        nbformat.write(notebook, self.folder / f"{name}.ipynb")
        self.open(f"{name}.ipynb", again=True)
        if run:
            self.run_all()
            self.show_all()

    def kernel(self, code: str) -> str:
        """Run code in the notebook's kernel beside its cells; return what it prints."""
        return str(
            self.page.evaluate(
                """async (code) => {
                    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                    const future = kernel.requestExecute({ code, store_history: false });
                    let text = "";
                    future.onIOPub = (message) => {
                        if (message.header.msg_type === "stream") text += message.content.text;
                        if (message.header.msg_type === "error") text += message.content.traceback.join("\\n");
                    };
                    await future.done;
                    return text;
                }""",
                code,
            )
        ).strip()

    def start(self, *code: str) -> None:
        """Begin to run code in the notebook's kernel, and do not wait for its end."""
        self.page.evaluate(
            """(code) => {
                window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code });
            }""",
            "\n".join(code),
        )

    def stage(self, label: str) -> Locator:
        """Return the widget that says this of itself, in sight."""
        found = self.page.get_by_role("region", name=label)
        found.scroll_into_view_if_needed()
        return found

    def settled(self, widget: Locator | None = None) -> None:
        """Wait until a widget, or every one, announces that it shows the answer to what was asked last.

        Layout comes first: a widget that has got another width asks for other pictures in the frame after.
        """
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        staged = self.page.locator("[data-state]") if widget is None else widget.locator(f"xpath={_SELF_OR_INSIDE}")
        for found in staged.all():
            expect(found).to_have_attribute("data-state", re.compile("ready|still"))

    def told(self, code: str, printed: str) -> None:
        """Once the widgets are settled, running code in the kernel prints this: it knows what the page shows.

        ipywidgets keeps back a change until the kernel has answered the one before, so the first answer can be older.
        """
        self.settled()
        end = time.monotonic() + STEP_MILLISECONDS / 1000
        while (said := self.kernel(code)) != printed and time.monotonic() < end:
            self.page.wait_for_timeout(100)
        assert said == printed, said

    def theme(self, dark: bool) -> None:
        """Switch to JupyterLab's dark or light theme."""
        self.command("apputils:change-theme", {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"})
        self.page.wait_for_selector(f"body[data-jp-theme-light='{str(not dark).lower()}']", state="attached")

    def screenshot(self, name: str, of: Locator | None = None) -> None:
        """Keep an image of a widget, or of the page, if somebody asks for images: HOOKSCOPE_SCREENSHOTS=folder."""
        if SCREENSHOTS is None:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")
        (of or self.page).screenshot(path=SCREENSHOTS / f"{name}.png")

    def axe(self, selector: str) -> list[str]:
        """Let axe-core look at what the selector finds; return its violations (WCAG A and AA), one sentence each."""
        return axe(self.page, selector)

    def pixels(self, selector: str) -> str:
        """Return the pixels of an <img> of a widget that is settled, as a data URL: equal for equal pictures only."""
        image = self.page.locator(selector)
        self.settled(image.locator("xpath=ancestor::*[@data-state]"))
        return pixels(image)

    def show_all(self) -> None:
        """Scroll through the notebook, so that cells drawn on demand are drawn."""
        self.page.evaluate(
            """async () => {
                const frame = () => new Promise((done) => requestAnimationFrame(done));
                for (const cell of window.jupyterapp.shell.currentWidget.content.widgets) {
                    cell.node.scrollIntoView({ block: "center" });
                    await cell.ready;
                    await frame();
                }
                await frame();
            }"""
        )


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start Chromium. As long as it is there, an event loop runs in this process, beside which no other can."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        expect.set_options(timeout=STEP_MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def running_lab(tmp: Path, browser: Browser) -> Iterator[Lab]:
    """Start JupyterLab on a free loopback port with no settings but the project's, and a browser page on it."""
    folder = tmp / "course"
    command = [sys.executable, "-m", "hookscope_course", "lab", "--to", str(folder)]
    with serving(command, tmp) as (url, token):
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(STEP_MILLISECONDS)
        yield Lab(url, token, folder, page)
        page.close()


@contextmanager
def serving(command: list[str], tmp: Path, environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """Start a command that becomes JupyterLab, on a free port, and give its address and token."""
    runtime = tempfile.mkdtemp()  # short, as the path of a socket must be
    home = {"JUPYTER_CONFIG_DIR": str(tmp / "config"), "JUPYTER_DATA_DIR": str(tmp / "data")}
    home |= {"JUPYTER_RUNTIME_DIR": runtime, "IPYTHONDIR": str(tmp / "ipython"), "HOME": str(tmp)}
    settings = {**environment, **home, **KERNEL_ENV}
    over_files = "--KernelManager.transport=ipc"  # as `kernels.settings` has it, and why
    options = [
        over_files,
        "--LanguageServerManager.autodetect=False",
        "--no-browser",
        "--ServerApp.port=0",
        "--LabApp.expose_app_in_browser=True",
    ]
    log = tmp / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen([*command, *options], env=settings, cwd=tmp, stdout=output, stderr=output)
    try:
        yield wait_for_server(server, Path(runtime), log)
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
        shutil.rmtree(runtime, ignore_errors=True)


def wait_for_server(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> tuple[str, str]:
    """Return the address and token that the server writes down when it is up."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                facts = json.loads(file.read_text())
            except json.JSONDecodeError:
                continue  # still being written
            return facts["url"].rstrip("/"), facts["token"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
