"""Times belong to the layer that takes them: shown with a clock that moves by what the test, or torch's work, says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import profile
from hookscope.interp.profiles import LayerProfile, passes
from tests.shared.awkward_models import Net
from tests.shared.fake_clock import Clock, TimedLayer, TimedOperations
from tests.shared.language_models import IDS, gpt2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(passes, "time", clock)
    return clock


def test_times_are_those_of_the_layer_that_takes_them(clock: Clock) -> None:
    inner = nn.Sequential(TimedLayer(clock, 20, 300), TimedLayer(clock, 1, 0))

    def run(self: Any, x: Tensor) -> Tensor:
        clock.now += 5000  # what a container does itself
        return self.inner(self.small(self.large(self.small(x))))

    model = Net(run, small=TimedLayer(clock, 10, 2000), large=TimedLayer(clock, 400, 7), inner=inner)

    def loss(y: Tensor) -> Tensor:
        clock.now += 10**6  # in no pass
        return y.sum()

    costs = profile(model, torch.ones(2, requires_grad=True), loss=loss, repeats=3)
    whole = 5000 + 2 * 10 + 400 + 21
    expected = {
        "": (whole, 5000, 2 * 2000 + 7 + 300, 0),
        "small": (20, 20, 4000, 4000),
        "large": (400, 400, 7, 7),
        "inner": (21, 0, 300, 0),
        "inner.0": (20, 20, 300, 300),
        "inner.1": (1, 1, 0, 0),
    }
    assert {name: tuple(_nanoseconds(each)) for name, each in costs.items()} == expected
    assert [round(run * 1e9) for run in (*costs.forward.runs, *costs.backward.runs)] == [whole] * 3 + [4307] * 3
    assert [each.name for each in costs.slowest(3)] == ["", "small", "large"]


def _nanoseconds(layer: LayerProfile) -> Iterator[int]:
    for time in (layer.forward, layer.forward_self, layer.backward, layer.backward_self):
        nanoseconds = {round(run * 1e9) for run in time.runs}
        assert len(time.runs) == 3
        assert len(nanoseconds) == 1
        yield nanoseconds.pop()


def _resnet() -> tuple[nn.Module, Tensor]:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval(), torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize("kind", ["resnet18", "gpt2"])
def test_times_of_a_real_model_are_those_that_plain_hooks_read(clock: Clock, kind: str) -> None:
    net, inputs = _resnet() if kind == "resnet18" else (gpt2(), IDS)
    with TimedOperations(clock):
        costs = profile(net, inputs, repeats=2)
        theirs = _read_by_hand(net, inputs, clock)
    assert set(theirs) == set(costs)
    for name, layer in costs.items():
        assert {round(run * 1e9) for run in layer.forward.runs} == {theirs[name]}, name
    leaves = [name for name in costs if theirs[name] and not any(net.get_submodule(name).children())]
    assert len(leaves) > 15
    # Backward goes from node to node. Between two of them torch adds gradients that meet, which is no node's work.
    nodes = sum(_once(layer.backward_self.runs) for layer in costs.values()) + _once(costs.outside.runs)
    whole = _backward_by_hand(net, inputs, clock)
    assert 0.9 * whole < nodes <= whole
    assert all(_once(costs[name].backward.runs) > 0 for name in leaves if list(net.get_submodule(name).parameters()))


def _once(runs: tuple[float, ...]) -> int:
    (found,) = {round(run * 1e9) for run in runs}
    return found


def _read_by_hand(net: nn.Module, inputs: Tensor, clock: Clock) -> dict[str, int]:
    begun, took, handles = dict[str, int](), dict[str, int](), list[Any]()
    for name, module in net.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, n=name: begun.update({n: clock.now})))
        handles.append(
            module.register_forward_hook(lambda *_, n=name: took.update({n: took.get(n, 0) + clock.now - begun[n]}))
        )
    net(inputs)
    for handle in handles:
        handle.remove()
    return took


def _backward_by_hand(net: nn.Module, inputs: Tensor, clock: Clock) -> int:
    output = net(inputs)
    logits = output if isinstance(output, Tensor) else output.logits
    loss = logits.sum().double()
    for parameter in net.parameters():
        parameter.grad = None
    with TimedOperations(clock):
        begun = clock.now
        loss.backward()
        return clock.now - begun
