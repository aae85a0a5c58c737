"""Figures in a real JupyterLab: what the bare page of tests/browser/figures cannot show, with one figure each."""

from __future__ import annotations

import base64

import nbformat
import pytest
from playwright.sync_api import expect

from hookscope_course.figures.kit.promises import Controls
from tests.browser.figures.table import FIGURES
from tests.shared.figure_page import PANE
from tests.shared.lab import KERNEL, Lab, measure_boxes

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

BRIDGE, PICKER, SEALED = (FIGURES[name] for name in ("Bridge", "LayerPicker", "SealedModels"))
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
GONE = "Python was restarted: choose Run → Run All Above Selected Cell, then run this cell."


def counted(figure: Controls) -> tuple[str, str]:
    """Two cells that count their runs: the figure's, and one that comes after it."""
    count = "{0} = globals().get('{0}', 0) + 1\n".format
    return count("made") + figure.code.strip(), count("came")


def test_a_picker_and_its_kernel(lab: Lab) -> None:
    page = lab.page
    lab.scratch("picker", "1", PICKER.code.strip())
    layers = page.get_by_role("listbox", name="Layers")
    layers.get_by_role("option", name="block2.conv, ").click()
    lab.told("print(picker.layer)", "block2.conv")
    lab.kernel("picker.layer = 'block1.conv'; picker.channel = 7")
    expect(page.get_by_role("heading", name="Channel 7")).to_be_visible()

    # Run again, it is one picker and not two.
    lab.command("notebook:run-all-cells")
    expect(layers).to_have_count(1)
    alive = "import ipywidgets; print([type(w).__name__ for w in ipywidgets.widgets.widget._instances.values()])"
    assert lab.kernel(alive).count("LayerPicker") == 1

    # The kernel dies, and what the widget says is in the menu, and brings it back.
    page.evaluate(
        """() => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            kernel.requestExecute({ code: "import os; os._exit(1)" });
        }"""
    )
    page.get_by_role("dialog").get_by_role("button", name="Ok").click()
    expect(page.get_by_role("alert")).to_have_text(GONE)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
    )
    page.locator(".jp-Notebook .jp-Cell").last.locator(".jp-InputArea-prompt").click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Above Selected Cell").click()
    page.keyboard.press("Shift+Enter")
    expect(layers).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    lab.told("print(picker.layer)", "block1.conv")


def test_before_anything_is_run_the_picture_shows(lab: Lab) -> None:
    from hookscope import samples
    from hookscope.widgets import LayerPicker

    data, metadata = LayerPicker(samples.digit_cnn(), samples.digit(5))._repr_mimebundle_() or ({}, {})
    data["image/png"] = base64.b64encode(data["image/png"]).decode()
    output = {"output_type": "execute_result", "execution_count": 1, "data": data, "metadata": metadata}
    lab.scratch("picker_saved", PICKER.code.strip(), outputs=[output], run=False)
    expect(lab.page.get_by_role("img", name="block1.conv (Conv2d)")).to_be_visible()


def test_a_small_window_leaves_what_the_bare_page_has(lab: Lab) -> None:
    lab.scratch("pane", BRIDGE.code)
    lab.page.set_viewport_size({"width": 1280, "height": 720})
    expect(lab.page.locator(".jp-FileBrowser")).to_be_visible()
    lab.settled()
    pane, output = measure_boxes(lab.page.locator(".jp-WindowedPanel-outer").first, lab.page.locator(".hookscope"))
    assert (round(output["width"]), round(pane["height"])) == PANE


def test_keys_of_a_figure_are_its_own(lab: Lab) -> None:
    lab.scratch("keys", BRIDGE.code, "1")
    lab.page.locator(BRIDGE.focus).focus()
    cell = lab.page.evaluate(ACTIVE_CELL)
    for key in BRIDGE.keys:
        lab.page.keyboard.press(key)
    lab.told(f"print({BRIDGE.reads})", BRIDGE.pressed)
    assert lab.page.evaluate(ACTIVE_CELL) == cell


