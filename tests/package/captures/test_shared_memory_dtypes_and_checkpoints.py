"""Memory that NumPy shares, sums of gradients, passes of a checkpoint, names of threads: what a capture says holds."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope import capture, edit
from hookscope.captures import call
from hookscope.captures.stats import compute_stats
from tests.shared import PATIENCE
from tests.shared.awkward_models import Net


def test_memory_of_an_attribute_that_numpy_shares_stays_where_it_is() -> None:
    def fill(self: nn.Module, x: Tensor) -> Tensor:
        self.array += 1
        self.state.mul_(2)
        return self.state

    state = torch.zeros(3)
    net = Net(fill, state=state, array=state.numpy())
    with capture(net) as seen:
        outputs = [net(torch.ones(1)).clone() for _ in range(4)]
    assert [y[0].item() for y in outputs] == [2, 6, 14, 30]
    assert [call.output[0].item() for call in seen.calls] == [2, 6, 14, 30]
    assert net.array.tolist() == net.state.tolist()


def test_max_bytes_counts_gradients() -> None:
    net, x = nn.Sequential(*[nn.Linear(100, 100) for _ in range(10)]), torch.ones(50, 100)
    seen = capture(net, gradients=True, max_bytes=399_999)
    with pytest.raises(MemoryError, match="more than max_bytes=399,999"), seen:
        net(x)
    with capture(net, gradients=True, max_bytes=400_000):
        net(x).sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_gradients_add_up_in_their_own_dtype_and_are_read_in_the_one_asked_for(dtype: torch.dtype) -> None:
    net = nn.Linear(4, 2)
    with capture(net, gradients=True, dtype=dtype) as seen:
        y = net(torch.ones(1, 4))
        for _ in range(400):
            y.sum().backward(retain_graph=True)
    assert seen[""].grad.dtype is dtype
    assert seen[""].grad.tolist() == [[400, 400]]


def test_a_model_in_half_precision_adds_up_as_torch_does() -> None:
    net = nn.Linear(4, 2).bfloat16()
    with capture(net, gradients=True) as seen:
        y = net(torch.ones(1, 4, dtype=torch.bfloat16))
        y.retain_grad()
        for _ in range(400):
            y.sum().backward(retain_graph=True)
    assert torch.equal(seen[""].grad, y.grad)


def test_what_a_checkpoint_runs_again_is_no_pass() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net = Net(lambda self, x: checkpoint(self.block, x, use_reentrant=False), block=block)
    with capture(net) as seen:
        net(torch.ones(1, 5, 4)).sum().backward()
    assert [call.run for call in seen["block.0"].calls] == [1, 0]


def test_a_thread_is_called_by_its_own_name() -> None:
    net = nn.Linear(2, 2)
    with capture(net) as seen:
        for number in range(6):  # one after the other: the system gives the number of a dead thread to the next
            thread = threading.Thread(target=net, args=(torch.ones(1, 2),), name=f"worker {number}")
            thread.start()
            thread.join()
    assert [call.by for call in seen.calls] == [f"worker {number}" for number in range(6)]


def test_a_layer_is_found_under_its_second_name() -> None:
    net = nn.Module()
    net.encoder = net.decoder = nn.Linear(2, 2)
    with capture(net) as seen:
        net.encoder(torch.ones(1, 2))
        net.decoder(torch.ones(1, 2))
    assert len(seen["decoder"].calls) == 2
    assert "decoder" in seen
    assert "other" not in seen


# -- counted --------------------------------------------------------------------------------------


def test_statistics_far_from_zero_and_near_the_largest_number() -> None:
    x = 1e8 + torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    assert compute_stats(x).std == pytest.approx(x.double().std(correction=0).item(), rel=1e-3)
    assert compute_stats(torch.tensor([3e38, -3e38, 3e38])).mean_abs == pytest.approx(3e38, rel=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1e-22, 1e-200, 1e-320, 1e300])
@pytest.mark.parametrize("count", [2, 300_000])
def test_the_deviation_of_numbers_whose_squares_have_no_place(size: float, count: int) -> None:
    dtype = torch.float32 if 1e-40 < size < 1e38 else torch.float64
    whole = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (whole * size).to(dtype)
    true = (x.double() / size).std(correction=0).item() * size
    assert compute_stats(x).std == pytest.approx(true, rel=1e-4, abs=0)
    assert compute_stats(torch.tensor([size, -size], dtype=dtype)).std == pytest.approx(size, rel=1e-3, abs=0)


def test_gradients_that_threads_add(monkeypatch: pytest.MonkeyPatch) -> None:
    real = call._added

    def slowly(total: torch.Tensor, more: torch.Tensor, own: bool) -> torch.Tensor:
        time.sleep(0.002)
        return real(total, more, own)

    monkeypatch.setattr(call, "_added", slowly)
    net = nn.Linear(2, 2)
    with capture(net, gradients=True) as seen:
        y = net(torch.ones(1, 2))
        threads = [threading.Thread(target=lambda: y.sum().backward(retain_graph=True)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (seen[""].grad == 4).all()


class Pages:
    """Owns what it gives back when it goes, as a paged cache or a temporary file does."""

    def __init__(self, freed: list[int]) -> None:
        self.values, self.freed = torch.zeros(2), freed

    def __del__(self) -> None:
        self.freed.append(1)


class SlottedPages:
    __slots__ = ("freed", "values")
    __init__, __del__ = Pages.__init__, Pages.__del__


class ListOfPages(list[torch.Tensor]):
    def __init__(self, freed: list[int]) -> None:
        super().__init__([torch.zeros(2)])
        self.freed = freed

    __del__ = Pages.__del__


@pytest.mark.parametrize("kind", [Pages, SlottedPages, ListOfPages])
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in an object"])
def test_a_copy_of_an_object_frees_nothing_when_it_goes(kind: type, inside: bool) -> None:
    freed: list[int] = []
    pages = kind(freed)
    given = SimpleNamespace(pages=pages) if inside else pages
    net = nn.Sequential(nn.Identity(), nn.Identity())
    with capture(net, inputs=True) as seen:
        net(given)
    kept = seen["0"].output
    values = kept.pages if inside else kept
    values = values[0] if kind is ListOfPages else values.values
    assert values.tolist() == [0, 0]
    with edit(net) as e:
        e.map("0", lambda value: value)
        net(torch.ones(1))
    del seen, kept
    gc.collect()
    assert not freed
    del pages, given
    gc.collect()
    assert freed == [1]


def test_a_temporary_file_in_an_output_stays_open_and_on_disk() -> None:
    with tempfile.NamedTemporaryFile("w+") as file:
        net = nn.Identity()
        with capture(net, inputs=True) as seen:
            net({"x": torch.ones(1), "log": file})
        assert seen[""].output["x"].item() == 1
        del seen
        gc.collect()
        file.write("still there")
        file.flush()
        assert Path(file.name).read_text() == "still there"


FIRST = """
import torch, hookscope
from torch import nn
net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(3, 4)
def gradients():
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    loss = lambda p, row: torch.func.functional_call(net, p, (row[None],)).sum()
    return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
known = gradients()
with hookscope.capture(net) as seen:
    found = gradients()
print(all(torch.equal(known[name], found[name]) for name in known), len(seen.order))
with hookscope.capture(net):
    torch.export.export(net, (x,))
    torch.jit.trace(net, x)
weight = net[0].weight.detach().numpy()
with torch.no_grad(), hookscope.capture(net):
    net(x)
with torch.no_grad():
    net[0].weight.fill_(1)
print(weight.min(), weight.max())
"""


@pytest.mark.slow
def test_the_first_capture_of_a_process_may_be_under_a_transform() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines() == ["True 3", "1.0 1.0"], done.stderr
