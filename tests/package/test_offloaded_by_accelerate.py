"""A model whose weights accelerate loads as each layer runs gives what it gives with all of them in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import collect, profile
from tests.shared.awkward_models import Net
from tests.shared.sweep_helpers import sweep

accelerate = pytest.importorskip("accelerate")


def tied() -> nn.Module:
    """Build two layers with one weight."""
    net = Net(lambda self, x: self.b(self.a(x).relu()), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    net.b.weight = net.a.weight
    return net


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def mapped(model: nn.Module, folder: Path) -> nn.Module:
    places = {name: "disk" if number else "cpu" for number, (name, _) in enumerate(model.named_children())}
    options = {"main_device": "cpu", "offload_dir": folder, "force_hooks": True}
    found: nn.Module = accelerate.dispatch_model(model, places, **options)
    return found


WAYS: dict[str, Callable[[nn.Module, Path], nn.Module]] = {
    "to memory": lambda model, folder: accelerate.cpu_offload(model, "cpu"),
    "with buffers": lambda model, folder: accelerate.cpu_offload(model, "cpu", offload_buffers=True),
    "to disk": lambda model, folder: accelerate.disk_offload(model, folder, "cpu"),
    "by a device map": mapped,
}
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def made(make: Callable[[], nn.Module], way: str, folder: Path) -> tuple[nn.Module, nn.Module]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make().eval())
    offloaded = WAYS[way](models[1], folder / "weights")
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    return models[0], offloaded


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [chain, tied])
def test_a_sweep(make: Callable[[], nn.Module], way: str, tmp_path: Path) -> None:
    plain, offloaded = made(make, way, tmp_path)
    layer = next(name for name, _ in plain.named_children())
    asked: Any = {"channels": range(4), "metric": lambda y: y[0, 0], "check": 2, "progress": False}
    one, other = (sweep(model, X, layer, "zero", **asked) for model in (plain, offloaded))
    assert torch.allclose(one.values, other.values, atol=1e-6)
    assert (other.batches, other.notes) == (one.batches, one.notes)


@pytest.mark.parametrize("way", WAYS)
def test_a_profile(way: str, tmp_path: Path) -> None:
    plain, offloaded = made(chain, way, tmp_path)
    one, other = (profile(model, X, repeats=1, warmup=0) for model in (plain, offloaded))
    for name, cost in one.items():
        assert (cost.flops, cost.backward_flops, cost.outputs) == (
            other[name].flops,
            other[name].backward_flops,
            other[name].outputs,
        )
        assert cost.parameters == other[name].parameters
    assert one.notes == ()
    assert "accelerate loads the weights each time a layer runs" in repr(other)


def test_a_profile_of_what_runs_on_a_gpu_is_refused() -> None:
    model = accelerate.cpu_offload(nn.Linear(4, 2), "cuda:0")
    with pytest.raises(ValueError, match=r"a layer that accelerate moves is on cuda:0. A GPU runs"):
        profile(model, X)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [chain, tied])
def test_a_collection_goes_on_with_the_same_weights_only(
    make: Callable[[], nn.Module], way: str, tmp_path: Path
) -> None:
    plain, offloaded = made(make, way, tmp_path)
    layer = next(name for name, _ in plain.named_children())
    stored = collect(offloaded, [X, X + 1], layer, to=tmp_path / "a", progress=False)
    with torch.no_grad():
        assert torch.allclose(stored[layer][:], plain.get_submodule(layer)(torch.cat([X, X + 1])), atol=1e-6)
    again = collect(offloaded, [X, X + 1], layer, to=tmp_path / "a", progress=False)
    assert torch.equal(again[layer][:], stored[layer][:])
    torch.manual_seed(1)
    (tmp_path / "other").mkdir()
    other = WAYS[way](make().eval(), tmp_path / "other")
    with pytest.raises(ValueError, match="modules, options, parameters or buffers changed"):
        collect(other, [X, X + 1], layer, to=tmp_path / "a", progress=False)


def test_a_model_without_any_values_is_refused(tmp_path: Path) -> None:
    empty = chain().to("meta").eval()
    with pytest.raises(ValueError, match=r"on the meta device have no values.*. Load the weights first"):
        sweep(empty, X, "0", "zero", metric=torch.sum, progress=False)
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device, so it has no values"):
        collect(empty, [X], to=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="the model is on the meta device, where tensors have no values"):
        profile(empty, X)
