"""Time, FLOPs and memory of each layer are those that torch's own tools find, and the model stays as it was."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hookscope import LayerNotFoundError, census, profile
from hookscope.interp.profiles import LayerProfile, Profile, Time, passes
from hookscope.interp.profiles.spans import CallSpans
from tests.shared.awkward_models import Net
from tests.shared.fake_clock import Clock


def quick(model: nn.Module, *inputs: Any, **options: Any) -> Profile:
    return profile(model, *inputs, **{"repeats": 1, "warmup": 0} | options)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False))


X = torch.ones(16, 64)


@pytest.fixture(autouse=True)
def clock_moves_at_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on how long anything takes: one reading is 1 ns after the other."""
    monkeypatch.setattr(passes, "time", Clock(step=1))


# --- held against torch's own


def test_flops_are_those_of_torch_layer_by_layer():
    model, x = torchvision.models.resnet18(weights=None), torch.randn(2, 3, 32, 32)
    costs = quick(model, x)
    counter = FlopCounterMode(display=False)
    with counter:
        y = model(x)
        by_layer = {name.partition(".")[2]: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
        forward = counter.get_total_flops()
        y.sum().backward()
    assert costs[""].flops == forward > 0
    assert costs[""].backward_flops == counter.get_total_flops() - forward
    # Forward only: its backward gives layer2.0.downsample.0 most of what later layers do (torch 2.15).
    assert len(by_layer) > 20
    assert {name: costs[name].flops for name in by_layer if name} == {n: f for n, f in by_layer.items() if n}
    convs = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and name != "conv1"]
    assert all(costs[name].backward_flops == 2 * costs[name].flops for name in convs)
    assert sum(layer.flops_self for layer in costs.values()) == costs[""].flops
    assert sum(layer.backward_flops_self for layer in costs.values()) == costs[""].backward_flops


def test_flops_are_those_of_the_profiler():
    model, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), torch.profiler.profile(activities=[ProfilerActivity.CPU], with_flops=True) as found:
        model(x)
    kinds = {"aten::conv2d": nn.Conv2d, "aten::addmm": nn.Linear}
    for event in found.key_averages():
        if (kind := kinds.get(event.key)) is not None:
            costs = quick(model, x, backward=False)
            assert event.flops == sum(costs[n].flops for n, m in model.named_modules() if isinstance(m, kind)) > 0


def test_parts_add_up():
    costs = profile(net(), X, repeats=3)
    for at in range(3):
        assert sum(each.forward_self.runs[at] for each in costs.values()) == pytest.approx(costs[""].forward.runs[at])
        assert sum(each.backward_self.runs[at] for each in costs.values()) == pytest.approx(costs[""].backward.runs[at])
        assert costs[""].backward.runs[at] + costs.outside.runs[at] < costs.backward.runs[at]
        assert costs[""].forward.runs[at] <= costs.forward.runs[at]
    assert all(len(each.forward.runs) == 3 and each.forward.median > 0 for each in costs.values())
    assert all(each.backward_self.median > 0 for name, each in costs.items() if name)


def test_memory_by_hand():
    costs = quick(net(), X)
    kept = 16 * 32 * 4
    assert [costs[n].outputs for n in ("0", "1", "2", "")] == [kept, kept, 16 * 8 * 4, 16 * 8 * 4]
    # The input of the model is not the layers'; the output of the ReLU is saved by it and by what comes next.
    assert [costs[n].saved for n in ("0", "1", "2", "")] == [0, kept, 0, kept]
    weights = [64 * 32 * 4, 32 * 8 * 4]
    assert [costs[n].parameters for n in ("0", "1", "2", "")] == [weights[0], 0, weights[1], sum(weights)]
    assert [costs[n].gradients for n in ("0", "1", "2")] == [weights[0], kept, kept + weights[1]]
    assert costs[""].gradients == sum(costs[n].gradients for n in ("0", "1", "2"))


# --- whose it is

