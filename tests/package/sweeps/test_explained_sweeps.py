"""`explain` writes a sweep as the plain loop of hooks, one pass for each cell, and the loop gives the same numbers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import census, explain, sweep
from tests.shared.awkward import Net
from tests.shared.explained import checked
from tests.shared.language import IDS, gpt2
from tests.shared.swept import Gated

X, Y = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))


def gated() -> nn.Module:
    torch.manual_seed(0)
    return Gated().eval()


def shared() -> nn.Module:
    torch.manual_seed(0)
    return Net(lambda self, x: self.leaf(x) * 2 + self.leaf(x + 1), leaf=nn.Linear(8, 8))


def noisy() -> nn.Module:
    """Draws random numbers, changes a buffer, and writes to what it is given."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(inplace=True))
    return Net(lambda self, x: self.body(x.mul_(2)), body=net)


def of_scores(output: Any) -> torch.Tensor:
    return output["scores"][0, 1].sum()


SWEEPS = {
    "positions": (gated, X, ["stem", "blocks.0.gate", "blocks.2.act"], Y, {"positions": range(5)}),
    "channels along another axis": (gated, X, ["stem", "blocks.1.gate"], Y, {"channels": [7, 0], "axis": 2}),
    "zero": (gated, X, ["stem"], "zero", {"positions": range(5)}),
    "the mean of the batch": (gated, X, ["stem", "blocks.1.body"], "mean", {"positions": [0, 4]}),
    "the mean of others": (gated, X, ["stem"], ("mean", Y), {}),
    "whole layers": (gated, X, ["stem", "blocks.1.norm"], Y, {}),
    "a part": (gated, X, ["blocks.*"], Y, {"positions": range(5), "part": 0}),
    "keywords": (gated, {"x": X, "scale": 2.0}, ["stem"], {"x": Y, "scale": 0.5}, {"positions": range(3)}),
    "keywords and none": (gated, {"x": X}, ["stem"], Y, {"positions": range(3)}),
    "calls": (shared, X, ["leaf#2", "leaf#1"], Y, {"positions": range(3), "metric": lambda y: y[0, 1, 2]}),
    "random numbers": (noisy, X, ["body.0", "body.1"], Y, {"positions": range(2), "metric": lambda y: y.sum()}),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_the_loop_gives_the_same_numbers(name: str) -> None:
    make, inputs, layers, source, options = SWEEPS[name]
    options = {"metric": of_scores, "progress": False} | options
    net = make()
    torch.manual_seed(7)
    found = sweep(net, inputs, layers, source, **options)
    same(net, inputs if isinstance(inputs, dict) else (inputs,), found)


def same(net: nn.Module, inputs: Any, found: Any, fused: bool = False) -> None:
    code = checked(found)
    before = [tensor.clone() for tensor in net.state_dict().values()]
    names = {**explain(found).names, "model": net, "inputs": inputs}
    torch.manual_seed(7)
    exec(compile(code, "explained", "exec"), names)
    assert not census(net)
    assert all(map(torch.equal, before, net.state_dict().values()))
    assert names["baseline"] == (pytest.approx(found.baseline, rel=1e-5) if fused else found.baseline)
    assert names["values"].shape == found.values.shape
    scale = float(found.values.abs().max())
    torch.testing.assert_close(names["values"], found.values, rtol=0, atol=1e-5 * scale)
    assert (found.values != found.baseline).any()


def test_heads_of_gpt2_and_layers_that_return_tuples() -> None:
    net = gpt2()

    def metric(output: Any) -> torch.Tensor:
        return output.logits[0, -1, 3]

    layers = ["transformer.h.1.attn", "transformer.h.0.attn"]
    same(net, (IDS,), sweep(net, IDS, layers, IDS.flip(1), heads=[1, 0], metric=metric, progress=False))
    found = sweep(net, IDS, "transformer.h.*.attn", "zero", positions=range(3), part=0, metric=metric, progress=False)
    same(net, (IDS,), found)


def test_the_lines_are_few() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    found = sweep(net, torch.ones(1, 3), "0", "zero", channels=[0, 1], metric=lambda y: y.sum())
    assert str(explain(found)) == (
        "import copy\n"
        "import torch\n\n"
        "# metric: your function of what the model returns\n\n\n"
        "def patch_1(layer, row, index):\n"
        "    def hook(module, args, output):\n"
        "        tensor = output\n"
        "        new = tensor.clone()  # a copy: others may hold the tensor itself\n"
        "        new[index] = 0\n"
        "        return new\n\n"
        "    return layer.register_forward_hook(hook)\n\n\n"
        "rows = {  # row -> its layer, what patches it\n"
        "    '0': ('0', patch_1),\n"
        "}\n\n\n"
        "def run(given, *places):\n"
        "    handles = []\n"
        "    try:\n"
        "        for row, index in places:\n"
        "            layer, patch = rows[row][:2]\n"
        "            handles.append(patch(model.get_submodule(layer), row, index))\n"
        "        given = copy.deepcopy(given)  # a model may write to it\n"
        "        with torch.no_grad():\n"
        "            return model(*given)\n"
        "    finally:\n"
        "        for handle in handles:\n"
        "            handle.remove()  # otherwise your hooks fire in every later pass\n\n\n"
        "baseline = float(metric(run(inputs)))\n"
        "channels = [0, 1]\n"
        "values = torch.zeros(len(rows), len(channels), dtype=torch.float64)\n"
        "for number, row in enumerate(rows):\n"
        "    for column, channel in enumerate(channels):\n"
        "        index = (slice(None), channel)\n"
        "        values[number, column] = float(metric(run(inputs, (row, index))))\n"
    )


def test_a_pickled_sweep_has_no_metric_left_to_explain() -> None:
    found = sweep(nn.ReLU(), torch.ones(1, 3), "", "zero", channels=[0], metric=lambda y: y.sum())
    with pytest.raises(ValueError, match="was pickled, and that keeps neither metric nor source: explain it before"):
        explain(pickle.loads(pickle.dumps(found)))
