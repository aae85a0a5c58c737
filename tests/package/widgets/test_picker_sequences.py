"""The examples of docs/limits/layer_picker.md run: an LSTM, and a vision transformer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.widgets import LayerPicker

PAGE = Path(__file__).parents[3] / "docs" / "limits" / "layer_picker.md"
LSTM, VIT = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(code: str, **names: Any) -> dict[str, Any]:
    names |= {"torch": torch, "nn": nn, "hookscope": hookscope, "LayerPicker": LayerPicker}
    exec(code, names)
    return names


def test_the_states_of_an_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(LSTM)
    assert capsys.readouterr().out.strip() in LSTM
    output, (h_n, c_n) = names["lstm"](names["x"])
    for part, expected in (("[0]", output), ("[1][0]", h_n), ("[1][1]", c_n)):
        names["picker"].part = part
        assert torch.allclose(names["picker"].activation, expected)


def test_the_patches_of_a_vision_transformer() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    vit = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)).eval()
    image = torch.randn(2, 3, 32, 32)
    maps = run(VIT, vit=vit, image=image)["maps"]
    with hookscope.capture(vit, "layers.1") as seen:
        vit(image)
    output = seen["layers.1"].output
    rows = output if isinstance(output, torch.Tensor) else output[0]
    assert maps.shape == (2, 12, 4, 4)
    for patch in range(16):
        assert torch.allclose(maps[:, :, patch // 4, patch % 4], rows[:, 1 + patch], atol=1e-5)