FLOPS = 2 * 16 * 64 * 64


def test_a_layer_called_many_times_adds_up():
    model = Net(lambda self, x: self.linear(self.linear(self.linear(x))), linear=nn.Linear(64, 64))
    costs = quick(model, X)
    assert (costs["linear"].calls, costs["linear"].flops) == (3, 3 * FLOPS)
    assert costs["linear"].backward_flops == 5 * FLOPS  # the first has no input that requires grad
    assert costs["linear"].outputs == 3 * 16 * 64 * 4


def test_what_a_container_does_itself_is_its_own():
    model = nn.Sequential(Net(lambda self, x: self.linear(x @ self.linear.weight), linear=nn.Linear(64, 64)))
    costs = quick(model, X)
    assert (costs["0"].flops, costs["0"].flops_self, costs["0.linear"].flops) == (2 * FLOPS, FLOPS, FLOPS)
    assert (costs["0"].backward_flops_self, costs["0.linear"].backward_flops) == (FLOPS, 2 * FLOPS)
    assert (costs[""].flops_self, costs[""].flops) == (0, 2 * FLOPS)


def test_in_place_operations_keep_backward_with_its_layer():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Hardtanh(inplace=True))
    costs = profile(model, X, repeats=3)
    assert [costs[str(i)].backward_flops for i in range(4)] == [FLOPS, 0, 2 * FLOPS, 0]
    assert all(costs[str(i)].backward.median > 0 for i in range(4))


def test_a_layer_inside_itself_is_not_counted_twice():
    def again(self: Any, x: Tensor) -> Tensor:
        self.depth = 0 if self.depth else 1
        return self(self.linear(x)) if self.depth else self.linear(x)

    inner = Net(again, linear=nn.Linear(64, 64))
    inner.depth = 0
    costs = quick(nn.Sequential(inner), X)
    assert (costs["0"].calls, costs["0"].flops, costs["0.linear"].calls) == (2, 2 * FLOPS, 2)
    assert costs["0"].forward.median <= costs[""].forward.median
    assert costs["0"].backward_flops == costs[""].backward_flops == 3 * FLOPS


def test_what_is_computed_again_for_backward_is_backward():
    def twice(self: Any, x: Tensor) -> Tensor:
        return checkpoint(lambda x: self.linear(self.linear(x)), x, use_reentrant=False)

    costs = quick(Net(twice, linear=nn.Linear(64, 64)), X.clone().requires_grad_())
    assert (costs["linear"].calls, costs["linear"].flops) == (2, 2 * FLOPS)
    assert costs[""].backward_flops == 5 * FLOPS  # the output of the first is computed again


def test_a_layer_whose_exception_the_model_catches():
    def fail(self: Any, x: Tensor) -> Tensor:
        raise ValueError

    def run(self: Any, x: Tensor) -> Tensor:
        try:
            return self.bad(x)
        except ValueError:
            return self.good(x) @ self.good.weight

    costs = quick(Net(run, bad=nn.Sequential(Net(fail)), good=nn.Linear(64, 64)), X)
    assert (costs["good"].flops, costs["good"].backward_flops) == (FLOPS, FLOPS)
    assert (costs[""].flops_self, costs[""].backward_flops_self) == (FLOPS, 2 * FLOPS)
    assert costs["bad"].flops == costs["bad"].backward_flops == costs["bad"].outputs == 0
    assert costs["bad"].forward.median >= costs["bad.0"].forward.median > 0


def test_the_loss_is_the_callers():
    seen = []

    def loss(y: Tensor) -> Tensor:
        seen.append(y.shape)
        return (y @ torch.ones(8, 1)).sum()

    costs = quick(net(), X, loss=loss)
    assert set(seen) == {(16, 8)}
    assert costs[""].backward_flops == quick(net(), X)[""].backward_flops  # the loss belongs to no layer
    for wrong, said in (
        (lambda y: y, r"a tensor of shape \(16, 8\). It must return a scalar"),
        (lambda y: y.detach().sum(), r"a tensor of shape \(\), which does not require grad. It must"),
        (lambda y: {"loss": 3}, r"\{'loss': 3\}. It must return a scalar that requires grad"),
    ):
        with pytest.raises(ValueError, match=f"^loss returned {said}"):
            quick(net(), X, loss=wrong)


