"""One cell of a sweep: its edit, run alone, gives what the sweep has."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError, census
from hookscope.interp.sweeps import Cell
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, gpt2, small_vit
from tests.shared.sweep_helpers import Gated, sweep

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


def same(net: nn.Module, found: Any, cells: list[tuple[str, int]], fused: bool = False) -> None:
    """Run the edit of each cell; where it switches a fused path off, the rest is rounded differently."""
    near = 1e-5 if fused else 1e-6
    before = [tensor.clone() for tensor in net.state_dict().values()]
    scale = max(float(found.values.abs().max()), abs(found.baseline))
    for layer, column in cells:
        cell = Cell(found, layer, column)
        random = torch.get_rng_state()
        outcome = cell.run()
        assert torch.equal(torch.get_rng_state(), random)
        assert outcome.notes == ()
        assert outcome.value == pytest.approx(cell.value, abs=1e-5 * scale)
        assert outcome.baseline == pytest.approx(found.baseline, abs=near * scale)
    assert not census(net)
    assert all(map(torch.equal, before, net.state_dict().values()))


@pytest.mark.parametrize("name", SWEEPS)
def test_the_edit_gives_the_number_of_the_sweep(name: str) -> None:
    make, inputs, layers, source, options = SWEEPS[name]
    options = {"metric": of_scores, "progress": False} | options
    net = make()
    found = sweep(net, inputs, layers, source, **options)
    torch.manual_seed(99)  # whatever the generator does since
    same(net, found, [(found.layers[0], found.columns[-1]), (found.layers[-1], found.columns[0])])


def test_calls_and_the_mean_of_others() -> None:
    make, inputs, layers, _, options = SWEEPS["calls"]
    for source in ("mean", ("mean", Y), "zero"):
        found = sweep(net := make(), inputs, layers, source, progress=False, **options)
        same(net, found, [("leaf#2", 1), ("leaf#1", 0)])


def test_heads_of_gpt2_and_layers_that_return_tuples() -> None:
    net = gpt2()

    def metric(output: Any) -> torch.Tensor:
        return output.logits[0, -1, 3]

    layers = ["transformer.h.1.attn", "transformer.h.0.attn"]
    for source in (IDS.flip(1), "zero", "mean", ("mean", IDS.flip(1))):
        found = sweep(net, IDS, layers, source, heads=[1, 0], metric=metric, progress=False)
        same(net, found, [(layers[0], 1), (layers[1], 0)])
    keyed = sweep(
        net, {"input_ids": IDS}, layers, {"input_ids": IDS.flip(1)}, positions=range(3), part=0, metric=metric
    )
    same(net, keyed, [(layers[0], 2)])


def test_a_vit_of_torchvision() -> None:
    net, image = small_vit(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = sweep(net, image, "encoder.layers.*", "mean", positions=range(5), metric=lambda y: y[0, 1], progress=False)
    same(net, found, [(found.layers[0], 4)])


@pytest.mark.slow
def test_channels_of_resnet18() -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    net, image = resnet18().eval(), torch.randn(1, 3, 32, 32)
    layers = ["layer1.0.conv1", "layer4.1.bn2"]
    for source in ("zero", image.flip(-1)):
        found = sweep(net, image, layers, source, channels=[0, 7, 63], metric=lambda y: y[0, 1], progress=False)
        same(net, found, [(layers[0], 7), (layers[1], 63)])


def test_the_words_say_it() -> None:
    net = gated()
    found = sweep(
        net, X, "stem", Y, positions=range(5), tokens=["the", "cat", "sat", "on", "it"], metric=of_scores, check=1
    )
    cell = Cell(found, "stem", 1)
    assert cell.name == "stem, position 1 'cat'"
    assert cell.words == "Position 1 'cat' of the output of stem is patched from the source."


def test_a_model_that_is_another_now_is_said_to_be() -> None:
    net = gated()
    found = sweep(net, X, ["stem", "head"], Y, positions=range(5), metric=of_scores, progress=False)
    outcome = Cell(found, "stem", 1).run()
    assert outcome.notes == ()
    assert float(of_scores(outcome.after)) == outcome.value != outcome.baseline
    with torch.no_grad():
        net.head.weight *= 1.001
    first, second = Cell(found, "stem", 1).run().notes
    assert first.startswith("Without a change the model now gives")
    assert second.startswith("This edit now gives")
    assert f"the cell has {float(found.values[0, 1]):.4g}" in second
    with torch.no_grad():
        net.head.weight /= 1.001
    wrong = found.values.clone()
    wrong[0, 1] += 2e-5 * max(float(found.values.abs().max()), abs(found.baseline))
    object.__setattr__(found, "values", wrong)
    (said,) = Cell(found, "stem", 1).run().notes
    assert "a gap of 2e-05 of the largest value in the sweep" in said


def test_what_is_gone_is_said() -> None:
    net = gated()
    found = sweep(net, X, "stem", Y, positions=range(5), metric=of_scores, progress=False)
    cell = Cell(pickle.loads(pickle.dumps(found)), "stem", 1)
    assert cell.words.startswith("Position 1 of the output of stem is")
    with pytest.raises(ValueError, match="this sweep was saved or copied, which drops the model"):
        cell.run()
    cell = Cell(found, "stem", 1)
    del net
    gc.collect()
    with pytest.raises(ValueError, match="the model of this sweep was freed"):
        cell.run()


def test_a_cell_that_an_interrupt_left_out_can_be_run() -> None:
    net, ran = gated(), []

    def metric(output: Any) -> torch.Tensor:
        ran.append(1)
        if len(ran) == 7:
            raise KeyboardInterrupt
        return of_scores(output)

    found = sweep(net.train(), X, ["stem", "blocks.1.gate"], Y, positions=range(5), metric=metric, progress=False)
    assert found.undone is not None
    assert found.undone.sum() == found.values.isnan().sum() == 6
    cell = Cell(found, "blocks.1.gate", 4)
    assert not cell.was_run
    assert Cell(found, "stem", 0).was_run
    assert "6 cells hatched, not run because of an interrupt" in found.picture().alt
    (said,) = cell.run().notes
    assert said.startswith("The sweep was interrupted before this cell")
    drawn = [patch.get_bbox().bounds for patch in found._draw().axes[0].patches if patch.get_hatch()]
    rows, columns = found.undone.nonzero().T.tolist()
    assert sum(wide * tall for _, _, wide, tall in drawn) == 6
    for row, column in zip(rows, columns, strict=True):
        assert [x < column < x + wide and y < row < y + tall for x, y, wide, tall in drawn].count(True) == 1


def test_what_is_not_there() -> None:
    found = sweep(gated(), X, "stem", Y, positions=[0, 2], metric=of_scores, progress=False)
    with pytest.raises(LayerNotFoundError, match="no layer 'stam' in this sweep; did you mean 'stem'"):
        Cell(found, "stam", 0)
    with pytest.raises(IndexError, match=r"no position 1 in this sweep\. Pass one of 0, 2"):
        Cell(found, "stem", 1)
