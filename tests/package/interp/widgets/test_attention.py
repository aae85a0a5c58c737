"""The attention picker: what is chosen is what is shown, from Python and from the page."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import hookscope
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
    assert AttentionPicker(maps)._notes[0] == maps["wide"].check
    near = dataclasses.replace(maps["wide"], output_error=3e-8)
    assert near.check == "weights @ v differs from the result of the call by at most 1e-07"
    exact = dataclasses.replace(maps["wide"], output_error=0.0)
    assert exact.check == "weights @ v equals the result of the call, bit for bit"


def test_its_caption_speaks_of_no_greatest_weight_since_no_column_has_it(maps):
    causal = dataclasses.replace(maps["wide"], weights=maps["wide"].weights.tril())
    assert "the greatest weight is that of a query that sees several keys" in causal.picture().caption
    picture = draw_head(causal, 0, 0)
    assert [*picture.rows[0]] == ["query", "looks most at", "weight", "entropy (bits)"]
    assert "greatest weight" not in picture.caption
