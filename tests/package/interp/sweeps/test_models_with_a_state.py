"""What a model keeps from one pass to the next is put back before each cell, or the sweep is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope.interp.sweeps import Cell
from tests.shared.awkward_models import Net
from tests.shared.language_models import llama
from tests.shared.sweep_helpers import Flat, sweep

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

    with pytest.raises(RuntimeError, match="Hidden returned different values for the same inputs"):
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


class Caching(Base):
    """Fills what it is given, unless somebody has filled it already."""

    def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
        if cache.h is None:
            cache.h = self.a(x)
        return cache.h * x


def test_what_is_given_empty_is_empty_again_in_each_cell() -> None:
    net, mine = Caching(), SimpleNamespace(h=None)
    found = sweep(net, (X, mine), "a", "zero", channels=range(6), metric=total, check=2, progress=False)
    h = net.a(X)[0].detach().double()
    torch.testing.assert_close(found.values[0], h.sum() - h, atol=1e-5, rtol=1e-5)
    assert found.batches
    assert mine.h is None
    assert Cell(found, "a", 3).run().notes == ()
    assert mine.h is None


def test_a_cache_of_transformers_that_knows_its_layers_and_is_empty() -> None:
    transformers = pytest.importorskip("transformers")
    net = llama()
    cache = transformers.DynamicCache(config=net.config)
    given = {"input_ids": torch.arange(5)[None], "past_key_values": cache}
    options: dict[str, Any] = {"positions": range(5), "metric": lambda o: o.logits[0, -1, 3], "progress": False}
    found = sweep(net, given, "model.layers.*", "zero", check=2, **options)
    assert cache.get_seq_length() == 0
    assert found.batches
    known = sweep(net, {"input_ids": given["input_ids"]}, "model.layers.*", "zero", **options)
    torch.testing.assert_close(found.values, known.values, atol=1e-5, rtol=1e-5)


class Hooking(Base):
    """Registers a hook, wraps a forward and makes a layer, all behind one flag."""

    def start(self) -> None:
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.a.register_forward_hook(lambda module, args, output: output * 2, always_call=True)
            forward, self.a.forward = self.a.forward, lambda y: forward(y) + 1
            self.more = nn.Linear(6, 6)
            self.ready = True
        return self.more(self.a(x))


def all_of(net: nn.Module) -> list[object]:
    return [(name, value.copy() if isinstance(value, dict) else value)
            for module in net.modules() for name, value in vars(module).items()]  # fmt: skip


def test_what_a_model_registers_in_its_first_pass_is_put_back_with_the_flag_that_says_so() -> None:
    net = Hooking()
    before = all_of(net)
    sweep(net, X, "a", "zero", channels=range(6), metric=total, check=2)
    assert all_of(net) == before


def test_a_model_of_transformers_returns_as_many_hidden_states_as_before() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9)).eval()
    given = {"input_ids": torch.arange(5)[None], "output_hidden_states": True}
    layers, metric = "model.layers.*", lambda output: output.hidden_states[4].sum()
    found = sweep(net, given, layers, "zero", positions=range(5), metric=metric, check=2, progress=False)
    assert found.batches
    assert bool((found.changes != 0).all())
    for _ in range(2):
        assert len(net(**given).hidden_states) == 5


def test_lazy_layers_are_made_and_stay_so() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(2)).eval()

    net, plain = make(), make()
    found = sweep(net, torch.ones(3, 6), "0", "zero", channels=range(8), metric=total, check=2, progress=False)
    assert found.batches
    plain(torch.ones(3, 6))
    assert str(net) == str(plain)
    assert net[0].state_dict().keys() == plain[0].state_dict().keys()
    assert torch.equal(net(X), plain(X))


# -- axes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "x", "layer", "what", "said"),
    [
        (nn.Sequential(nn.Conv1d(4, 6, 3)), torch.randn(2, 4, 9), "0", "positions", "Pass SweepOptions\\(axis=2\\)"),
        (nn.Sequential(nn.Linear(4, 6)), torch.randn(2, 5, 5, 4), "0", "channels", "Pass SweepOptions\\(axis=3\\)"),
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
    with pytest.raises(ValueError, match="the model got 2 samples, so its first axis does not count samples"):
        sweep(Flat(), torch.randn(2, 3, 4), "expert", "mean", metric=lambda y: y.sum())


def test_images_in_a_list_are_samples() -> None:
    net = Net(lambda self, images: self.c(torch.stack(images)), c=nn.Conv2d(3, 4, 3))
    images = [torch.randn(3, 6, 6), torch.randn(3, 6, 6)]
    found = sweep(net, (images,), "c", "mean", channels=range(4), metric=lambda y: y[0].sum(), progress=False)
    with torch.no_grad():
        y = net(images).sum((2, 3)).double()
    torch.testing.assert_close(found.changes[0], y.mean(0) - y[0], atol=1e-4, rtol=1e-4)


def test_a_layer_before_nested_tensors_is_swept_and_one_with_them_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def run(self: nn.Module, x: Tensor, pad: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=pad)[:, 0])

    net = Net(run, encoder=nn.TransformerEncoder(layer, 2), head=nn.Linear(8, 3)).eval()
    x, pad = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    pad[1, 3:] = True
    found = sweep(net, (x, pad), "head", "zero", channels=range(3), metric=lambda y: y[0].norm())
    with torch.no_grad():
        y = net(x, pad)[0]
    expected = [float(y.index_fill(0, torch.tensor([c]), 0).norm()) for c in range(3)]
    torch.testing.assert_close(found.values[0], torch.tensor(expected).double(), atol=1e-5, rtol=1e-5)
    with pytest.raises(TypeError, match=r"'encoder\.layers\.0' has a nested tensor"):
        sweep(net, (x, pad), "encoder.layers.0", "zero", metric=lambda y: y.sum())
