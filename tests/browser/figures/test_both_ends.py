"""Both ends of a module: gates that close, and what the page computes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes


def test_both_ends_by_mouse(figures: FigurePage) -> None:
    stage = draw(figures, "BothEnds")
    say, why = stage.locator(".sc-say"), stage.locator(".be-why")
    gate, end = "[data-gate='{}']".format, "[data-end='{}']".format
    expect(say).to_have_text(
        "Click a gate to close it. Which gradients are 0 or None then? Click them: they turn dark. Then run backward."
    )
    expect(stage.locator(".be-sign:not(:empty)")).to_have_count(0)
    stage.locator(gate("stop_input")).click()
    expect(stage.get_by_role("switch", name="stop_input closed")).to_be_checked()
    for name in ("x1.grad", "W.grad"):
        stage.locator(end(name)).click()
        expect(stage.locator(end(name))).to_have_attribute("aria-pressed", "true")
    stage.get_by_role("button", name="Run backward").click()
    expect(say).to_have_text("stop_input is closed: x1.grad is 0, x2.grad is 0 and W.grad is 6.")
    expect(why).to_have_text(
        "1 of 3 right."
        "x2.grad: what stop_input returns goes on to x2, and it returns zeros."
        "W.grad: W.grad is computed from grad_output; stop_input changes only what leaves the module."
    )
    figures.told("print(ends.stops, ends.marks, ends.ran)", "['stop_input'] ['x1.grad', 'W.grad'] True")

    # A gate is dragged down, and the gradients are hidden again.
    [box] = measure_boxes(stage.locator(gate("stop_output")).locator(".be-bar"))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    figures.page.mouse.move(x, y)
    figures.page.mouse.down()
    figures.page.mouse.move(x, y + box["height"], steps=6)
    figures.page.mouse.up()
    figures.told("print(ends.stops, ends.marks, ends.ran)", "['stop_input', 'stop_output'] [] False")
    expect(stage.locator(end("x1.grad"))).to_contain_text("?")
    stage.get_by_label("x2 requires grad").uncheck()
    stage.get_by_role("button", name="Run backward").click()
    expect(say).to_have_text("Both gates are closed: x1.grad is 0, x2.grad is None and W.grad is 0.")
    stage.get_by_role("button", name="Start over").click()
    figures.told("print(ends.stops, ends.plain, ends.ran)", "[] [] False")


def test_the_gates_look_like_what_can_be_clicked(figures: FigurePage) -> None:
    stage = draw(figures, "BothEnds")
    figures.kernel("ends.start_over()")
    for name in ("stop_input", "stop_output"):
        button, gate = stage.locator(f"[data-button='{name}']"), stage.locator(f"[data-gate='{name}']")
        expect(button).to_have_text(f"Close {name}")
        expect(gate.locator(".be-handle")).to_have_count(1)
        for each in (button, gate):
            assert each.evaluate("each => getComputedStyle(each).cursor") == "pointer"
        at_rest = gate.locator(".be-bar").evaluate("bar => getComputedStyle(bar).strokeWidth")
        button.hover()  # the gate lights up, too
        expect(gate.locator(".be-bar")).not_to_have_css("stroke-width", at_rest)
        button.click()
        expect(button).to_have_text(f"Open {name}")
        expect(stage.get_by_role("switch", name=f"{name} closed")).to_be_checked()
        expect(gate).to_be_focused()
    figures.told("print(ends.stops)", "['stop_input', 'stop_output']")
    stage.locator("[data-button='stop_output']").click()
    figures.told("print(ends.stops)", "['stop_input']")
    figures.kernel("ends.start_over()")


@pytest.mark.slow
def test_what_the_page_says_of_both_ends_is_what_the_kernel_says(figures: FigurePage) -> None:
    stage = draw(figures, "BothEnds")
    for stops in ([], ["stop_input"], ["stop_output"], ["stop_input", "stop_output"]):
        for plain in ([], ["x1"], ["x2"], ["x1", "x2"]):
            told = figures.kernel(
                f"ends.stops, ends.plain = {stops}, {plain}; ends.run(); print(*ends.gradients.values())"
            )
            for name, value in zip(("x1.grad", "x2.grad", "W.grad"), told.split(), strict=True):
                said = value if value == "None" else f"{float(value):g}"
                expect(stage.locator(f"[data-end='{name}'] .sc-box")).to_have_text(f"{name}{said}")
