"""The layer picker on a bare page: by mouse, by keyboard, in both themes, with names that attack."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import PANE, FigurePage, measure_boxes

GRID = ".hs-grid > .hs-picture"


def other_pixels(figures: FigurePage, before: str) -> str:
    """Return the pixels once the picker is settled; they are others."""
    now = figures.pixels(GRID)
    assert now != before
    return now


def test_a_learner_picks_layers_and_channels(figures: FigurePage) -> None:
    page = figures.page
    draw(figures, "LayerPicker")
    layers = page.get_by_role("listbox", name="Layers")
    expect(layers).to_be_visible()
    first = figures.pixels(GRID)

    # by mouse
    layers.get_by_role("option", name="block2.conv, ").click()
    second = other_pixels(figures, first)
    figures.told("print(picker.layer)", "block2.conv")
    page.get_by_role("button", name="channel 2, ").click()
    expect(page.get_by_role("heading", name="Channel 2")).to_be_visible()
    expect(page.get_by_role("img", name="channel 2: ")).to_have_count(2)
    figures.told("print(picker.channel)", "2")
    seven, image = measure_boxes(page.locator(".hs-channel[data-index='7']"), page.locator(GRID))
    left, top, wide, _ = json.loads(figures.kernel("import json; print(json.dumps(picker.boxes[7]))"))
    factor = image["width"] / json.loads(figures.kernel("print(json.dumps(picker.size[0]))"))
    placed = [seven["x"] - image["x"], seven["y"] - image["y"], seven["width"]]
    assert placed == pytest.approx([left * factor, top * factor, wide * factor], abs=1.5)
    show, goal = page.get_by_label("Show", exact=True), page.locator(".hs-goal")
    expect(show).to_be_hidden()
    expect(goal).to_be_hidden()
    page.get_by_text("More choices").click()
    show.select_option("gradient")
    third = other_pixels(figures, second)
    expect(goal).to_have_text("Gradient of the highest of the 10 scores of each sample in the output.")
    page.get_by_label("of class").select_option("3")
    other_pixels(figures, third)
    expect(goal).to_have_text("Gradient of the score of class 3, one of 10 in the output.")
    figures.told("print(picker.target, picker.show, picker.more)", "3 gradient True")

    # by keyboard: the channels, the search
    show.select_option("activation")
    page.locator(".hs-more > summary").focus()
    page.keyboard.press("Enter")
    expect(show).to_be_hidden()
    figures.told("print(picker.more)", "False")
    page.get_by_role("searchbox", name="Search").fill("block2 relu")
    expect(layers.get_by_role("option")).to_have_count(1)
    page.get_by_role("searchbox", name="Search").press("Tab")
    page.get_by_role("searchbox", name="Search").fill("")
    figures.kernel("picker.layer = 'block2.conv'")
    expect(page.get_by_role("button", name="channel 0, ")).to_be_visible()
    page.get_by_role("button", name="channel 0, ").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Channel 1")).to_be_visible()
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("channel 1,")

    # the next cell goes on with it; Python drives the page
    before = figures.pixels(GRID)
    figures.kernel("picker.layer = 'block1.conv'; picker.channel = 7")
    other_pixels(figures, before)
    expect(page.get_by_role("heading", name="Channel 7")).to_be_visible()
    page.get_by_text("Show the PyTorch code").press("Enter")
    expect(page.get_by_role("group", name="The PyTorch code")).to_have_text(figures.kernel("print(picker.code)"))
    page.get_by_text("Show the PyTorch code").press("Enter")

    figures.kernel("picker.more = True; picker.show = 'gradient'")
    expect(show).to_be_visible()


def test_names_are_text_errors_are_sentences_and_nothing_is_lost(figures: FigurePage) -> None:
    page = figures.page
    figures.scratch(
        """
import torch
from torch import nn
from hookscope.widgets import LayerPicker
class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("<img src=x onerror=alert(1)>", nn.Conv2d(1, 3, 3))
        self.idle, self.angry = nn.ReLU(), False
    def forward(self, x):
        if self.angry:
            raise ValueError("<b>not</b> today")
        return getattr(self, "<img src=x onerror=alert(1)>")(x)
