"""The order player in a real JupyterLab: by mouse, by keyboard, in both themes, on a narrow page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
HOSTILE = "<img src=x onerror=alert(1)>"
MODEL = f"""
import torch
from torch import nn
import hookscope
from hookscope.widgets.player import OrderPlayer
block = nn.Sequential()
block.add_module({HOSTILE!r}, nn.Linear(4, 3))
block.add_module("relu", nn.ReLU())
model = nn.Sequential(block, nn.Linear(3, 2))
x = torch.ones(1, 4, requires_grad=True)
with hookscope.record(model, values=True) as recording:
    model(x).sum().backward()
"""
PLAYER = "player = OrderPlayer(recording)\nplayer"
LONG = """
with hookscope.record(model) as long:
    for _ in range(100):
        model(x).sum().backward()
many = OrderPlayer(long)
many
"""


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests: starting costs most."""
    lab.scratch("order", MODEL, PLAYER, LONG)
    return lab


def test_player(opened: Lab) -> None:
    lab, stage = opened, player(opened)
    stage.scroll_into_view_if_needed()
    words, lit = stage.locator(".op-words"), stage.locator(".op-event.op-lit")
    expect(words).to_have_text("No hook has fired yet. 20 will.")
    expect(lit).to_have_count(0)

    # By mouse: buttons, a click on a line, the slider.
    press(stage, "Next")
    expect(words).to_have_text("forward pre-hook of layer (root), call 1: args ((1, 4),)")
    expect(stage.locator(".op-badge")).to_have_text("→ forward")
    expect(lit).to_contain_text("forward_pre")
    expect(stage.locator(".op-facts")).not_to_contain_text("inside")  # it is the root's own hook
    before = stage.screenshot()
    press(stage, "Last")
    expect(words).to_contain_text("full backward hook of layer (root)")
    expect(stage.locator(".op-badge")).to_have_text("← backward")
    expect(stage.get_by_role("button", name="Next")).to_have_attribute("aria-disabled", "true")
    assert stage.screenshot() != before
    lab.told("print(player.index, player.event.label)", "19 full_backward (root)")
    press(stage, "First")
    stage.locator(".op-event", has_text="output (1, 3)").first.click()
    expect(words).to_contain_text(f"forward hook of layer '0.{HOSTILE}', call 1: output (1, 3)")
    facts = stage.locator(".op-facts")
    expect(facts).to_contain_text(re.compile(r"inside\(root\) › 0registered as"))  # and not itself
    expect(facts).to_contain_text("values[[")
    assert lab.page.locator("img[src='x']").count() == 0
    stage.get_by_role("slider", name="event").fill("11")
    expect(words).to_contain_text("full backward pre-hook of layer '1'")

    # By keyboard, from anywhere in it; the notebook stays where it is.
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    stage.get_by_role("listbox").focus()
    cell = lab.page.evaluate(active)
    for key, index in (
        ("Home", 0),
        ("ArrowDown", 1),
        ("ArrowRight", 2),
        ("ArrowUp", 1),
        ("End", 19),
        ("ArrowLeft", 18),
    ):
        lab.page.keyboard.press(key)
        lab.told("print(player.index)", str(index))
    stage.get_by_role("slider", name="event").focus()
    for key, index in (("ArrowLeft", 17), ("ArrowUp", 18), ("ArrowDown", 17), ("Home", 0)):
        lab.page.keyboard.press(key)
        lab.told("print(player.index)", str(index))
    stage.get_by_label("speed").select_option("very fast")
    stage.get_by_role("listbox").focus()
    lab.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Pause")).to_have_count(1)
    expect(words).to_contain_text("full backward hook of layer (root)")
    expect(stage.get_by_role("button", name="Play")).to_have_count(1)
    assert lab.page.evaluate(active) == cell

    # From the kernel, and looks.
    lab.kernel("player.index = 13")
    expect(words).to_contain_text("full backward pre-hook of layer '0'")
    lab.look(stage, "player")
    long = player(lab, 1)
    assert lab.cut(long, ".op-text") == []

    # A long recording: few rows are in the page, every one is reached.
    long.scroll_into_view_if_needed()
    lab.told("print(len(many.events))", "2000")
    long.get_by_role("listbox").focus()
    lab.page.keyboard.press("End")
    expect(long.locator(".op-lit .op-number")).to_have_text("2000")
    expect(long.locator(".op-lit")).to_be_in_viewport()
    assert long.locator(".op-row").count() < 60
    lab.screenshot("player-long", long)

    # It goes on while the kernel is busy.
    lab.page.evaluate(
        f"(code) => {{ {KERNEL}.requestExecute({{ code }}); }}",
        "import pathlib, time\npathlib.Path('begun').touch()\n"
        "while not pathlib.Path('enough').exists(): time.sleep(0.1)\npathlib.Path('ended').touch()",
    )
    while not (lab.folder / "begun").exists():
        lab.page.wait_for_timeout(100)
    lab.page.keyboard.press("Home")
    expect(long.locator(".op-lit .op-number")).to_have_text("1")
    assert not (lab.folder / "ended").exists()
    (lab.folder / "enough").touch()


def test_it_runs_again_from_a_new_kernel(opened: Lab) -> None:
    lab = opened
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    lab.run_all()
    lab.show_all()
    expect(player(lab).locator(".op-words")).to_contain_text("No hook has fired yet")
    press(player(lab), "Next")
    lab.told("print(player.index)", "0")


def player(lab: Lab, number: int = 0) -> Locator:
    return lab.page.locator("section[aria-label='Order player']").nth(number)


def press(stage: Locator, name: str) -> None:
    stage.get_by_role("button", name=name).click()