def test_without_gradients_there_is_no_backward():
    frozen = net().requires_grad_(False)
    costs = quick(frozen, X)
    assert costs.notes == ("backward was not measured, because the output does not require grad",)
    assert costs.backward is costs[""].backward is costs[""].saved is None
    assert "backward" not in repr(costs.rows)
    with torch.no_grad():
        assert quick(net(), X).backward is None
    assert quick(net(), X, backward=False)[""].backward_flops is None


# --- nothing else changes


def test_what_writes_gradients_keeps_no_hook():
    model = net()
    held = model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0]  # as DistributedDataParallel holds it
    before = _spans()  # a pass of another test that was interrupted may keep its own, with its graph
    quick(model, X)
    assert _spans() == before
    assert held is not None


def _spans() -> int:
    gc.collect()
    return sum(type(thing) is CallSpans for thing in gc.get_objects())


# --- what is said, and refused


def test_it_is_shown_as_a_table_and_as_bars():
    costs = profile(net(), X, repeats=2)
    text = repr(costs)
    assert "median (quartiles) of 2 passes without hooks; with hooks" in text
    assert "backward quartiles" in text
    picture = costs.picture(2)
    slowest = [each.name or "(root)" for each in costs.slowest(2)]
    assert [row["layer"] for row in picture.rows] == slowest
    said = f"Bars of 2 layers, the slowest on top, with the time in the layer itself: {slowest[0]} "
    assert picture.alt.startswith(said)
    assert costs.picture(1).alt.startswith("Bars of 1 layer, the slowest on top")
    assert "2 slowest of 4 layers" in picture.caption
    html = costs._repr_mimebundle_()["text/html"]
    assert "<img alt=" in html
    assert "<caption" in html


def test_what_hooks_add_is_measured_and_said():
    two = Time((0.002, 0.002))
    times = {"plain forward": two, "forward": Time((0.003, 0.003)), "plain backward": two, "outside": two}
    layer = LayerProfile("0", "ReLU", 1, two, two, two, two, 1, 1, 1, 1, 0, 0, 0, 0)
    costs = Profile("Net", {"0": layer}, times | {"backward": Time((0.0021, 0.0021))}, ("a note",))
    assert costs.overhead == pytest.approx({"forward": 0.5, "backward": 0.05})
    assert "with hooks +50 % forward and +5 % backward" in repr(costs)
    assert "note: a note" in repr(costs)
    with pytest.raises(LayerNotFoundError, match="no layer '00' was called in this profile; did you mean '0'"):
        costs["00"]


def test_a_scripted_part_counts_for_the_layer_around():
    part = torch.jit.trace(nn.Linear(64, 64), X)
    costs = quick(nn.Sequential(part), X)
    assert list(costs) == [""]
    assert costs[""].flops_self == FLOPS
    assert "TorchScript" in costs.notes[0]


def test_layers_in_several_threads_are_refused():
    def elsewhere(self: Any, x: Tensor) -> Tensor:
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(self.linear(x))
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(found[0], RuntimeError):
            raise found[0]
        return found[0]

    model = Net(elsewhere, linear=nn.Linear(64, 64))
    with pytest.raises(RuntimeError, match="runs layers in several threads"):
        quick(model, X)
    assert len(census(model)) == 0


def test_quartiles_of_few_passes() -> None:
    from hookscope.interp.profiles.result import Time

    assert Time((2.0,)).quartiles == (2.0, 2.0)
    assert Time((1.0, 3.0)).quartiles == (1.5, 2.5)
    assert Time((3.0, 1.0, 2.0)).quartiles == (1.5, 2.5)
