"""The panel "Show the PyTorch code" of two widgets: its lines run, and give what the widget shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import census, samples
from hookscope.widgets import LayerPicker, TokenPicker
from hookscope.widgets.base import assets
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import IDS, gpt2

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def run(code: str, model: nn.Module, **names: Any) -> dict[str, Any]:
    """Run the lines, with nothing but these names."""
    assert "hookscope" not in code
    found: dict[str, Any] = {"model": model, **names}
    exec(compile(code, "shown", "exec"), found)
    assert not census(model)
    return found


@pytest.mark.parametrize("name", ["picker", "token"])
def test_the_page_has_the_panel(name: str) -> None:
    folder = "interp/widgets" if name != "picker" else "widgets"
    script, _ = assets(Path(hookscope.__file__).parent / folder / name)
    assert "Show the PyTorch code" in script
    assert script.count("codePanel(model)") == 2, "its definition, and one call"


def test_a_layer_picker_follows_the_choice() -> None:
    net, digit = samples.digit_cnn(), samples.digit(5)
    picker = LayerPicker(net, digit, layer="block1.conv")
    assert torch.equal(run(picker.code, net, x=digit)["activation"], picker.activation)
    picker.layer = "block2.relu"
    assert torch.equal(run(picker.code, net, x=digit)["activation"], picker.activation)
    assert "    model(x)\n" in picker.code
    assert picker.code.endswith("activation = outputs['block2.relu'][0]\n")
    assert len([line for line in picker.code.splitlines() if line]) <= 18


def test_a_layer_picker_of_parts_calls_and_other_inputs() -> None:
    def forward(self: nn.Module, x: Tensor, scale: float = 1.0) -> Any:
        made = self.cell(x) | {"again": self.cell(x + 1)["low"] * scale}
        return {**made, "twice": self.drop(made["low"])}

    net = Net(forward, cell=Do(lambda x: {"low": x * 2, "pair": (x, x - 1)}), drop=nn.Dropout(0.5)).train()
    picker = LayerPicker(net, X, kwargs={"scale": 3.0}, layer="cell", call=2, part="['pair'][1]")
    found = run(picker.code, net, x=X, kwargs={"scale": 3.0})
    assert torch.equal(found["activation"], picker.activation)
    assert torch.equal(found["activation"], X)
    net.train()
    picker.layer = ""
    for part in ("['again']", "['twice']"):
        picker.part = part
        assert torch.equal(run(picker.code, net, x=X, kwargs={"scale": 3.0})["activation"], picker.activation)
    both = LayerPicker(net, X, 3.0, layer="cell")
    assert torch.equal(run(both.code, net, inputs=(X, 3.0))["activation"], both.activation)


def test_a_layer_without_a_tensor_has_no_code() -> None:
    net = Net(lambda self, x: self.line(x) + len(self.word()), line=nn.Linear(3, 3), word=Do(lambda: "a"))
    picker = LayerPicker(net, X, layer="line")
    picker.layer = "word"
    assert "contains no tensor" in picker.problem
    assert picker.code == ""


def test_a_token_picker_follows_the_choice() -> None:
    net = gpt2()
    picker = TokenPicker(net, IDS)
    picker.sample, picker.token, picker.layer = 1, 2, "transformer.h.0"
    found = run(picker.code, net, x=IDS)
    assert found["stream"].shape == (net.config.n_embd,)
    assert float(found["stream"].norm()) == pytest.approx(float(picker.reading.norm[0, 2]), rel=1e-5)
    assert picker.code.endswith("stream = outputs['transformer.h.0'][0][1, 2]  # sample 1, token 2\n")


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_token_picker_of_other_layouts_and_calls(batch_first: bool) -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    net = Net(lambda self, x: self.blocks[0](self.blocks[0](x)), blocks=nn.ModuleList([block])).eval()
    x = torch.randn(2, 3, 8)
    picker = TokenPicker(net, x, layers="blocks.0")
    picker.layer, picker.token = "blocks.0#2", 1
    stream = run(picker.code, net, x=x)["stream"]
    assert float(stream.norm()) == pytest.approx(float(picker.reading.norm[1, 1]), rel=1e-5)
    assert ("# sample 0, token 1" in picker.code) == batch_first