model = Moody()
picker = LayerPicker(model, torch.randn(2, 1, 12, 12), classes=None)
picker
""",
    )
    dialogs: list[Any] = []

    def refuse(dialog: Any) -> None:
        dialogs.append(dialog)
        dialog.dismiss()

    page.on("dialog", refuse)
    layers = page.get_by_role("listbox", name="Layers")
    expect(layers.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    idle = layers.get_by_role("option", name="idle, ReLU: was not called")
    expect(idle).to_have_attribute("aria-disabled", "true")
    idle.click(force=True)
    figures.told("print(picker.layer != 'idle')", "True")
    figures.kernel("model.angry = True")
    page.get_by_text("More choices").click()
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("alert")).to_have_text("ValueError: <b>not</b> today")
    figures.kernel("model.angry = False")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Sample").select_option("1")
    expect(page.locator(".hs-caption")).to_contain_text("sample 1")
    assert figures.kernel("import hookscope; print(len(hookscope.census(model)))") == "0"
    assert figures.page.locator(".hookscope img[src=x]").count() == 0
    assert not dialogs
    page.remove_listener("dialog", refuse)


def test_on_a_small_page_the_picker_is_seen_almost_whole(figures: FigurePage) -> None:
    draw(figures, "LayerPicker", "picker.layer = 'block2.conv'; picker.channel = 3")
    page = figures.page
    figures.width(592)  # what JupyterLab leaves at 1024×768, with the file browser open
    stage = page.locator(".hs-stage")
    figures.settled(stage)
    layers, maps = measure_boxes(page.get_by_role("listbox", name="Layers"), page.locator(GRID))
    assert maps["y"] + maps["height"] - layers["y"] < 680  # from the list to the last map without scrolling
    figures.kernel("picker.channel = -1")
    figures.settled(stage)
    assert measure_boxes(stage)[0]["height"] < 920
    figures.kernel("picker.layer = 'block1.conv'")
    figures.settled(stage)
    page.locator(".hs-stage").scroll_into_view_if_needed()


@pytest.mark.slow
def test_many_modules_open_fast_enough_to_be_used(figures: FigurePage) -> None:
    figures.scratch(
        "import torch\nfrom torch import nn\nfrom hookscope.widgets import LayerPicker\n"
        "model = nn.Sequential(*[nn.Identity() for _ in range(5000)])\n"
        "picker = LayerPicker(model, torch.ones(1, 2, 4, 4))\npicker",
    )
    layers = figures.page.get_by_role("listbox", name="Layers")
    expect(layers).to_be_visible()
    assert layers.get_by_role("option").count() < 60
    layers.focus()
    figures.page.keyboard.press("End")
    expect(layers.get_by_role("option", name="4999, Identity")).to_be_visible()
    figures.told("print(picker.layer)", "4999")
    # After a search the list is back at what is chosen.
    search = figures.page.get_by_role("searchbox", name="Search")
    search.fill("17")
    expect(layers.get_by_role("option", name=re.compile("^17, Identity"))).to_be_in_viewport()
    search.fill("")
    expect(layers.get_by_role("option", name="4999, Identity")).to_be_in_viewport()


def test_deep_names_are_read_whole(figures: FigurePage) -> None:
    """The depth, names and types of torchvision's vit_b_16."""
    figures.scratch(
        """
import torch
from torch import nn
from hookscope.widgets import LayerPicker
Quantizable = type("NonDynamicallyQuantizableLinear", (nn.Linear,), {})
def nest(*names):
    inner = Quantizable(64, 1234)
    for name in reversed(names):
        outer = nn.Sequential()
        outer.add_module(name, inner)
        inner = outer
    return inner
model = nest("encoder", "layers", "encoder_layer_0", "self_attention", "a_long_name_of_33_letters_in_all_", "out_proj")
picker = LayerPicker(model, torch.ones(16, 197, 64))
picker
""",
    )
    page = figures.page
    cut = """(names) => [...document.querySelectorAll(names)]
        .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.textContent)"""
    expect(page.locator(".hs-own")).to_have_count(7)
    for width in (PANE[0], 592, 400):
        figures.width(width)
        assert page.evaluate(cut, ".hs-own, .hs-type, .hs-what span:nth-child(2)") == []
    # A search shows whole names: of one that is too long, its own end.
    page.get_by_role("searchbox", name="Search").fill("Quantizable")
    expect(page.locator(".hs-name")).to_have_text(
        ["encoder.layers.encoder_layer_0.self_attention.a_long_name_of_33_letters_in_all_.out_proj"]
    )
    assert page.evaluate(cut, ".hs-own") == []
