"""A pass that looks at a whole batch gets each cell run alone, also if few cells would be wrong; others share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.interp.sweeps import Sweep
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import IDS
from tests.shared.sweep_helpers import sweep

Forward = Callable[[Any, Tensor], Tensor]
X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


def swept(forward: Forward, x: Tensor = X, check: int = 2, **options: Any) -> Sweep:
    torch.manual_seed(0)
    net = Net(forward, a=nn.Linear(8, 32), b=nn.Linear(32, 32), c=nn.Linear(32, 3)).eval()
    asked = {"channels": range(32), "metric": lambda y: y[0, 1].double(), "progress": False} | options
    return sweep(net, x, "a", "zero", check=check, **asked)


def assert_alone(found: Sweep, said: str) -> None:
    assert found.batches == ()
    assert said in " ".join(found.notes)
    assert "was run alone, with plain hooks" in found.notes[-1]
    assert found.notes[0] in repr(found)


# --- Python reads what is changed


def exits(decide: Callable[[Tensor], object]) -> Forward:
    """Leave early if the whole batch is sure."""

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        y: Tensor = self.c(h)
        return y if decide(y.softmax(-1).amax(-1)) else self.c(self.b(h).relu())

    return forward


SURE = 0.5
DECIDE: dict[str, Callable[[Tensor], object]] = {
    "a comparison": lambda sure: sure.min() > SURE,
    "all": lambda sure: (sure > SURE).all(),
    "any": lambda sure: not (sure < SURE).any(),
    "item": lambda sure: sure.min().item() > SURE,
    "float": lambda sure: float(sure.min()) > SURE,
    "tolist": lambda sure: min(sure.tolist()) > SURE,
    "numpy": lambda sure: sure.numpy().min() > SURE,
    "equal": lambda sure: torch.equal(sure > SURE, torch.ones_like(sure, dtype=torch.bool)),
    "nonzero": lambda sure: not len((sure < SURE).nonzero()),
    "a mask": lambda sure: not sure[sure < SURE].numel(),
    "unique": lambda sure: len((sure > SURE).unique()) == 1 and sure[0] > SURE,
    "an index": lambda sure: [False, True][(sure > SURE).long().amin()],
    "contains": lambda sure: False not in (sure > SURE),
}


@pytest.mark.parametrize("how", DECIDE)
def test_an_early_exit_of_the_whole_batch(how: str) -> None:
    found = swept(exits(DECIDE[how]))
    assert_alone(found, "Python reads values that the change reaches, as for an early exit")
    assert torch.equal(found.values, swept(exits(DECIDE[how]), check=32).values)


def test_an_exit_that_matters_for_few_cells() -> None:
    """Three cells of 32 leave early; the four that are compared are others."""
    torch.manual_seed(2)
    net = Net(exits(lambda sure: sure.min() > 0.45), a=nn.Linear(8, 32), b=nn.Linear(32, 32), c=nn.Linear(32, 3)).eval()
    x, asked = torch.randn(1, 8), {"channels": range(32), "metric": lambda y: y[0, 1].double(), "progress": False}
    found, known = (sweep(net, x, "a", "zero", check=check, **asked) for check in (None, 32))  # type: ignore[arg-type]
    assert_alone(found, "as for an early exit (aten::_local_scalar_dense)")
    assert torch.equal(found.values, known.values)


def test_the_layer_that_reads_is_named() -> None:
    net = nn.Sequential(nn.Linear(8, 32), nn.Sequential(Do(lambda x: x if x.mean() > 0 else -x)))
    found = sweep(net, X, "0", "zero", channels=range(32), metric=torch.sum, progress=False)
    assert_alone(found, "in layer '1.0'")


# --- tensors of all samples together

MIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum": lambda h: h / h.abs().max(),
    "maximum of each feature": lambda h: h / h.abs().amax(0),
    "minimum": lambda h: h - h.min(),
    "mean": lambda h: h - h.mean(0, keepdim=True),
    "norm": lambda h: h / h.norm(),
    "a choice without Python": lambda h: torch.where((h.amax(-1) > 1).all(), h, h * 2),
    "products of samples": lambda h: h + (h @ h.T).sum(-1, keepdim=True),
    "softmax over samples": lambda h: h.softmax(0),
    "sum of those before": lambda h: h.cumsum(0),
    "sum of those behind": lambda h: h.flip(0).cumsum(0).flip(0),
    "sorted": lambda h: h.sort(0).values,
    "the neighbor": lambda h: torch.maximum(h, h.roll(1, 0)),
    "the first sample": lambda h: h + h[:1],
    "batch norm without statistics": lambda h: F.batch_norm(h, None, None, training=True),
    "in place": lambda h: h.clone().div_(h.amax()),
}


@pytest.mark.parametrize("how", MIXES)
def test_tensors_of_all_samples_of_a_batch(how: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.c(MIXES[how](self.b(self.a(x).relu())))
        return y

    found = swept(forward)
    assert_alone(found, "")
    assert torch.equal(found.values, swept(forward, check=32).values)


def test_a_maximum_that_matters_for_one_cell() -> None:
    """One change of 128 makes the largest value of the batch; the cells that are compared are others."""

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        y: Tensor = self.c(h / h.max().clamp(min=9))
        return y

    torch.manual_seed(0)
    net = Net(forward, a=nn.Linear(8, 128), c=nn.Linear(128, 3)).eval()
    with torch.no_grad():
        net.a.weight[70] = 20.0  # type: ignore[index]
    asked: Any = {"channels": range(128), "metric": lambda y: y[0, 1], "progress": False}
    found, known = (sweep(net, torch.zeros(1, 8), "a", torch.ones(1, 8), check=n, **asked) for n in (None, 128))
    assert_alone(found, "the output of aten::max does not grow in step with the batch, so samples might mix")
    assert torch.equal(found.values, known.values)


def test_a_loop_over_samples() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.c(torch.stack([h / h.max() for h in self.a(x).relu()]))
        return y

    found = swept(forward)
    assert_alone(found, "the output of aten::unbind does not grow in step with the batch")
    assert torch.equal(found.values, swept(forward, check=32).values)


def test_linear_layers_that_are_quantized_when_they_run() -> None:
    """They take one scale for the whole batch, in one operation that no mode sees into."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    found = sweep(net, X, "1", "zero", channels=range(32), metric=lambda y: y[0, 1], progress=False)
    assert_alone(found, "samples are not independent")


