"""What a model keeps from one pass to the next is put back before each cell, or the sweep is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope import sweep
from tests.shared.swept import Flat

X = torch.ones(1, 6)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 6)
        self.start()

    def start(self) -> None: ...


class Noise(Base):
    """Draws from a generator of its own."""

    def start(self) -> None:
        self.own = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return y + torch.randn(y.shape, generator=self.own)


class Memory(Base):
    """Remembers, in a plain attribute."""

    def start(self) -> None:
        self.h = torch.zeros(1, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.h = torch.tanh(self.a(x) + self.h)
        return self.h


class InPlace(Base):
    """Writes to a tensor, a list, an array, and asks generators of NumPy's and Python's."""

    def start(self) -> None:
        self.h, self.list, self.array = torch.zeros(1, 6), [0.0], np.zeros(1)
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        self.h.add_(1)
        self.list.append(self.list[-1] + 1)
        self.array += 1
        more = self.list[-1] + self.array.item() + self.numpy.random() + self.python.random()
        return self.a(x) + self.h + more


def total(output: Tensor) -> Tensor:
    return output[0].sum()


@pytest.mark.parametrize("make", [Noise, Memory, InPlace])
def test_each_cell_is_that_of_a_fresh_model(make: Callable[[], Any]) -> None:
    truth = []
    for channel in range(6):
        net = make()
        net.a.register_forward_hook(lambda module, args, out, c=channel: out.index_fill(1, torch.tensor([c]), 0))
        with torch.no_grad():
            truth.append(total(net(X)))
    net = make()
    found = sweep(net, X, "a", "zero", channels=range(6), metric=total)
    torch.testing.assert_close(found.values[0], torch.stack(truth).double(), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(net(X), make()(X))  # and the model is as it was


def test_a_state_that_cannot_be_put_back_is_refused() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

    class Hidden(Base):
        def start(self) -> None:
            self.counter = Counter()

        def forward(self, x: Tensor) -> Tensor:
            self.counter.count += 1
            return self.a(x) * self.counter.count

    with pytest.raises(RuntimeError, match="Hidden gives something else when it runs again on the same inputs"):
        sweep(Hidden(), X, "a", "zero", channels=range(6), metric=total)


def test_what_changes_without_effect_does_not_slow_a_sweep() -> None:
    class Counts(Base):
        def start(self) -> None:
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.a(x)

    net = Counts()
    found = sweep(net, X, "a", "zero", channels=range(6), metric=total, check=1)
    assert found.batches
    assert net.calls == 0


# -- axes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "x", "layer", "what", "said"),
    [
        (nn.Sequential(nn.Conv1d(4, 6, 3)), torch.randn(2, 4, 9), "0", "positions", "say which axis, as axis=2"),
        (nn.Sequential(nn.Linear(4, 6)), torch.randn(2, 5, 5, 4), "0", "channels", "say which axis, as axis=3"),
        (nn.TransformerEncoderLayer(4, 2, 8), torch.randn(5, 3, 4), "linear2", "positions", "batch_first=False"),
    ],
)
def test_an_axis_that_the_layer_says_is_another_is_refused(
    net: nn.Module, x: Tensor, layer: str, what: str, said: str
) -> None:
    options: dict[str, Any] = {what: [0, 1]}
    with pytest.raises(ValueError, match=said):
        sweep(net.eval(), x, layer, "zero", metric=lambda y: y.sum(), **options)


def test_the_mean_over_tokens_is_not_that_over_samples() -> None:
    with pytest.raises(ValueError, match="2 samples went in: its first axis is not that of samples"):
        sweep(Flat(), torch.randn(2, 3, 4), "expert", "mean", metric=lambda y: y.sum())


def test_a_layer_before_nested_tensors_is_swept_and_one_with_them_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor, pad: Tensor) -> Tensor:
            return self.head(self.encoder(x, src_key_padding_mask=pad)[:, 0])

    net, x, pad = Net().eval(), torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    pad[1, 3:] = True
    found = sweep(net, (x, pad), "head", "zero", channels=range(3), metric=lambda y: y[0].norm())
    with torch.no_grad():
        y = net(x, pad)[0]
    expected = [float(y.index_fill(0, torch.tensor([c]), 0).norm()) for c in range(3)]
    torch.testing.assert_close(found.values[0], torch.tensor(expected).double(), atol=1e-5, rtol=1e-5)
    with pytest.raises(TypeError, match=r"'encoder\.layers\.0' has a nested tensor"):
        sweep(net, (x, pad), "encoder.layers.0", "zero", metric=lambda y: y.sum())