def test_shift_enter_in_a_figure_that_was_touched_runs_the_next_cell(lab: Lab) -> None:
    """JupyterLab would run the figure's cell again, and what was done in the figure would be lost."""
    lab.scratch("goes_on", *counted(BRIDGE))
    stage, counts = lab.stage("The bridge"), "print(made, came, bridge.place)"
    lab.told(counts, "1 1 0")
    stage.locator(".sc-peg").first.click()
    lab.page.keyboard.press("ArrowRight")
    lab.told(counts, "1 1 2")
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "1 2 2")

    # The figure's cell can still be run again, from its code and after a click beside the figure.
    code = lab.page.locator(".jp-CodeCell").first
    code.locator(".cm-content").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "2 2 0")
    lab.stage("The bridge").locator(".sc-peg").first.click()
    code.locator(".jp-InputPrompt").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.told(counts, "3 2 0")


def test_an_opened_box_keeps_its_points_when_the_learner_goes_on(lab: Lab) -> None:
    lab.scratch("sealed", *counted(SEALED))
    stage = lab.stage("Four sealed models")
    score, verdict = stage.locator(".sm-total"), stage.locator(".sm-verdict")
    stage.locator('[data-question="record"]').click()
    stage.get_by_label("Layer").select_option("gate")
    stage.get_by_label("Mistake").select_option("it is never called")
    stage.get_by_role("button", name="Break the seal").click()
    expect(verdict).to_contain_text("The mistake is right, but the layer is wrong.")
    expect(verdict).to_contain_text("record shows no rows for gate. In this box it shows 1 row.")
    stage.get_by_label("Layer").select_option("mix")
    stage.get_by_role("button", name="Break the seal").click()
    expect(score).to_have_text("Your score: 2 of 20")
    expect(verdict).to_be_focused()
    # JupyterLab would make new boxes, if the focus had gone with the button.
    lab.page.keyboard.press("Shift+Enter")
    lab.told("print(made, came, boxes.score)", "1 2 2")


def test_a_figure_that_needs_no_kernel_goes_on_while_it_is_busy(lab: Lab) -> None:
    lab.scratch("busy", BRIDGE.code)
    lab.start(
        "import pathlib, time",
        "pathlib.Path('begun').touch()",
        "while not pathlib.Path('enough').exists(): time.sleep(0.1)",
        "pathlib.Path('ended').touch()",
    )
    while not (lab.folder / "begun").exists():
        lab.page.wait_for_timeout(100)
    stage = lab.stage("The bridge")
    stage.locator(".sc-peg").first.focus()
    lab.page.keyboard.press("End")
    expect(stage.locator(".sc-say")).to_contain_text("3 on both ranks")
    assert not (lab.folder / "ended").exists()
    (lab.folder / "enough").touch()


def test_keys_belong_to_the_figure_that_was_clicked_until_escape(lab: Lab) -> None:
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [text("# One"), code(SEALED.code.strip()), text("# Two")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), lab.folder / "keys.ipynb")
    lab.open("keys.ipynb", again=True)
    lab.run_all()
    figure = lab.page.locator(".hs-stage")
    lab.settled(figure)
    figure.locator("button").first.click()
    lab.settled(figure)
    before = lab.page.evaluate(ACTIVE_CELL)
    for is_gone in (False, True):
        if is_gone:  # as when a button with the focus is replaced by another one
            lab.page.evaluate("() => document.activeElement.blur()")
        for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "ArrowDown", "ArrowRight"):
            lab.page.keyboard.press(key)
            lab.page.evaluate("() => new Promise(requestAnimationFrame)")
            assert lab.page.evaluate(ACTIVE_CELL) == before, (key, is_gone)
    expect(lab.page.locator(".jp-showHiddenCellsButton")).to_have_count(0)
    lab.page.keyboard.press("Escape")
    lab.page.wait_for_function("() => document.activeElement.matches('.jp-Cell')")
    lab.page.keyboard.press("ArrowUp")
    lab.page.wait_for_function(f"(before) => ({ACTIVE_CELL})() !== before", arg=before)
