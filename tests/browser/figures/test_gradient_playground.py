"""GradientPlayground and GradInputExplorer on a bare page, by mouse, by keyboard, and without a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes

HOSTILE = "<img src=x onerror=alert(1)>"
OWN = f"""
import torch
Hostile = type({HOSTILE!r}, (torch.nn.Linear,), {{}})
GradInputExplorer(Hostile(2, 2), torch.ones(1, 2))
""".strip()


def cell(widget: Locator, tensor: str, column: str) -> Locator:
    """One number of the table under the graph."""
    heads = widget.locator(".gp-numbers thead th").all_inner_texts()
    row = widget.locator(".gp-numbers tbody tr", has=widget.page.locator(f"th:text-is('{tensor}')"))
    return row.locator("th, td").nth(heads.index(column))


def test_a_learner_plays_with_gradients(figures: FigurePage, tmp_path: Path) -> None:
    draw(figures, "GradientPlayground")
    page, widget = figures.page, figures.page.locator(".hookscope")
    graph, notes = widget.locator("svg.hs-boxes"), widget.locator(".gp-notes")
    after = ".grad after"
    widget.locator("summary", has_text="The numbers in the graph").click()
    expect(cell(widget, "a", after)).to_have_text("12")
    expect(cell(widget, "d", after)).to_have_text("None")
    assert str(graph.get_attribute("aria-label")).startswith("Graph of d = a * b; e = d * c, after 1 backward pass")
    before = graph.inner_html()

    # By mouse: a hook, then both; the graph, the table and the sentences change together.
    kind = widget.get_by_label("what is put on d", exact=True)
    kind.select_option("hook")
    expect(cell(widget, "d", "hook returned")).to_have_text("8")
    expect(cell(widget, "a", after)).to_have_text("24")
    expect(graph).to_contain_text("hook × 2: 4 → 8")
    assert graph.inner_html() != before
    kind.select_option("retain_grad, then hook")
    expect(cell(widget, "d", after)).to_have_text("8")
    expect(notes).to_contain_text(
        "retain_grad() stores what the hook returned, although you called retain_grad() first"
    )
    # The page and Python know the same, and the code shown gives the same.
    figures.told("print(playground.choices)", "{'d': 'retain_grad, then hook'}")
    widget.locator("summary", has_text="plain torch").click()
    code = widget.locator(".gp-code").inner_text()
    printed = figures.kernel(code)
    assert printed == "a.grad tensor(24.)\nb.grad tensor(16.)\nc.grad tensor(6.)\nd.grad tensor(8.)"
    widget.get_by_role("button", name="Copy the code").click()
    expect(widget.locator(".gp-source [role=status]")).to_have_text("Copied.")

    # By keyboard: the factor, then the tensor's value, and the focus stays.
    factor = widget.get_by_label("factor of the hook on d", exact=True)
    factor.focus()
    page.keyboard.press("ArrowUp")
    expect(cell(widget, "d", "hook returned")).to_have_text("12")
    expect(factor).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("-10")
    page.keyboard.press("Enter")
    expect(cell(widget, "a", after)).to_have_text("-120")
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")
    page.keyboard.press("Tab")
    expect(factor).to_have_value("-10")
    widget.get_by_label("value of c", exact=True).fill("5")
    widget.get_by_label("value of c", exact=True).press("Enter")
    expect(cell(widget, "c", "value")).to_have_text("5")
    expect(cell(widget, "d", "hook saw")).to_have_text("5")

    # Twice without zeroing, and with.
    run = widget.get_by_role("button", name="Run backward")
    run.focus()
    page.keyboard.press("Enter")
    expect(cell(widget, "c", ".grad before")).to_have_text("6")
    expect(cell(widget, "c", after)).to_have_text("12")
    expect(graph).to_contain_text(".grad: 6 → 12")
    expect(notes).to_contain_text("without zeroing. A leaf's .grad adds up")
    zero = widget.get_by_label("set .grad of the leaves to None before each pass")
    zero.focus()
    page.keyboard.press("Space")
    expect(widget.locator(".gp-times")).to_have_text("after 1 backward pass")
    run.click()
    expect(notes).to_contain_text("were set to None, so nothing adds up")
    expect(cell(widget, "c", after)).to_have_text("6")
    widget.get_by_role("button", name="Start again").click()
    expect(cell(widget, "c", after)).to_have_text("None")
    expect(notes).to_contain_text("Guess every .grad first")
    run.click()

    assert figures.cut(widget, ".gp-wide") == []

    # Another expression: other rows, what torch refuses cannot be chosen.
    widget.get_by_label("Expression", exact=True).select_option("detached")
    expect(widget.get_by_label("what is put on e", exact=True)).to_be_disabled()
    expect(graph).to_contain_text("no gradient")
    expect(kind).to_have_value("nothing")
    # From Python.
    figures.kernel("playground.expression = 'y = x ** 2' if playground.values.update(x=3.0) else 'd = a * a'")
    expect(graph).to_contain_text("2 + 2")
    expect(widget.get_by_label("Expression", exact=True)).to_have_value("d = a * a")


def test_a_learner_guesses_and_sends_a_gradient_back(figures: FigurePage) -> None:
    draw(figures, "GradientPlayground, guess")
    page, widget = figures.page, figures.page.locator(".hookscope")
    graph, run = widget.locator(".gp-graph"), widget.get_by_role("button", name="Run backward")
    seen = "svg.hs-boxes g:not(.hs-later) > text"
    texts = widget.locator(seen)
    # Nothing tells before all are guessed, by keyboard; what fits no guess is put back.
    expect(widget.locator(".gp-times")).to_have_text("still to guess: a.grad, b.grad, c.grad, d.grad, e.grad")
    run.click(force=True)
    expect(run).to_have_attribute("aria-disabled", "true")
    figures.told("print(playground.runs)", "0")
    assert not any("arrives" in text for text in texts.all_text_contents())
    first = widget.get_by_label("your guess of a.grad")
    first.fill("twelve")
    first.press("Tab")
    expect(first).to_have_value("")
    for name, guess in {"a": "12", "b": "8", "c": "4", "d": "4", "e": "None"}.items():
        field = widget.get_by_label(f"your guess of {name}.grad")
        field.focus()
        page.keyboard.type(guess)
        page.keyboard.press("Enter")
        expect(graph.locator(".gp-yours", has_text=f"you: {guess}").first).to_be_visible()
    expect(run).to_have_attribute("aria-disabled", "false")

    # The gradient travels, and no control moves in the widget; the notebook itself may scroll.
    def controls() -> list[float]:
        top, *rest = measure_boxes(widget, run, first, widget.get_by_label("Expression", exact=True))
        return [box["y"] - top["y"] for box in rest] + [box["x"] - top["x"] for box in rest]

    before = controls()
    page.evaluate(
        """() => { window.stages = new Set();
        const graph = document.querySelector(".gp-graph");
        new MutationObserver(() => {
          for (const text of graph.querySelectorAll(".gp-token text")) window.stages.add(text.textContent);
        }).observe(graph, { childList: true, subtree: true }); }"""
    )
    run.focus()
    page.keyboard.press("Enter")
    expect(widget.locator(".gp-score")).to_have_text("3 of 5 right")
    expect(graph).to_have_attribute("data-travels", "no")
    assert page.evaluate("() => [...window.stages]") in (["4", "6", "12", "8"], ["6", "4", "12", "8"])
    assert controls() == pytest.approx(before, abs=0.1)
    expect(graph.locator(".gp-yours.gp-good")).to_have_text(["you: 12 ✓", "you: 8 ✓", "you: None ✓"])
    why = widget.locator(".gp-why")
    expect(why).to_have_count(2)
    expect(why.first).to_contain_text("c.grad is 6, and you wrote 4. 4 is the value of c, not its gradient.")
    figures.told("print(playground.score)", "3 of 5 right")
    # Start again keeps the guesses; another task takes them away. Reduced motion: steps.
    widget.get_by_role("button", name="Start again").click()
    expect(first).to_have_value("12")
    page.emulate_media(reduced_motion="reduce")
    widget.get_by_label("Task").select_option(label="4 · d is used twice")
    expect(first).to_have_value("")
    expect(widget.get_by_label("your guess of c.grad")).to_be_hidden()
    for name, guess in {"a": "15", "d": "5"}.items():
        widget.get_by_label(f"your guess of {name}.grad").fill(guess)
        widget.get_by_label(f"your guess of {name}.grad").press("Enter")
    expect(run).to_have_attribute("aria-disabled", "false")
    run.click()
    expect(widget.locator(".gp-score")).to_have_text("2 of 2 right")
    expect(graph.locator(".gp-token")).to_have_count(0)
    page.emulate_media(reduced_motion="no-preference")


def test_a_task_locks_the_values_and_start_again_leads_back(figures: FigurePage) -> None:
    draw(figures, "GradientPlayground, guess")
    widget = figures.page.locator(".hookscope")
    rules, again = widget.locator(".gp-rules"), widget.get_by_role("button", name="Start again")
    value, kind = widget.get_by_label("value of a", exact=True), widget.get_by_label("what is put on d", exact=True)
    expression, zero = widget.get_by_label("Expression", exact=True), widget.locator("input[type=checkbox]")
    first = widget.get_by_label("your guess of a.grad")
    expect(rules).to_contain_text("Type your guess of every .grad")
    for control in (value, kind, widget.get_by_label("value of c", exact=True)):
        expect(control).to_be_disabled()
    for control in (expression, zero):
        expect(control).to_be_hidden()
    # A locked value looks like a number in a table; only what can be typed into has a border.
    border = "field => getComputedStyle(field).borderTopColor"
    assert value.evaluate(border) == "rgba(0, 0, 0, 0)"
    assert first.evaluate(border) != "rgba(0, 0, 0, 0)"
    expect(again).to_have_attribute("aria-disabled", "true")  # this is the beginning
    first.fill("7")
    first.press("Enter")
    expect(again).to_have_attribute("aria-disabled", "false")
    again.click()
    expect(first).to_have_value("")
    expect(again).to_have_attribute("aria-disabled", "true")

    # "Your own" unlocks, and Start again brings back the task that was left, with its values.
    widget.get_by_label("Task").select_option(label="2 · A hook on d")
    expect(kind).to_have_value("hook, then retain_grad")
    table, graph = measure_boxes(widget.locator(".gp-choose"), widget.locator(".gp-graph"))
    assert table["x"] + table["width"] <= graph["x"], "the table does not reach into the graph"
    widget.get_by_label("Task").select_option(label="Your own")
    expect(rules).to_be_hidden()
    expect(expression).to_be_visible()
    expect(value).to_be_enabled()
    figures.settled()
    value.fill("12")
    value.press("Enter")
    figures.settled()
    kind.select_option("nothing")
    figures.settled()
    widget.get_by_role("button", name="Run backward").click()
    figures.told("print(playground.task, playground.values['a'], playground.runs)", "-1 12.0 1")
    again.click()
    figures.told("print(playground.task, playground.runs)", "-1 0")
    again.click()
    figures.told("print(playground.task, playground.values['a'], playground.runs)", "1 2.0 0")
    expect(kind).to_have_value("hook, then retain_grad")
    expect(value).to_be_disabled()
    expect(rules).to_be_visible()


def test_a_learner_explores_grad_input(figures: FigurePage, tmp_path: Path) -> None:
    draw(figures, "GradInputExplorer", OWN)
    page = figures.page
    widget, own = page.locator(".hookscope").first, page.locator(".hookscope").nth(1)
    table, verdict, say = widget.locator(".gi-compare"), widget.locator(".gi-verdict"), widget.locator(".sc-say")
    first = table.locator("tbody tr", has_text="grad_input[0]").locator("td")
    graph, score = widget.locator("svg.sc-scene"), widget.locator(".gi-score")
    same = widget.get_by_role("button", name="the same", exact=True)
    different = widget.get_by_role("button", name="different", exact=True)
    raises = widget.get_by_role("button", name="the full one raises an error", exact=True)

    def legacy() -> list[float]:
        place = "peg => [peg.style.transform].flatMap(text => text.match(/-?[\\d.]+/g).map(Number))"
        return list(graph.locator(".gi-peg.gi-legacy").evaluate(place))

    goals = widget.locator(".gi-goals li")
    expect(goals).to_have_text([re.compile(".*: not found yet")] * 3)

    # Both hooks are in the graph; what they get is told after an answer only.
    expect(say).to_have_text("The legacy hook is on AddmmBackward0. The full hook is at the edge of the module.")
    expect(graph.locator(".gi-peg")).to_have_count(2)
    expect(verdict).to_be_hidden()
    expect(table).to_be_hidden()
    expect(graph.locator(".gi-tag")).to_have_count(0)
    assert "They differ" not in widget.inner_text()
    same.click()
    expect(verdict).to_contain_text("No. They differ. The legacy hook is on AddmmBackward0")
    expect(score).to_have_text("0 of 1 right")
    expect(graph.locator(".gi-tag.gi-legacy")).to_have_text(["[0]", "[1]", "[2]"])
    expect(graph.locator(".gi-tag.gi-full")).to_have_text(["[0]"])
    widget.locator(".gi-more summary").click()
    expect(first).to_have_text(["(5,): bias.grad", "(3, 4): input.grad"])
    different.click(force=True)
    expect(score).to_have_text("0 of 1 right")
    before = legacy()

    # By mouse and by keyboard. The legacy hook jumps; nothing is told of the new graph.
    shape = widget.get_by_label("Input shape")
    shape.focus()
    page.keyboard.press("ArrowDown")
    expect(say).to_contain_text(re.compile("The legacy hook jumps from AddmmBackward0 to (Unsafe)?ViewBackward0"))
    expect(verdict).to_be_hidden()
    assert legacy() != before
    page.keyboard.press("ArrowDown")
    expect(graph).to_contain_text("(2, 3, 4)")
    different.focus()
    page.keyboard.press("Enter")
    expect(verdict).to_contain_text("Right. They differ.")
    expect(verdict).to_contain_text("(6, 5)")
    expect(score).to_have_text("1 of 2 right")
    widget.get_by_label("bias", exact=True).uncheck()
    expect(verdict).to_be_hidden()
    figures.told("print(explorer.input_shape, explorer.bias)", "(2, 3, 4) False")
    layer = widget.get_by_label("Layer", exact=True)
    layer.select_option("ReLU")
    expect(graph).to_contain_text("Relu")
    same.click()
    expect(verdict).to_contain_text("Right. Both hooks get the same here")
    expect(goals).to_have_text(["☑both hooks get the same: found", *[re.compile("^☐.*: not found yet$")] * 2])
    expect(shape).to_have_value("3,4")
    expect(widget.get_by_label("bias", exact=True)).to_be_hidden()
    expect(widget.get_by_label("input requires grad")).to_be_disabled()
    widget.get_by_label("inplace", exact=True).check()
    expect(verdict).to_be_hidden()
    raises.click()
    expect(verdict).to_contain_text("Right. With the full hook, the module raises an error")
    expect(table).to_contain_text("is being modified inplace")
    expect(goals.nth(1)).to_have_text("☑the full hook raises an error: found")
    widget.get_by_label("inplace", exact=True).uncheck()
    expect(verdict).to_contain_text("Right. Both hooks get the same here")  # answered before
    layer.select_option("Embedding")
    expect(verdict).to_be_hidden()
    different.click()
    expect(first).to_have_text(["(7, 3): weight.grad", "None"])
    expect(widget.get_by_label("input requires grad")).not_to_be_checked()
    layer.select_option("Identity")
    expect(widget).not_to_contain_text("no node for")  # that is the answer
    expect(graph.locator(".gi-peg")).to_have_count(1)
    expect(goals.nth(2)).to_have_text("☐one hook is never called: not found yet")
    widget.get_by_role("button", name="one is never called", exact=True).click()
    expect(widget.locator(".gi-legend")).to_contain_text("there is no node for it")
    expect(goals).to_have_text([re.compile("^☑.*: found$")] * 3)
    layer.select_option("LSTM")
    expect(graph).to_contain_text("Transpose")
    layer.select_option("MultiheadAttention")
    expect(graph).to_contain_text("more nodes")
    figures.kernel("explorer.layer = 'Conv2d'; explorer.bias = False; explorer.input_shape = (5, 3, 6, 6)")
    expect(shape).to_have_value("5,3,6,6")
    expect(graph).to_contain_text("(5, 3, 6, 6)")
    different.click()
    expect(verdict).to_contain_text("(5, 3, 6, 6)")

    # Your own module: its name is text.
    own.scroll_into_view_if_needed()
    own.get_by_role("button", name="different", exact=True).click()
    own.locator(".gi-more summary").click()
    expect(own.locator("caption")).to_have_text(f"What each hook on {HOSTILE} gets")
    assert page.locator('.hookscope img[src="x"]').count() == 0
    own.get_by_label("Layer", exact=True).select_option("Linear")
    expect(own.locator(".gi-verdict")).to_be_hidden()
    own.get_by_role("button", name="different", exact=True).click()
    expect(own.locator("caption")).to_have_text("What each hook on Linear gets")
