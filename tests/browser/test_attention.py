"""The attention picker in a real JupyterLab: by keyboard, in both themes, on a narrow page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CODE = """
import torch
from torch import nn
import hookscope
from hookscope.widgets import AttentionPicker
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
net = nn.Sequential(layer, nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
tokens = ["<img src=x onerror=alert(1)>", "cat", "sat", "down"]
maps = hookscope.attention(net, torch.randn(1, 4, 16), tokens=tokens)
"""


def test_attention_picker(lab: Lab) -> None:
    lab.scratch("attention", CODE, "picker = AttentionPicker(maps)\npicker")
    stage = lab.stage("Attention picker")
    image, caption = stage.locator("img"), stage.locator(".at-caption")
    expect(caption).to_contain_text("head 0 of 4")
    expect(stage.locator(".at-numbers tbody tr")).to_have_count(4)
    assert lab.page.locator("img[src='x']").count() == 0
    lab.settled(stage)
    first = image.get_attribute("src")
    assert image.evaluate("each => getComputedStyle(each).imageRendering") == "auto"  # there are letters on it

    # By keyboard: head 3 of the first layer, then the second layer, which has two.
    stage.get_by_label("Head", exact=True).focus()
    for _ in range(3):
        lab.page.keyboard.press("ArrowDown")
    lab.told("print(picker.head)", "3")
    expect(caption).to_contain_text("head 3 of 4")
    assert image.get_attribute("src") != first
    stage.get_by_label("Layer", exact=True).focus()
    lab.page.keyboard.press("ArrowDown")
    lab.told("print(picker.layer, picker.head)", "1.self_attn 1")
    expect(caption).to_contain_text("head 1 of 2")
    expect(image).to_have_attribute("alt", lab.kernel("print(picker.alt)"))
    expect(stage.get_by_label("Sample", exact=True)).to_be_hidden()

    # From Python, as a lesson would.
    lab.kernel("picker.layer, picker.head = '0.self_attn', 2")
    expect(stage.get_by_label("Layer", exact=True)).to_have_value("0.self_attn")
    expect(caption).to_contain_text("head 2 of 4")
    lab.look(stage, "attention")
