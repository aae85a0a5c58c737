"""If samples of a batch are not independent, a sweep says so, and its numbers are right."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookscope.interp.sweeps.outputs import measure_gap
from tests.shared.awkward_models import Do, Net
from tests.shared.sweep_helpers import get_outputs, sweep, sweep_by_hand

# Inputs and weights are eighths. Their products and sums are exact, so a batch of any size gives the same bits.
X, OTHER = torch.randint(-8, 9, (2, 3, 6), generator=torch.Generator().manual_seed(0)) / 8, torch.ones(3, 6)
LAYERS = ["a", "b"]


def total(output):
    return output.sum()


def net(forward, **children) -> nn.Module:
    torch.manual_seed(0)
    model = Net(forward, a=nn.Linear(6, 6), b=nn.Linear(6, 6), **children).eval()
    for parameter in (*model.a.parameters(), *model.b.parameters()):
        parameter.data.mul_(8).round_().div_(8)
    return model


def straight(self, x):
    return self.b(self.a(x).relu())


def swept(model: nn.Module, **options):
    """A sweep of all channels of both layers, which is compared with plain hooks."""
    x = X[0]
    found = sweep(model, x, LAYERS, OTHER, channels=range(6), metric=total, **{"check": 3} | options)

    def run():
        torch.manual_seed(7)
        random.seed(7)
        return model(x)

    return found, run


def right(found, model, run) -> bool:
    with torch.no_grad():
        new = get_outputs(model, lambda: model(OTHER), LAYERS)
    known = sweep_by_hand(model, run, LAYERS, new, [(slice(None), c) for c in range(6)], total)
    return bool((found.values - known).abs().max() <= 1e-5 * known.abs().max())


def test_a_chain_is_run_in_batches() -> None:
    model = net(straight)
    found, run = swept(model)
    assert right(found, model, run)
    assert (found.batches, found.notes) == ((12,), ())


def centred(self, x):
    x = self.a(x)
    return self.b((x - x.mean()).relu())


def leaking(self, x):
    """The last sample of a batch leaks into all others; twice the same samples do not show it."""
    x = self.a(x)
    return self.b(x + x[-1:].relu() - x[len(x) // 2 - 1 : len(x) // 2].relu() if len(x) > 3 else x)


def hiding(self, x):
    """It leaks only where there are more variants than two or three, with which the sweep finds out what mixes."""
    return leaking(self, x) if len(x) > 9 else straight(self, x)


def fixed(self, x):
    return self.b(self.a(x).reshape(3, 6).relu())


def counted(self, x):
    self.calls = getattr(self, "calls", 0) + 1
    return self.b(self.a(x)) + (len(x) > 3)


def reduced(self, x):
    return self.b(self.a(x)).mean(0)


NOT_ALONE = {
    "the mean over the batch": (
        centred,
        "the output of aten::mean does not grow in step with the batch, so samples might mix",
    ),
    "a sample that leaks": (
        leaking,
        "the output of aten::slice does not grow in step with the batch, so samples might mix",
    ),
    "a sample that leaks into many": (hiding, "with plain hooks"),
    "a fixed size of the batch": (fixed, "a batch of two raised RuntimeError"),
    "what depends on the size of the batch": (counted, "samples are not independent"),
    "an output without samples": (reduced, "cannot be divided among the variants of a batch"),
}


@pytest.mark.parametrize("what", sorted(NOT_ALONE))
def test_samples_that_are_not_independent(what: str) -> None:
    forward, said = NOT_ALONE[what]
    model = net(forward)
    found, run = swept(model)
    assert right(found, model, run)
    assert found.batches == ()
    assert said in " ".join(found.notes)
    assert "each cell was run alone" in found.notes[-1]
    assert found.notes[-1] in repr(found)


class Out:
    """No container that anybody would know."""

    def __init__(self, y) -> None:
        self.y = y


OUTPUTS = {  # what a model returns, and the metric of that
    "an object": (Out, lambda output: output.y[0].sum()),
    "numbers": (torch.Tensor.tolist, lambda output: sum(output[0])),
}


@pytest.mark.parametrize("what", sorted(OUTPUTS))
def test_an_output_without_tensors_that_could_be_divided(what: str) -> None:
    made, metric = OUTPUTS[what]
    model = net(lambda self, x: made(straight(self, x)))
    found = sweep(model, X[0], LAYERS, OTHER, channels=range(6), metric=metric, check=2, progress=False)
    with torch.no_grad():
        new = get_outputs(model, lambda: model(OTHER), LAYERS)
    known = sweep_by_hand(model, lambda: model(X[0]), LAYERS, new, [(slice(None), c) for c in range(6)], metric)
    assert (found.values - known).abs().max() <= 1e-5 * known.abs().max()
    assert found.batches == ()
    assert f"of type {type(model(X[0])).__name__}, has no tensor in tuples, lists, mappings or data" in found.notes[-1]


def test_outputs_inside_of_an_object_are_compared() -> None:
    assert measure_gap(Out(X), Out(X)) == 0
    assert measure_gap(Out(X), Out(2 * X)) == 0.5


def test_batch_norm_in_training_mode() -> None:
    model = net(lambda self, x: self.b(self.norm(self.a(x))), norm=nn.BatchNorm1d(6)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, run = swept(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert right(found, model, run)
    assert found.notes == (
        "layer 'norm' (BatchNorm1d) computes mean and variance over all samples of a batch, so each cell was "
        "run alone, with plain hooks",
    )
    assert swept(net(straight, norm=nn.BatchNorm1d(6)).train())[0].notes == ()  # it is not called


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda self, x: self.b(self.drop(self.a(x))), "layer 'drop' (Dropout) draws random numbers in training mode"),
        (lambda self, x: self.b(F.dropout(self.a(x))), "a pass draws random numbers"),
        (lambda self, x: self.b(self.a(x)) * random.random(), "a pass draws random numbers"),
    ],
)
def test_random_numbers_are_the_same_in_each_cell(forward, said) -> None:
    model = net(forward, drop=nn.Dropout(0.5)).train()
    torch.manual_seed(7)
    random.seed(7)
    x = X[0]
    found = sweep(model, x, LAYERS, "zero", channels=range(6), metric=total, check=3)
    after = torch.rand(1), random.random()
    torch.manual_seed(7)
    random.seed(7)
    assert (torch.rand(1), random.random()) == after
    torch.manual_seed(7)
    random.seed(7)
    with torch.no_grad():
        assert found.baseline == float(total(model(x)))
    zeros = dict.fromkeys(LAYERS, torch.zeros(3, 6))

    def run():
        torch.manual_seed(7)
        random.seed(7)
        return model(x)

    known = sweep_by_hand(model, run, LAYERS, zeros, [(slice(None), c) for c in range(6)], total)
    assert torch.allclose(found.values, known)
    assert found.notes[0].startswith(said)


def test_a_buffer_that_changes_is_the_same_in_each_cell() -> None:
    def forward(self, x):
        self.count += 1
        return self.b(self.a(x)) * self.count

    model = net(forward)
    model.register_buffer("count", torch.zeros(()))
    found = sweep(model, X[0], LAYERS, OTHER, channels=range(6), metric=total, check=3)
    assert model.count == 0
    assert "the buffer 'count'" in found.notes[0]
    once = net(lambda self, x: self.b(self.a(x)))
    assert torch.equal(found.values, swept(once)[0].values)


def test_what_an_earlier_layer_keeps_for_a_later_one() -> None:
    holder: list[torch.Tensor] = []
    model = net(
        lambda self, x: self.b(self.a(self.first(x))) + holder.pop(),
        first=Do(lambda x: holder.append(x.clone()) or x * 2),
    )
    found, run = swept(model)
    assert right(found, model, run)
    assert (found.batches, found.notes) == ((12,), ())


def test_layers_that_write_to_their_input_or_return_it() -> None:
    def forward(self, x):
        y = self.zero(x)
        z = self.write(y)
        same = self.identity(z)
        same += 1
        return self.b((self.a(z) + y).relu()) + z

    model = net(forward, zero=nn.Linear(6, 6), write=Do(lambda x: x.mul_(2) + 1), identity=nn.Identity())
    for inference in (False, True):
        with torch.inference_mode(inference):
            found, run = swept(model)
        assert right(found, model, run)
        assert found.notes == ()


def test_inputs_that_a_model_writes_to_stay() -> None:
    model = net(lambda self, x: self.b(self.a(x.mul_(2))))
    x = X[0].clone()
    found = sweep(model, x, LAYERS, "zero", channels=range(6), metric=total, check=3)
    assert torch.equal(x, X[0])
    doubled = sweep_by_hand(
        model, lambda: model(x.clone()), LAYERS, dict.fromkeys(LAYERS, torch.zeros(3, 6)),
        [(slice(None), c) for c in range(6)], total,
    )  # fmt: skip
    assert torch.equal(found.values, doubled)


def test_hooks_that_are_there_run_once() -> None:
    model = net(straight)
    calls = []
    model.a.register_forward_hook(lambda module, args, output: calls.append(len(output)) or output * 2)
    found, run = swept(model)
    assert right(found, model, run)
    assert found.notes == ()
    assert 36 in calls  # of the batch: a layer with a hook runs
    assert len(model.a._forward_hooks) == 1


def test_hooks_that_a_model_registers_in_its_first_pass_run_once() -> None:
    def forward(self, x):
        if not getattr(self, "begun", False):
            self.begun = True
            self.a.register_forward_hook(lambda module, args, output: output * 2, prepend=True)
        return self.b(self.a(x).relu())

    model = net(forward)
    found, _ = swept(model)
    assert found.notes == ()
    assert not model.a._forward_hooks
    doubled = net(lambda self, x: self.b((self.a(x) * 2).relu()))
    known = sweep(doubled, X[0], "b", OTHER, channels=range(6), metric=total)
    assert torch.equal(found.values[1], known.values[0])


def test_a_patched_forward_is_put_back() -> None:
    model = net(straight)
    plain = model.a.forward
    model.a.forward = lambda x: plain(x) + 1
    mine = model.a.forward
    found, run = swept(model)
    assert right(found, model, run)
    assert model.a.forward is mine
    assert "forward" not in vars(model.b)


def test_a_metric_that_tells_more_than_the_output_can() -> None:
    """A metric that blows up rounding gets each cell run alone, or what plain hooks give."""
    model = net(lambda self, x: self.b(self.a(x).relu()))
    seen = []

    def metric(output):
        seen.append(len(output))
        return float(len(seen))

    found = sweep(model, X[0], LAYERS, OTHER, channels=range(6), metric=metric, check=3)
    assert found.batches == ()
    assert "with plain hooks" in found.notes[0]


def test_outputs_are_compared_too_not_only_the_metric() -> None:
    model = net(hiding)
    found = sweep(model, X[0], LAYERS, OTHER, channels=range(6), metric=lambda output: 1.0, check=3)
    assert found.batches == ()
    assert "gave a different output than with plain hooks" in found.notes[0]


def test_half_precision_has_a_wider_limit() -> None:
    model = net(straight).bfloat16()
    found = sweep(model, X[0].bfloat16(), LAYERS, OTHER.bfloat16(), channels=range(6), metric=total, check=3)
    assert found.batches == (12,)


def test_more_cells_can_be_compared() -> None:
    found, _ = swept(net(straight), check=11)
    assert found.checked == 11
    assert "11 of them compared with plain hooks" in repr(found)


@pytest.mark.parametrize(("cells", "batches", "checked"), [(12, 0, 0), (13, 13, 4), (199, 199, 4), (300, 300, 6)])
def test_the_larger_the_sweep_the_more_cells_are_compared(cells, batches, checked) -> None:
    model = nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 1)).eval()
    found = sweep(model, X[0], "0", "mean", channels=range(cells), metric=total, progress=False)
    assert (sum(found.batches), found.checked) == (batches, checked)


def test_a_metric_that_is_no_number_in_either_run_is_none_in_any_cell() -> None:
    net, x = nn.Linear(4, 20), torch.ones(1, 4)
    options = {"metric": lambda y: (y[0, 0] - y[0, 0]) / 0.0, "channels": range(20), "check": 2, "progress": False}
    found = sweep(net, x, "", -x, **options)
    assert math.isnan(found.baseline)
    assert found.values.isnan().all()
    assert found.batches
