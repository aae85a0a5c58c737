"""The attention picker: what is chosen is what is shown, from Python and from the page."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from torch import nn

import hookscope
from hookscope import LayerNotFoundError
from hookscope.interp.attentions.drawing import draw_head
from hookscope.interp.widgets.attention import AttentionPicker


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.MultiheadAttention(8, 4, batch_first=True)
        self.narrow = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.narrow(*[self.wide(x, x, x)[0]] * 3)[0]


@pytest.fixture(scope="module")
def maps():
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    return hookscope.attention(Two().eval(), x, tokens=["the", "cat", "sat"])


def test_it_shows_what_is_chosen(maps):
    picker = AttentionPicker(maps, layer="wide", head=3, sample=1)
    weights = maps["wide"].weights[1, 3]
    assert [row["weight"] for row in picker.numbers()] == pytest.approx(weights.amax(-1).tolist())
    assert (
        picker.numbers()[0]["looks most at"] == f"{int(weights[0].argmax())} {maps['wide'].keys[weights[0].argmax()]}"
    )
    assert "wide, head 3 of 4, sample 1" in repr(picker)
    before = picker.png
    picker.head = 2
    assert picker.png != before
    assert "head 2" in picker.alt
    assert picker._rows[0][2] == pytest.approx(float(maps["wide"].weights[1, 2, 0].max()))


def test_a_layer_with_fewer_heads(maps):
    picker = AttentionPicker(maps, layer="wide", head=3)
    picker.layer = "narrow"
    assert (picker.head, picker._heads, picker.problem) == (1, 2, "")
    assert "narrow" in picker.alt
    assert torch.equal(picker.map.weights, maps["narrow"].weights)


def test_it_says_how_far_the_weights_were_checked(maps):
    picker = AttentionPicker(maps)
    error = maps["wide"].output_error
    said = re.fullmatch(r"weights @ v differ from what the call returned by at most (1e-\d+)", picker._notes[0])
    assert error <= float(said[1]) < 10 * error
    exact = dataclasses.replace(maps["wide"], output_error=0.0)
    assert exact.check == "weights @ v are what the call returned, to the last bit"


def test_its_caption_speaks_of_no_greatest_weight_since_no_column_has_it(maps):
    causal = dataclasses.replace(maps["wide"], weights=maps["wide"].weights.tril())
    assert "the greatest weight is that of a query that sees several keys" in causal.picture().caption
    picture = draw_head(causal, 0, 0)
    assert [*picture.rows[0]] == ["query", "looks most at", "weight", "entropy (bits)"]
    assert "greatest weight" not in picture.caption


def test_the_page_says_so(maps):
    picker = AttentionPicker(maps)
    picker.set_state({"layer": "narrow", "_request": 1})
    picker.set_state({"head": 1, "_request": 2})
    assert (picker.layer, picker.head, picker._response) == ("narrow", 1, 2)
    assert "head 1 of 2" in picker.alt


def test_what_is_not_there(maps):
    picker = AttentionPicker(maps)
    with pytest.raises(LayerNotFoundError, match="did you mean 'wide'"):
        picker.layer = "wied"
    with pytest.raises(IndexError, match="no head 4"):
        picker.head = 4
    with pytest.raises(IndexError, match="no sample 2"):
        picker.sample = 2
    assert (picker.layer, picker.head, picker.sample) == ("wide", 0, 0)
    with pytest.raises(LayerNotFoundError):
        AttentionPicker(maps, layer="nothing")
    with pytest.raises(ValueError, match="no attribute 'row'"):
        AttentionPicker(maps, row=1)
    with pytest.raises(TypeError, match=r"maps must be AttentionMaps, not Two"):
        AttentionPicker(Two())
    with pytest.raises(ValueError, match="no attention map to show: 0 maps"):
        AttentionPicker(hookscope.attention(nn.ReLU(), torch.ones(2)))
