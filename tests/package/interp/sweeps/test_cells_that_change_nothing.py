"""A cell that puts in what is there already has the number of no change, and is not run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import gpt2
from tests.shared.sweep_helpers import get_outputs, sweep, sweep_by_hand

LAYERS = ["transformer.h.0", "transformer.h.1.attn", "transformer.h.1.mlp"]
TOKENS, OTHER = torch.tensor([[5, 3, 9, 1, 7]]), torch.tensor([[5, 3, 9, 2, 4]])


def logit(output):
    return output.logits[0, -1, 5] - output.logits[0, -1, 7]


@pytest.fixture
def model():
    return gpt2()


def calls_of(module, run):
    """How many samples a module is given in all."""
    rows = []
    handle = module.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    found = run()
    handle.remove()
    return found, sum(rows)


def test_where_prompts_begin_alike(model) -> None:
    def run():
        return sweep(model, TOKENS, LAYERS, OTHER, positions=range(5), check=2, metric=logit, progress=False)

    found, samples = calls_of(model.lm_head, run)
    new = get_outputs(model, lambda: model(OTHER), LAYERS)
    known = sweep_by_hand(model, lambda: model(TOKENS), LAYERS, new, [(slice(None), p) for p in range(5)], logit)
    assert (found.values - known).abs().max() <= 1e-5 * known.abs().max()
    assert (found.values[:, :3] == found.baseline).all()
    assert (found.values[0, 3:] != found.baseline).all()
    assert (found.idle, sum(found.batches)) == (9, 6)
    # Alone, twice, the source, copies of what is there, three to see what mixes, the cells, and two of them once more.
    assert samples == 1 + 2 + 1 + 1 + 3 + 6 + 2
    run = "6 cells in 1 batch; 2 of them compared with plain hooks: they "
    idle = "; 9 cells not run: the patch equals the original value"
    assert replace(found, largest_difference=2e-7).how == f"{run}differ by at most 2e-07 of the scale{idle}"
    assert replace(found, largest_difference=0.0).how == f"{run}are equal{idle}"


def test_where_few_are_left_they_are_run_alone(model) -> None:
    found = sweep(model, TOKENS, LAYERS[0], OTHER, positions=range(5), check=3, metric=logit, progress=False)
    assert (found.idle, found.batches) == (3, ())
    assert (
        found.how == "2 cells, each run alone, with plain hooks; 3 cells not run: the patch equals the original value"
    )
    assert (found.values[0] != found.baseline).tolist() == [False] * 3 + [True] * 2


def test_the_same_prompt(model) -> None:
    found = sweep(model, TOKENS, LAYERS, TOKENS, positions=range(5), metric=logit, progress=False)
    assert (found.idle, found.batches) == (15, ())
    assert (found.values == found.baseline).all()
    assert found.notes == ("no change had an effect on the metric. Check that it depends on these layers",)


def test_what_hooks_of_transformers_keep_is_from_before_the_change(model) -> None:
    inputs = {"input_ids": TOKENS, "output_hidden_states": True}

    def metric(out):
        return out.hidden_states[1].norm()

    model(**inputs)  # which puts its hooks on, for good
    found = sweep(model, inputs, "transformer.h.0", "zero", positions=range(2), metric=metric, progress=False)
    (note,) = found.notes
    assert "Check that it depends on these layers. 'transformer.h.0' had forward hooks before the sweep" in note
    assert "they keep the value before the change" in note


def test_zero_is_not_minus_zero() -> None:
    net = nn.Sequential(Do(lambda x: x * torch.tensor([0.0, -0.0] * 10)), Do(lambda x: torch.atan(1 / x).sum(1)))
    found = sweep(net, torch.ones(1, 20), "0", "zero", channels=range(20), check=2, metric=lambda y: y[0])
    assert found.idle == 10
    pi = torch.pi / 2
    assert found.baseline == pytest.approx(0, abs=1e-5)
    assert found.values[0].tolist() == pytest.approx([0, 2 * pi] * 10, abs=1e-5)


def test_they_stay_right_where_a_batch_is_not() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Do(lambda x: x - x.mean(0)), nn.Linear(8, 1)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        net[0].weight[:4] = 0
        net[0].bias[:4] = -1
        dead = int((net[:2](x) == 0).all(0).sum())
    found = sweep(net, x, "1", "zero", channels=range(8), check=2, metric=lambda y: y[0, 0])
    new = {"1": torch.zeros(3, 8)}
    known = sweep_by_hand(net, lambda: net(x), ["1"], new, [(slice(None), c) for c in range(8)], lambda y: y[0, 0])
    assert (found.values - known).abs().max() <= 1e-5 * known.abs().max()
    assert (found.idle, found.batches) == (dead, ())
    assert found.notes[-1] == f"each of the {8 - dead} cells that change something was run alone, with plain hooks"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.complex128])
def test_other_dtypes(dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).to(dtype)
    x, other = torch.randn(2, 1, 4).to(dtype)
    with torch.no_grad():
        net[0].weight[:4] = 0

    def metric(output):
        return output[0, 0].abs()

    found = sweep(net, x, "0", other, channels=range(8), check=2, metric=metric)
    new = get_outputs(net, lambda: net(other), ["0"])
    known = sweep_by_hand(net, lambda: net(x), ["0"], new, [(slice(None), c) for c in range(8)], metric)
    coarse = 0.03 if dtype == torch.bfloat16 else 1e-5
    assert (found.values - known).abs().max() <= coarse * known.abs().max()
    assert found.idle == (0 if dtype == torch.complex128 else 4)


@pytest.mark.parametrize("read", ["number", "output"])
def test_where_a_copy_alone_changes_something_they_are_run(read: str) -> None:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        self.view(h).add_(1)  # a copy in the place of the view leaves what is read later as it was
        return self.b(h)

    torch.manual_seed(0)
    net = Net(run, a=nn.Linear(4, 4), view=Do(lambda x: x[:, :]), b=nn.Linear(4, 4))
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    source = x.clone()
    source[:, 4:] = 1

    def metric(output):
        return output.sum() if read == "number" else torch.zeros(())

    found = sweep(net, x, "view", source, positions=range(6), metric=metric, check=1, progress=False)
    new = get_outputs(net, lambda: net(source), ["view"])
    known = sweep_by_hand(net, lambda: net(x), ["view"], new, [(slice(None), p) for p in range(6)], metric)
    torch.testing.assert_close(found.values, known, atol=1e-4, rtol=1e-5)
    assert (found.idle, found.batches) == (0, (6,))
    said = "changed the metric from [-0-9.]+ to [-0-9.]+" if read == "number" else "changed the output by .*"
    assert re.match(f"patching with an identical value {said}", found.notes[0])
