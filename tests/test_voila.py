"""The widgets live in a page that Voila makes of a notebook, too."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from lessons.build import KERNEL_ENV
from tests.lab import Lab

CODE = """
from hookscope import samples
from hookscope.widgets import LayerPicker
LayerPicker(samples.digit_cnn(), samples.digit(5))
"""


def test_the_picker_works_in_voila(lab: Lab, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "page.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "voila", "page.ipynb", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    home = {f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    settings = os.environ | home | KERNEL_ENV | {"HOME": str(tmp_path)}
    server = subprocess.Popen(command, cwd=tmp_path, env=settings, stderr=subprocess.PIPE, text=True)
    page = lab.page.context.browser.new_page()  # type: ignore[union-attr]
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        assert server.stderr is not None
        address = next((found[0] for line in server.stderr if (found := re.search(r"http://127\S+", line))), None)
        if address is None:
            pytest.fail("voila did not start")
        threading.Thread(target=server.stderr.read, daemon=True).start()  # or the pipe fills up
        page.goto(address)
        layers = page.get_by_role("listbox", name="Layers")
        expect(layers).to_be_visible(timeout=60_000)
        before = page.locator(".hs-grid > img").get_attribute("src")
        layers.get_by_role("option", name="block2.conv, ").click()
        expect(page.locator(".hs-caption")).to_contain_text("block2.conv (Conv2d)")
        assert page.locator(".hs-grid > img").get_attribute("src") != before
        assert not errors
    finally:
        page.close()
        server.terminate()
        server.wait(timeout=20)
