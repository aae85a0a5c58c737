"""The next day: a notebook with widgets was saved, and is opened again with a new kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.widget_cells import ALL_WIDGETS
from tests.shared import ROOT
from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

GRID = ".hs-grid > .hs-picture"


@pytest.mark.slow
def test_a_saved_notebook_opens_with_its_widgets_as_they_were(lab: Lab, tmp_path: Path) -> None:
    page = lab.page
    lab.scratch("saved", *ALL_WIDGETS)
    widgets, notes = page.locator(".hookscope"), page.locator(".hs-saved:visible")
    expect(widgets).to_have_count(len(ALL_WIDGETS) - 1)
    expect(notes).to_have_count(0)
    before = lab.pixels(GRID)
    page.get_by_role("option", name="block2.conv, ").click()
    lab.told("print(picker.layer)", "block2.conv")
    expect(page.locator(".hs-caption")).to_contain_text("block2.conv")
    picked = lab.pixels(GRID)
    assert picked != before
    more = page.locator(".hs-more")
    more.get_by_text("More choices").click()
    lab.told("print(picker.more)", "True")
    lab.command("docmanager:save")

    # The kernel lives: they go on.
    lab.open("saved.ipynb")
    lab.show_all()
    expect(widgets).to_have_count(len(ALL_WIDGETS) - 1)
    expect(notes).to_have_count(0)
    page.get_by_role("option", name="block3.conv, ").click()
    lab.told("print(picker.layer)", "block3.conv")
    page.get_by_role("option", name="block2.conv, ").click()
    lab.told("print(picker.layer)", "block2.conv")

    # The kernel is another: they are seen, say so, and what needs a kernel does not move.
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.sessionContext.session")
    lab.open("saved.ipynb")
    lab.show_all()
    expect(widgets).to_have_count(len(ALL_WIDGETS) - 1)
    expect(notes).to_have_count(len(ALL_WIDGETS) - 1)
    expect(page.get_by_text("model not found")).to_have_count(0)
    assert lab.pixels(GRID) == picked
    expect(notes.first).to_contain_text("Run → Run All Above Selected Cell")
    expect(more).to_have_attribute("open", "")  # as it was left; it opens and closes without a kernel, too
    more.get_by_text("More choices").click()
    expect(page.get_by_role("region", name="Layer picker").get_by_label("Show", exact=True)).to_be_hidden()
    more.get_by_text("More choices").click()
    expect(page.get_by_role("region", name="Layer picker").get_by_label("Show", exact=True)).to_be_visible()
    page.get_by_role("option", name="block1.conv, ").click()
    page.get_by_role("listbox", name="Layers").focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("option", name="block2.conv, ")).to_have_attribute("aria-selected", "true")
    patches = page.get_by_role("region", name="Patch map")
    cell = patches.locator("[role=gridcell][aria-selected=true]")
    chosen = cell.get_attribute("aria-label")
    patches.get_by_role("grid").focus()
    for key in ("ArrowUp", "ArrowDown", "Home"):
        page.keyboard.press(key)
    patches.get_by_role("gridcell").last.click(force=True)
    expect(cell).to_have_attribute("aria-label", str(chosen))
    expect(patches.locator(".pm-caption")).to_contain_text("with the edit")
    expect(patches.locator(".pm-words")).to_contain_text("is patched from the source")
    reads = page.get_by_role("region", name="Token picker")
    reads.locator(".tk-map").focus()
    page.keyboard.press("ArrowUp")
    reads.get_by_role("option", name="1 cat").click()
    expect(reads.get_by_role("option", name="5 mat")).to_have_attribute("aria-selected", "true")
    expect(reads.locator(".tk-told")).to_contain_text("1, token 5 mat")
    assert lab.axe(".hookscope") == []
    lab.screenshot("saved-picker", page.get_by_role("region", name="Layer picker"))

    # Run again, they are as ever.
    lab.run_all()
    lab.show_all()
    expect(widgets).to_have_count(len(ALL_WIDGETS) - 1)
    expect(notes).to_have_count(0)
    page.get_by_role("option", name="block3.conv, ").click()
    lab.told("print(picker.layer)", "block3.conv")

    # What the learner saves now compares under nbval, like the course's own notebooks.
    lab.command("docmanager:save")
    saved = Path(shutil.copy(lab.folder / "saved.ipynb", tmp_path))
    assert "application/vnd.jupyter.widget-state+json" in json.loads(saved.read_text())["metadata"]["widgets"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", saved]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"{len(ALL_WIDGETS)} passed" in result.stdout, result.stdout[-3000:]
