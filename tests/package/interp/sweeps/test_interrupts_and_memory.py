"""A sweep ends early with what there is, leaves nothing on the model, and keeps to the memory that it may take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hookscope import census
from hookscope.interp.sweeps.memory import PeakBytes
from tests.shared.awkward_models import Net
from tests.shared.sweep_helpers import is_close, sweep

X = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
LAYERS = ["0", "2", "4"]


def chain() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
    return nn.Sequential(*layers).eval()


def untouched(net: nn.Module) -> bool:
    return not census(net) and not any("forward" in vars(module) for module in net.modules())


@pytest.mark.parametrize("alone", [False, True])
def test_an_interrupt_keeps_what_is_there(alone: bool) -> None:
    net = chain()
    calls = 0

    def metric(output):
        nonlocal calls
        calls += 1
        if calls == 40:
            raise KeyboardInterrupt
        return output.sum() + (len(output) if alone else 0) * float(calls if alone else 0)

    found = sweep(net, X, LAYERS, "zero", positions=range(16), metric=metric, check=48 if alone else 2)
    done = int(found.values.isfinite().sum())
    assert 0 < done < 48
    assert found.notes[-1] == f"interrupted: {48 - done} of 48 cells were not run, and are NaN"
    assert found.how.startswith(f"{done} cells, each run alone" if alone else f"{done} cells in 2 batches")
    assert f"{48 - done} cells hatched, not run because of an interrupt" in found.picture().alt
    assert untouched(net)


@pytest.mark.parametrize("when", range(1, 12))
def test_an_interrupt_or_an_error_in_any_pass_leaves_nothing(when: int) -> None:
    net = chain()
    for error in (KeyboardInterrupt, RuntimeError):
        calls = 0

        class Failing(nn.Module):
            def forward(self, x, error=error):
                nonlocal calls
                calls += 1
                if calls == when:
                    raise error("now")
                return x

        model = nn.Sequential(*net, Failing())
        try:
            found = sweep(model, X, LAYERS, "zero", positions=range(16), metric=lambda y: y.sum(), check=4)
        except error:  # of an interrupt before the cells there is nothing to keep
            assert when <= 2 or error is RuntimeError
        else:
            assert error is RuntimeError or when > 2
            assert bool(found.values.isfinite().all()) == ("interrupted" not in " ".join(found.notes))
        assert untouched(model)


def test_batches_fit_into_max_bytes() -> None:
    net = chain()
    peaks = {}

    def measured(**options):
        def metric(output):
            return output.sum()

        with PeakBytes() as counted:
            found = sweep(net, X, LAYERS, "zero", positions=range(16), metric=metric, check=2, **options)
        peaks[options.get("max_bytes")] = counted.peak
        return found

    free = measured()
    assert free.batches == (16, 16, 16)
    for limit in (180_000, 240_000):
        found = measured(max_bytes=limit)
        assert is_close(found.values, free.values)
        assert max(found.batches, default=1) < 16
        assert peaks[limit] <= limit
    assert peaks[None] > 240_000
    with pytest.raises(MemoryError, match=r"max_bytes=10,000\. Pass fewer layers or samples"):
        measured(max_bytes=10_000)


def read() -> nn.Module:
    """Build a model with a whole text in, and an embedding of each token out."""
    return nn.Sequential(OrderedDict(words=nn.Embedding(9, 8), read=nn.Linear(8, 2000)))


def fused() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3).eval()


LONG = [nn.Linear(16, 16) for _ in range(60)]
SWEPT: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, Any, dict[str, Any]]] = {
    "a wide layer": (lambda: nn.Sequential(nn.Linear(64, 999), nn.ReLU(True), nn.Linear(999, 2)), X, "2", {"axis": 1}),
    "many layers before the change": (lambda: nn.Sequential(*LONG), X[0].reshape(64, 16), "59", {}),
    "every layer": (lambda: nn.Sequential(*LONG), X[0].reshape(64, 16), "*", {}),
    "a fused path": (fused, X[..., :32], "layers.*", {"axis": 1}),
    "a large output": (read, torch.arange(9)[None].repeat(2, 1), "words", {"axis": 2}),
    "buffers": (lambda: nn.Sequential(nn.Linear(64, 16), nn.Unflatten(1, (1, 16)), nn.BatchNorm1d(1)), X[0], "0", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEPT)
def test_no_limit_is_overrun(kind: str) -> None:
    make, x, layers, where = SWEPT[kind]
    torch.manual_seed(0)
    net, other, calls = make().eval(), x.flip(0, 1), 0
    # Not the plain sum, which is 0 after a LayerNorm but for rounding.
    options: dict[str, Any] = {"channels": range(8), **where, "metric": torch.norm, "check": 2, "progress": False}
    free, ways = sweep(net, x, layers, other, **options), set()

    def count(*args: Any) -> None:
        nonlocal calls
        calls += 1

    with pytest.raises(MemoryError) as caught, net.register_forward_pre_hook(count):
        sweep(net, x, layers, other, max_bytes=1, **options)
    assert calls == 2  # to see what there is, and to measure
    one = int(str(caught.value).removeprefix("one run takes about ").split()[0].replace(",", ""))
    for times in (1, 1.5, 2, 3, 5, 8, 12, 20):
        limit = int(times * one)
        with PeakBytes() as counted:
            found = sweep(net, x, layers, other, max_bytes=limit, **options)
        assert counted.peak <= limit
        assert is_close(found.values, free.values)
        said = [note for note in found.notes if f"more than the {limit:,} allowed, so each cell was run alone" in note]
        assert len(said) == (not found.batches)
        ways.add("batches" if found.batches else "alone")
    assert ways == {"alone", "batches"}


def test_a_pass_that_cannot_be_measured_is_said() -> None:
    options: dict[str, Any] = {"channels": range(8), "axis": 2, "metric": torch.sum, "check": 2, "progress": False}

    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:  # under no mode of torch's dispatch, as flex attention
        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("no modes here")
        return self.a(x)

    found = sweep(Net(run, a=nn.Linear(8, 8)), X[..., :8], "a", "zero", max_bytes=100_000, **options)
    why = "max_bytes was ignored, because the pass that measures the memory raised RuntimeError: no modes here"
    assert found.notes[0] == why


def test_bytes_at_the_peak_are_those_that_are_there_together() -> None:
    with PeakBytes() as counted:
        one = torch.ones(1000)
        for _ in range(5):
            one = (one + 1).view(10, 100).relu_().view(1000)
    assert counted.peak == 8000


def test_where_there_is_room_for_one_cell_only_each_is_run_alone() -> None:
    def swept(limit: int) -> Any:
        options = {"positions": range(16), "metric": lambda y: y.sum(), "check": 2, "max_bytes": limit}
        return sweep(chain(), X, LAYERS, "zero", **options)

    with pytest.raises(MemoryError) as caught:
        swept(1)
    needed = int(str(caught.value).removeprefix("one run takes about ").split()[0].replace(",", ""))
    with pytest.raises(MemoryError):
        swept(needed - 1)
    assert swept(needed).batches == ()
    assert max(swept(3 * needed).batches) > 1


def test_copies_count_in_inference_mode_where_torch_does_not_take_operations_apart() -> None:
    x = torch.ones(8, 4)
    with torch.inference_mode(), PeakBytes() as counted:
        wide = x.to(torch.float64)
        turned = wide.t().contiguous()
    assert counted.peak == wide.nbytes + turned.nbytes


def test_copies_of_tensors_in_plain_attributes_count() -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    net.table = torch.zeros(200_000)
    with pytest.raises(MemoryError, match=r"including what the sweep keeps, and max_bytes=200,000"):
        sweep(
            net, torch.ones(1, 8), "0", "zero", channels=range(8), metric=torch.sum, max_bytes=200_000, progress=False
        )


def test_a_lazy_layer_that_no_pass_calls() -> None:
    net = chain()
    net.unused = nn.LazyBatchNorm1d()
    net.forward = lambda x: net[2](net[1](net[0](x)))
    found = sweep(net, X, "0", "zero", positions=range(3), metric=torch.sum, progress=False)
    assert found.values.shape == (1, 3)
