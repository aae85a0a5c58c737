"""Every table can be had as a DataFrame of pandas, whole and with its values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope.pictures import Table
from tests.shared.table_checks import check_each


def test_values_are_what_they_were_and_no_text():
    rows = [{"layer": "a", "mean": 1 / 3, "shape": (1, 2)}, {"layer": "b", "n": torch.tensor(7), "mean": None}]
    frame = Table(rows, "Layers").to_pandas()
    assert list(frame.columns) == ["layer", "mean", "shape", "n"]
    assert frame["mean"][0] == 1 / 3
    assert frame["n"][1] == 7
    assert frame["shape"][0] == (1, 2)
    assert frame.isna().sum().tolist() == [0, 1, 1, 1]
    assert frame.attrs["caption"] == "Layers"
    assert len(Table([]).to_pandas()) == 0


def test_rows_that_the_page_leaves_out_are_there():
    assert len(Table([{"i": i} for i in range(5000)]).to_pandas()) == 5000
    net = nn.ReLU()
    with hookscope.record(net, kinds=("forward",)) as recording:
        for _ in range(300):
            net(torch.ones(1))
    assert recording.to_pandas()["#"].tolist() == [event.index for event in recording.events]
    assert len(recording.events) == 300


@pytest.fixture
def shown(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.ones(2, 4)
    with hookscope.capture(net, gradients=True) as seen:
        net(x).sum().backward()
    with hookscope.edit(net) as edited:
        edited.scale("0", 0.5)
        net(x)
    net.register_forward_hook(lambda *_: None)
    encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    return {
        "capture": (seen, ["0", "1"]),
        "edit": (edited, None),
        "census": (hookscope.census(net), None),
        "attention": (hookscope.attention(encoder, torch.randn(1, 3, 8)), None),
        "sweep": (hookscope.sweep(net, x, layers="0", source="zero", metric=lambda y: y.sum()).table(), None),
        "a profile": (hookscope.profile(net, x, repeats=2), None),
        "an attention map": (hookscope.attention(encoder, torch.randn(1, 3, 8))[0], None),
        "backward hooks": (hookscope.compare_backward_hooks(nn.Linear(4, 5), x.requires_grad_()), None),
        "diagnosis": (hookscope.diagnose(net, "0", x), None),
        "gradient flow": (hookscope.gradient_flow(seen), ["0", "1"]),
        "feature grid": (hookscope.feature_grid(torch.rand(1, 3, 4, 4)), None),
        "activations": (hookscope.collect(net, [x.detach()], to=tmp_path), ["0", "1"]),
    }


def test_all_that_shows_a_table(shown):
    def check(kind):
        thing, first = shown[kind]
        frame = thing.to_pandas()
        assert len(frame) > 0
        head = repr(thing).splitlines()
        assert any(all(str(column) in line for column in frame.columns) for line in head), "the columns are those shown"
        if first is not None:
            assert frame.iloc[:, 0].tolist() == first

    check_each(shown, check)


def test_a_sweep_has_a_row_for_each_cell():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4)
    found = hookscope.sweep(net, x, layers=["0", "1"], source="zero", channels=range(4), metric=lambda y: y.sum())
    frame = found.to_pandas()
    assert list(frame.columns) == ["layer", "channel", "value", "change"]
    assert frame["value"].tolist() == found.values.flatten().tolist()
