"""The chooser on a bare page: what people type leads to the row that they need; keyboard, both themes."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage

# What people type, and the row that has to come first.
ASKED = {
    "how do I get the output of a layer": "See what a layer returns",
    "get activations": "See what a layer returns",
    "change output": "Change what a layer returns",
    "modify the input of a layer": "See or change what goes into a layer",
    "gradient is None": "Find out why a gradient is None",
    "non-leaf grad is none": "Keep the gradient of a tensor that is not a leaf",
    "loss is nan": "Find the layer that makes the first NaN",
    "attention weights": "See attention maps",
    "embeddings": "Get embeddings from before the last layer",
    "steering vector": "Steer a model at every step of generation",
    "clip gradient": "Clip a gradient on its way back",
    "torch.compile hook does not fire": "Watch a model that was compiled",
    "lora": "Add an adapter to a layer of a frozen model",
    "per-sample gradient": "Get the gradient of each sample",
    "grad-cam vit": "Make a Grad-CAM of a vision transformer",
    "gradeint is None": "Find out why a gradient is None",
    "embedings": "Get embeddings from before the last layer",
    "deepcopy": "Copy or save a model that has hooks",
}


def test_what_people_type_leads_to_their_row(figures: FigurePage) -> None:
    draw(figures, "Chooser")
    widget, page = figures.page.locator(".hookscope"), figures.page
    box, rows = widget.get_by_role("searchbox", name="I want to …"), widget.locator(".ch-row")
    count = widget.get_by_role("status")
    expect(count).to_have_text("52 of 52")
    wrong = {}
    for words, want in ASKED.items():
        box.fill(words)
        figures.settled(widget)
        first = rows.first.locator("summary").inner_text()
        if first != want:
            wrong[words] = first
    assert wrong == {}
    expect(rows.first).to_have_attribute("open", "")
    box.fill("zebra")
    expect(count).to_have_text("Nothing fits. Try fewer words, or All.")
    box.fill("")
    expect(count).to_have_text("52 of 52")

    # By keyboard: a group, a row, its lines.
    widget.get_by_role("button", name="Debug").focus()
    page.keyboard.press("Enter")
    figures.told("print(chooser.group)", "debug")
    expect(widget.get_by_role("button", name="Debug")).to_have_attribute("aria-pressed", "true")
    expect(widget.get_by_role("button", name="Debug")).to_be_focused()
    rows.first.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(rows.first.get_by_role("group", name="Lines to paste")).to_contain_text("remove_all()")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    rows.first.get_by_role("button", name="Copy").click()
    expect(rows.first.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == rows.first.get_by_role("group", name="Lines to paste").inner_text()

    # From Python.
    figures.kernel("chooser.group, chooser.words = '', 'freeze'")
    expect(box).to_have_value("freeze")
