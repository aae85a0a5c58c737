"""What cannot be right is refused before the sweep, with a word about what to write instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError, NotEditedError
from hookscope.interp.sweeps import Cell
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, bert
from tests.shared.sweep_helpers import is_close, sweep

X = torch.randn(2, 5, 4)


def net() -> nn.Module:
    return Net(
        lambda self, x: self.head(self.relu(self.body(self.relu(x)))),
        body=nn.Linear(4, 4), head=nn.Linear(4, 3), relu=nn.ReLU(), unused=nn.Linear(4, 4),
        lstm=nn.LSTM(4, 4), list=nn.ModuleList([nn.ReLU()]),
    )  # fmt: skip


GOOD = {"inputs": X, "layers": "body", "source": "zero", "positions": range(5), "metric": lambda y: y.sum()}
BEFORE = {
    "an unknown layer": ({"layers": "boyd"}, LayerNotFoundError, "no layer 'boyd'; did you mean 'body'"),
    "one unknown layer of two": ({"layers": ["body", "haed"]}, LayerNotFoundError, "no layer 'haed'.*'head'"),
    "no layers": ({"layers": []}, ValueError, "layers is empty"),
    "source in a list": ({"source": [X]}, TypeError, "source is of type list. Pass 'zero', 'mean'.*a tensor"),
    "a source in a word": (
        {"source": "zeros"},
        ValueError,
        "source='zeros' is not a source. Pass other inputs .* 'zero', 'mean'",
    ),
    "a metric that is none": ({"metric": "sum"}, TypeError, "metric is of type str"),
    "a class as metric": (
        {"metric": nn.CrossEntropyLoss},
        TypeError,
        "metric is the class CrossEntropyLoss. Pass a func",
    ),
    "positions and channels": ({"channels": [0]}, ValueError, "takes one of positions=, heads= and channels="),
    "no positions": ({"positions": []}, ValueError, "is empty"),
    "a position twice": ({"positions": [1, 1]}, ValueError, "contains a number twice"),
    "positions in words": ({"positions": "first"}, TypeError, "positions='first': pass integers"),
    "positions as a mask": ({"positions": [True, False]}, TypeError, "pass integers"),
    "axis 0": ({"axis": 0}, ValueError, "axis=0.*axis 0 is the batch"),
    "an axis for nothing": ({"axis": 1, "positions": None}, ValueError, "axis= says where"),
    "nothing to compare": ({"check": 0}, ValueError, "check=0"),
    "no memory": ({"max_bytes": 0}, ValueError, "max_bytes=0"),
    "heads that are none": ({"positions": None, "heads": [0]}, ValueError, "no attribute with its number of heads"),
    "only a list of modules": ({"layers": nn.ModuleList}, LayerNotFoundError, "never called"),
}


@pytest.mark.parametrize("what", sorted(BEFORE))
def test_options_are_checked_before_the_first_pass(what: str) -> None:
    options, error, match = BEFORE[what]
    model = net()
    model.register_forward_pre_hook(lambda module, args: pytest.fail("the model was run"))
    given = {"model": model} | GOOD | options
    with pytest.raises(error, match=match):
        sweep(**given)


AFTER = {
    "a position too far": (
        {"positions": [0, 5]}, IndexError, r"no position 5: axis 1 of .* has 5. Pass positions from 0 to 4",
    ),
    "a channel too far": ({"positions": None, "channels": [4], "axis": 2}, IndexError, "no channel 4: axis 2"),
    "channels of three axes": ({"positions": None, "channels": [0]}, ValueError, r"\(2, 5, 4\).*say which axis"),
    "an axis that is not there": ({"axis": 3}, ValueError, "has no axis 3"),
    "a source of another shape": (
        {"source": X[:, :4]}, ValueError, r"layer 'body' has shape \(2, 4, 4\) in the run on source, but \(2, 5, 4\)",
    ),
    "a vector": ({"metric": lambda y: y[0, 0]}, ValueError, r"the metric returned a tensor of shape \(3,\)"),
    "no numbers": ({"metric": lambda y: y[:0]}, ValueError, r"shape \(0, 5, 3\)"),
    "a complex number": ({"metric": lambda y: y.sum() * 1j}, ValueError, r"shape \(\) and dtype torch.complex64"),
    "an array": ({"metric": lambda y: y[0, 0].numpy()}, ValueError, r"an array of shape \(3,\)"),
    "nothing": ({"metric": lambda y: None}, TypeError, "the metric returned NoneType"),
    "a layer that is not called": ({"layers": ["body", "unused"]}, NotEditedError, "layer 'unused' was not called"),
    "a list, by name": ({"layers": "list"}, NotEditedError, "torch never calls a ModuleList"),
    "two calls": (
        {"layers": "relu"}, NotEditedError, "'relu' was called 2 times .*Name the call: 'relu#1', 'relu#2'",
    ),
    "a third call of two": ({"layers": "relu#3"}, NotEditedError, "'relu#3': the layer was called 2 times"),
    "the mean of one sample": ({"inputs": X[:1], "source": "mean"}, ValueError, "the mean over one sample"),
    "a part that is not there": ({"part": "h"}, LookupError, "layer 'body' has no part"),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(AFTER))
def test_what_only_a_pass_can_tell_is_said_before_the_cells(what: str) -> None:
    options, error, match = AFTER[what]
    model, runs = net(), []
    model.register_forward_pre_hook(lambda module, args: runs.append(1) and None)
    with pytest.raises(error, match=match):
        sweep(**{"model": model} | GOOD | options)
    assert len(runs) <= 3
    assert all(not module._forward_hooks for module in model.modules())


ONE = {
    "a tensor without axes": lambda y: y.sum(),
    "a vector of one": lambda y: y.sum().reshape(1),
    "a matrix of one": lambda y: y.sum().reshape(1, 1),
    "a number of Python's": lambda y: y.sum().item(),
    "an array without axes": lambda y: y.sum().numpy(),
    "an array of one": lambda y: y.sum().reshape(1, 1).numpy(),
    "a number of NumPy's": lambda y: y.numpy().sum(),
    "a tensor that requires grad": lambda y: y.sum().reshape(1, 1).clone().requires_grad_(),
}


@pytest.mark.parametrize("check", [2, 5], ids=["in a batch", "alone"])
@pytest.mark.parametrize("what", ONE)
def test_one_number_in_any_shape_is_a_metric(what: str, check: int) -> None:
    model = net()
    known = sweep(**{"model": model} | GOOD | {"check": check})
    found = sweep(**{"model": model} | GOOD | {"check": check, "metric": ONE[what]})
    assert is_close(found.values, known.values)
    assert Cell(found, "body", 1).run().value == pytest.approx(float(found.values[0, 1]), rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "asked", "said"),
    [
        ((3, 4), "positions", "If the 6 values of axis 1 are positions, pass SweepOptions.axis=1.; .* pass channels="),
        ((4,), "positions", "It has no axis after the batch axis. Sweep the whole layer"),
        ((4,), "channels", "It has no axis after the batch axis. Sweep the whole layer"),
        ((2, 5, 4), "channels", "say which axis you mean, from .*axis=1.* to .*axis=2"),
        ((2, 5, 5, 4), "positions", "say which axis you mean, from .*axis=1.* to .*axis=3"),
    ],
)
def test_the_axis_that_is_advised_is_there(shape: tuple[int, ...], asked: str, said: str) -> None:
    model, options = nn.Sequential(nn.Linear(4, 6)), {asked: range(2), "metric": torch.sum, "progress": False}
    with pytest.raises(ValueError, match=said):
        sweep(model, torch.ones(shape), "0", "zero", **options)
    if len(shape) == 2:
        assert sweep(model, torch.ones(shape), "0", "zero", axis=1, **options).values.shape == (1, 2)


def test_a_layer_under_vmap() -> None:
    def run(self, x):
        per_sample = torch.vmap(torch.func.grad(lambda each: self.inner(each).sum()))
        return self.after(torch.vmap(self.body)(self.before(x)) + per_sample(x))

    layers = {name: nn.Linear(4, 4) for name in ("before", "body", "inner", "after")}
    model, options = Net(run, **layers).eval(), {"metric": torch.sum, "progress": False}
    x = torch.randn(2, 4)
    for layer in ("body", "inner", ["before", "body"]):
        with pytest.raises(ValueError, match=r"layer '(body|inner)' runs under torch.vmap.*choose a layer outside"):
            sweep(model, x, layer, "zero", **options)
        with pytest.raises(ValueError, match=r"layer '(body|inner)' runs under torch.vmap"):
            sweep(model, x, layer, "zero", channels=range(4), **options)
    found = sweep(model, x, ["before", "after"], "zero", channels=range(4), check=2, **options)
    known = sweep(model, x, ["before", "after"], "zero", channels=range(4), check=8, **options)
    assert sum(found.batches) == 8
    assert is_close(found.values, known.values)


def test_several_tensors_are_to_be_told_apart() -> None:
    model = Net(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(4, 4, batch_first=True))
    with pytest.raises(ValueError, match=r"layer 'lstm' returned several tensors.*part=0 \(2, 5, 4\)"):
        sweep(**{"model": model} | GOOD | {"layers": "lstm"})


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (
            "attention",
            r"its number of heads\. A sweep cannot use an index .* such as '.*attention.self', or use edit$",
        ),
        (
            "attention.self.query",
            r"get the heads of '.*attention.self'.*\. A sweep cannot use an index instead of heads=. Name",
        ),
    ],
)
def test_heads_that_cannot_be_found_are_told_as_a_sweep_can_have_them(layer: str, match: str) -> None:
    model, given = bert(), {"input_ids": IDS}
    where = f"encoder.layer.0.{layer}"
    with pytest.raises(ValueError, match=match) as error:
        sweep(model, given, where, "zero", heads=range(2), metric=lambda output: output[0].sum())
    assert "to=" not in str(error.value)
    assert "at[" not in str(error.value)
    sweep(model, given, "encoder.layer.0.attention.self", "zero", heads=[0], part=0, metric=lambda y: y[0][0, 0, 0])


def test_a_layer_that_only_some_values_reach() -> None:
    model = Net(
        lambda self, x: self.b(x) if self.a(x)[0, 0] == 0 else x * 2 if len(x) > 2 else self.b(x) * 3,
        a=nn.Identity(), b=nn.Linear(4, 4),
    )  # fmt: skip
    found = sweep(model, torch.ones(2, 4), ["a", "b"], "zero", channels=range(4), metric=lambda y: y.sum(), check=2)
    assert found.batches == ()
    bias, weight = model.b.bias.detach(), model.b.weight.detach()
    y = weight.sum() + bias.sum()
    assert is_close(found.values[0], torch.stack([2 * y, 6 * y, 6 * y, 6 * y]).double())


def test_a_model_without_values_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to("meta")
    with pytest.raises(ValueError, match="tensors on the meta device have no values"):
        sweep(net, torch.ones(2, 3, device="meta"), "0", "zero", metric=lambda y: y[0, 0], progress=False)