# --- samples that go their own way share a batch


def own_expert(self: Any, h: Tensor) -> Tensor:
    best = h[:, :3].argmax(-1)
    weights: Tensor = self.b.weight[best]
    return h + weights


OWN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "norms and softmax": lambda self, h: F.layer_norm(h, (32,)).softmax(-1) / h.norm(dim=-1, keepdim=True),
    "maximum of each sample": lambda self, h: h / h.abs().amax(-1, keepdim=True),
    "a choice of each sample": lambda self, h: torch.where((h.amax(-1) > 1)[:, None], h, h * 2),
    "a mask to write to": lambda self, h: h.masked_fill(h < 0, 0.0).index_fill(1, torch.tensor([1]), 0.0),
    "an expert of each sample": own_expert,
    "new tensors": lambda self, h: h + h.new_zeros(32) + torch.ones_like(h) + h.new_full((), 2.0) + h.new_tensor(1.0),
    "in place": lambda self, h: h.clone().mul_(2).add_(1),
    "written to a new tensor": lambda self, h: torch.zeros(len(h), 40).index_copy_(1, torch.arange(32), h)[:, :32],
    "transposed": lambda self, h: (self.b.weight @ h.T).T,
    "parts": lambda self, h: torch.cat(h.chunk(4, dim=-1)[::-1], -1),
    "numbers of others": lambda self, h: h * float(self.b.weight.mean()) if self.b.bias.sum() < 99 else h,
    "heads": lambda self, h: F.scaled_dot_product_attention(*[h.view(len(h), 2, 4, 4)] * 3).flatten(1),
    "convolution": lambda self, h: F.conv1d(h[:, None], torch.ones(1, 1, 3), padding=1)[:, 0],
    "batch norm in eval": lambda self, h: F.batch_norm(h, torch.zeros(32), torch.ones(32)),
    "group norm": lambda self, h: F.group_norm(h, 4),
    "instance norm": lambda self, h: F.instance_norm(h.view(len(h), 4, 8)).flatten(1),
}


@pytest.mark.parametrize("how", OWN)
def test_samples_that_go_their_own_way_share_a_batch(how: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.c(OWN[how](self, self.b(self.a(x).relu())))
        return y

    found = swept(forward)
    assert (found.batches, found.notes) == ((32,), ())
    assert torch.allclose(found.values, swept(forward, check=32).values, atol=1e-5)


def test_what_python_reads_before_the_change_does_not_matter() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if bool((x > 99).any()) or self.a(x).detach().max().item() > 99 or min(x.tolist()[0]) > 99:
            return self.c(self.b(x))
        return self.c(self.b(self.a(x)))

    torch.manual_seed(0)
    net = Net(forward, a=nn.Linear(8, 32), b=nn.Linear(32, 32), c=nn.Linear(32, 3)).eval()
    found = sweep(net, X, "b", "zero", channels=range(32), metric=lambda y: y[0, 1], progress=False)
    assert (found.batches, found.notes) == ((32,), ())


def test_experts_of_transformers_share_a_batch_if_they_are_fused() -> None:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**sizes, intermediate_size=64, vocab_size=1000, num_local_experts=4)
    net = transformers.MixtralForCausalLM(config).eval()
    found = {}
    for way in ("grouped_mm", "eager"):
        net.set_experts_implementation(way)
        asked: Any = {"positions": range(5), "metric": lambda out: out.logits[0, -1, 3], "progress": False}
        layers = ["model.layers.0.self_attn.o_proj", "model.embed_tokens", "model.layers.1.input_layernorm"]
        found[way] = sweep(net, IDS, layers, "zero", **asked)
    assert found["grouped_mm"].notes == ()
    assert sum(found["grouped_mm"].batches) == 15
    assert_alone(found["eager"], "as for an early exit")  # a loop over the experts that some token goes to
    torch.testing.assert_close(found["grouped_mm"].values, found["eager"].values, atol=1e-5, rtol=1e-4)


def test_methods_of_tensors_are_torchs_own_afterwards() -> None:
    before = Tensor.numpy, Tensor.tolist, set(vars(Tensor))
    swept(exits(DECIDE["tolist"]))
    swept(lambda self, x: self.c(self.a(x)))
    assert (Tensor.numpy, Tensor.tolist, set(vars(Tensor))) == before
