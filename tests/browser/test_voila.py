"""The widgets live in a page that Voila makes of a notebook, too: each by mouse and by keyboard."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from hookscope_course.kernel_settings import KERNEL_ENV
from tests.browser.widget_cells import ALL_WIDGETS
from tests.shared.lab import KERNEL, SCREENSHOTS, Lab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page with all widgets: starting Voila and its kernel costs most."""
    folder = tmp_path_factory.mktemp("voila")
    cells = [nbformat.v4.new_code_cell(cell) for cell in ALL_WIDGETS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)
    nbformat.write(notebook, folder / "page.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "voila", "page.ipynb", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    home = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    settings = os.environ | home | KERNEL_ENV | {"HOME": str(folder)}
    server = subprocess.Popen(command, cwd=folder, env=settings, stderr=subprocess.PIPE, text=True)
    page = lab.page.context.browser.new_page(viewport={"width": 1280, "height": 900})  # type: ignore[union-attr]
    page.set_default_timeout(30_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        assert server.stderr is not None
        address = next((found[0] for line in server.stderr if (found := re.search(r"http://127\S+", line))), None)
        if address is None:
            pytest.fail("voila did not start")
        threading.Thread(target=server.stderr.read, daemon=True).start()  # or the pipe fills up
        page.goto(address)
        expect(page.locator(".hookscope")).to_have_count(len(ALL_WIDGETS) - 1, timeout=60_000)
        yield page
        if SCREENSHOTS:
            page.screenshot(path=SCREENSHOTS / "voila.png", full_page=True)
        assert not errors
    finally:
        page.close()
        server.terminate()
        server.wait(timeout=20)


def widget(page: Page, number: int) -> Locator:
    """The widget that stands at this place of the page, in sight."""
    found = page.locator(".hookscope").nth(number)
    found.scroll_into_view_if_needed()
    expect(found.get_by_role("alert")).to_be_hidden()
    return found


def test_layer_picker(page: Page) -> None:
    picker = widget(page, 0)
    layers, image = picker.get_by_role("listbox", name="Layers"), picker.locator(".hs-grid > img")
    caption, before = picker.locator(".hs-caption"), image.get_attribute("src")
    layers.get_by_role("option", name="block2.conv, ").click()
    expect(caption).to_contain_text("block2.conv (Conv2d)")
    expect(image).not_to_have_attribute("src", str(before))
    page.keyboard.press("ArrowDown")
    expect(caption).to_contain_text("block2.relu (ReLU)")


def test_gradient_playground(page: Page) -> None:
    playground = widget(page, 1)
    table, factor = playground.locator(".gp-numbers"), playground.get_by_label("factor of the hook on d", exact=True)
    a = table.locator("tbody tr", has=page.locator("th:text-is('a')")).locator("td").last
    expect(a).to_have_text("12")
    playground.get_by_label("what is put on d", exact=True).select_option("hook")
    expect(a).to_have_text("24")
    factor.focus()
    page.keyboard.press("ArrowUp")
    expect(a).to_have_text("36")


def test_grad_input_explorer(page: Page) -> None:
    explorer = widget(page, 2)
    first = explorer.locator(".gi-compare tbody tr", has_text="grad_input[0]").locator("td")
    different = explorer.get_by_role("button", name="different", exact=True)
    different.click()
    expect(first).to_have_text(["(5,): bias.grad", "(3, 4): input.grad"])
    explorer.get_by_label("bias", exact=True).click()
    expect(explorer.locator(".gi-verdict")).to_be_hidden()
    different.click()
    expect(first).to_have_text(["(3, 4): input.grad", "(3, 4): input.grad"])
    explorer.get_by_label("Input shape").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(explorer.locator("svg.sc-scene")).to_contain_text("(2, 3, 4)")
    different.click()
    expect(explorer.locator(".gi-verdict")).to_contain_text("(6, 5)")


def test_patch_map(page: Page) -> None:
    patches = widget(page, 3)
    caption, grid = patches.locator(".pm-caption"), patches.get_by_role("grid")
    patches.get_by_role("gridcell", name="0, position 1 'cat':").click()
    expect(caption).to_contain_text("0, position 1 'cat':")
    grid.focus()
    page.keyboard.press("ArrowDown")
    expect(caption).to_contain_text("1, position 1 'cat':")
    expect(patches.locator(".pm-words")).to_contain_text("Position 1 'cat' of the output of 1 is patched")


def test_token_picker(page: Page) -> None:
    reads = widget(page, 4)
    told, image = reads.locator(".tk-told"), reads.locator(".tk-map img")
    expect(told).to_contain_text("1, token 5 mat")
    reads.get_by_role("option", name="1 cat").click()
    expect(told).to_contain_text("1, token 1 cat")
    page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("1, token 2 sat")
    reads.locator(".tk-map").focus()
    page.keyboard.press("ArrowUp")
    expect(told).to_contain_text("0, token 2 sat")
    before = image.get_attribute("src")
    reads.get_by_label("Show", exact=True).select_option("norm")
    expect(image).not_to_have_attribute("src", str(before))
