"""The playground in a real browser: sliders, pointer, arrow keys, code, both themes, a narrow page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import SIZE, Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CELL = """
from hookscope import samples
from hookscope_course.widgets.pre_hook import PreHookPlayground
names = ["zero", "one", "<img src=x onerror=alert(1)>", "three", "four", "five", "six", "seven", "eight", "nine"]
model, image = samples.digit_cnn(), samples.digit(5)
runs = []
handle = model.register_forward_hook(lambda *_: runs.append(1))
playground = PreHookPlayground(model, image, classes=names)
playground
""".strip()
EDITED, DIFFERENCE = (f".ph-figure:nth-child({place}) img" for place in (2, 3))


def changed(lab: Lab, selector: str, before: str) -> str:
    """Return the pixels once the widget is settled; they are others."""
    now = lab.pixels(selector)
    assert now != before
    return now


def test_a_learner_plays(lab: Lab) -> None:
    lab.scratch("pre_hook", CELL)
    page = lab.page
    widget = page.locator(".hookscope")
    slider = {name: widget.get_by_label(name, exact=True) for name in ("brightness", "square: size", "square: row")}
    answer, code = widget.locator(".ph-answer"), widget.locator(".ph-code")
    expect(answer).to_contain_text("original: five")
    expect(widget.locator(".ph-chart tbody tr")).to_have_count(10)
    expect(widget.locator(".ph-chart")).to_contain_text("<img src=x onerror=alert(1)>")
    assert widget.locator('img[src="x"]').count() == 0
    assert lab.kernel("handle.remove(); import hookscope; print(len(hookscope.census(model)))") == "0"

    # By keyboard: a slider.
    first = now = lab.pixels(EDITED)
    slider["brightness"].focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    now = changed(lab, EDITED, now)
    expect(code).to_contain_text("x = x + 0.2  # brightness: +0.2")
    assert lab.kernel("print(playground.brightness)") == "0.2"
    # What is shown is what is known, and the copied code gives the same.
    said = lab.kernel("exec(playground.code); print(f'{100 * float(probabilities[5]):.1f} %')")
    expect(widget.locator(".ph-chart tbody tr").nth(5).locator("td").last).to_have_text(said)

    # By mouse: the square follows the pointer while it is pressed.
    box = page.locator(EDITED).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    now = changed(lab, EDITED, now)
    expect(code).to_contain_text("x[..., 11:18, 11:18] = 0")
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2, steps=12)
    expect(code).to_contain_text("x[..., 11:18, 4:11] = 0")
    page.mouse.up()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert lab.kernel("print(playground.row, playground.column, playground.square)") == "11 4 7"
    # By keyboard: the arrow keys, and JupyterLab stays where it is.
    assert "ph-pad" in str(page.evaluate("document.activeElement.className"))
    now, selected = lab.pixels(EDITED), page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(code).to_contain_text("x[..., 12:19, 5:12] = 0")
    now = changed(lab, EDITED, now)
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex") == selected
    assert "ph-pad" in str(page.evaluate("document.activeElement.className"))

    # From Python; and a wrong value from a cell is an error there.
    lab.kernel("playground.noise = 0.25")
    now = changed(lab, EDITED, now)
    expect(widget.get_by_label("noise", exact=True)).to_have_value("0.25")
    assert "Pass 0 to 27" in lab.kernel("playground.row = 99")
    seed = widget.get_by_label("noise seed")
    seed.fill("4")
    now = changed(lab, EDITED, now)
    seed.fill("-4")
    seed.fill("")
    seed.press("Tab")
    expect(seed).to_have_value("4")
    assert lab.kernel("print(playground.seed)") == "4"

    # A fast drag does not queue up: the newest values only, once the last are answered.
    lab.kernel("runs.clear(); handle = model.register_forward_hook(lambda *_: runs.append(1))")
    slider["square: size"].evaluate(
        """(input) => {
            for (let value = 0; value <= 200; value++) {
                input.value = String(value % 28);
                input.dispatchEvent(new Event("input", { bubbles: true }));
            }
        }"""
    )
    expect(code).to_contain_text("# square: 4 rows from row 12")
    now = changed(lab, EDITED, now)
    ran = int(lab.kernel("handle.remove(); print(len(runs))"))
    assert 4 <= ran < 100, f"{ran} runs for 201 events, two for each that is answered"

    lab.look(widget, "pre_hook")
    page.set_viewport_size({"width": 1024, "height": 768})
    lab.settled(widget)
    # Pictures in one row, bars beside the sliders.
    tops = {f["y"] for place in range(3) if (f := widget.locator(".ph-figure").nth(place).bounding_box())}
    assert len(tops) == 1
    chart, controls = (widget.locator(name).bounding_box() for name in (".ph-chart", ".ph-controls"))
    assert chart is not None
    assert controls is not None
    assert chart["y"] < controls["y"] + controls["height"] / 2
    page.set_viewport_size(SIZE)

    widget.get_by_role("button", name="Copy").click()
    expect(widget.locator(".ph-listing [role=status]")).to_have_text("Copied. Paste it into a cell.")
    widget.get_by_role("button", name="Reset").click()
    changed(lab, EDITED, now)
    assert lab.pixels(EDITED) == first
    expect(slider["square: row"]).to_have_value("0")
    expect(widget.locator(".ph-figure").nth(2)).to_contain_text("no difference")

    # A model that raises: a sentence, and the widget goes on.
    lab.kernel("broken = model.block2.register_forward_pre_hook(lambda *_: 1 / 0)")
    slider["brightness"].press("ArrowRight")
    expect(widget.locator(".hs-problem")).to_contain_text("ZeroDivisionError: division by zero")
    expect(page.locator(EDITED)).to_be_hidden()
    lab.screenshot("pre_hook-problem", widget)
    lab.kernel("broken.remove()")
    slider["brightness"].press("ArrowRight")
    expect(page.locator(EDITED)).to_be_visible()
    expect(widget.locator(".hs-problem")).to_be_hidden()
    assert lab.kernel("print(len(hookscope.census(model)))") == "0"

    # The kernel starts again, and so does the widget.
    slider["square: size"].press("End")
    expect(code).to_contain_text("# square: 28 rows")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    lab.run_all()
    lab.show_all()
    expect(widget).to_have_count(1)
    expect(code).not_to_contain_text("# square")
    assert lab.pixels(EDITED) == first
    slider["brightness"].press("Home")
    changed(lab, EDITED, first)
    expect(code).to_contain_text("x = x - 1.0  # brightness: -1")
