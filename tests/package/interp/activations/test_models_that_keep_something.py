"""A model that keeps something from pass to pass is collected as a plain loop would have it, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope import Activations, collect
from hookscope.interp.activations import DamagedError
from hookscope.interp.activations.fingerprint import fingerprint_batch, fingerprint_state
from hookscope.interp.activations.shards import Shard
from tests.shared.awkward_models import Do


class FirstBatch(nn.Module):
    """Takes scale and shift from the first batch that it sees."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.ready, self.in_place = False, in_place
        self.mean, self.std = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            if self.in_place:
                self.mean.data.copy_(x.mean(0))
                self.std.data.copy_(x.std(0))
            else:
                self.mean.data, self.std.data = x.mean(0), x.std(0)
            self.ready = True
        return (x - self.mean) / self.std


@pytest.mark.parametrize("in_place", [True, False])
def test_finding_the_axes_is_not_the_first_batch(in_place: bool, tmp_path: Path) -> None:
    data = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).split(32)
    plain, net = FirstBatch(in_place).eval(), FirstBatch(in_place).eval()
    with torch.no_grad():
        truth = torch.cat([plain(batch) for batch in data])
    stored = collect(net, data, "", to=tmp_path, progress=False)
    assert torch.equal(stored["(root)"][:], truth)
    assert torch.equal(net.mean, plain.mean)


def test_a_model_that_cannot_be_copied_gets_back_what_can_be(tmp_path: Path) -> None:
    net = FirstBatch(in_place=False).eval()
    net.made = (torch.ones(2, requires_grad=True) * 2,)  # type: ignore[assignment]  # torch copies no such tensor
    data = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).split(32)
    plain = FirstBatch(in_place=False).eval()
    with torch.no_grad():
        truth = torch.cat([plain(batch) for batch in data])
    assert torch.equal(collect(net, data, "", to=tmp_path, progress=False)["(root)"][:], truth)


class Average(nn.Module):
    """Goes on with a buffer."""

    def __init__(self, kind: str = "buffer") -> None:
        super().__init__()
        held = torch.zeros(2)
        if kind == "buffer":
            self.register_buffer("state", held)
        else:
            self.state = nn.Parameter(held, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.state.data.mul_(0.5).add_(x.mean(0))
        return x + self.state


DATA = torch.arange(20.0).reshape(10, 2).split(2)


def stopped(after: int) -> Iterator[Tensor]:
    yield from DATA[:after]
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_a_model_that_changes_itself_cannot_be_gone_on_with_in_the_middle(kind: str, tmp_path: Path) -> None:
    net = Average(kind).eval()
    truth = torch.cat([net(batch) for batch in DATA])
    whole = collect(Average(kind).eval(), DATA, "", to=tmp_path / "whole", progress=False)
    assert torch.equal(whole["(root)"][:], truth)
    with pytest.raises(KeyboardInterrupt):
        collect(Average(kind).eval(), stopped(3), "", to=tmp_path / "part", progress=False)
    with pytest.raises(ValueError, match=f"each pass might change {kind} 'state' of the model"):
        collect(Average(kind).eval(), DATA, "", to=tmp_path / "part", progress=False)
    again = collect(Average(kind).eval(), DATA, "", to=tmp_path / "whole", progress=False)  # complete: nothing to run
    assert again.complete


def batches(scale: float = 1.0, swapped: bool = False, stop: int | None = None) -> Iterator[dict[str, Any]]:
    for number, x in enumerate(DATA):
        if number == stop:
            raise KeyboardInterrupt
        yield {"b": x, "a": 2 * x, "scale": scale} if swapped else {"a": x, "b": 2 * x, "scale": scale}


class Scale:
    """An object of a class of somebody's own, which contains itself."""

    def __init__(self, scale: Any) -> None:
        self.scale, self.own = scale, self


@pytest.mark.parametrize("one", [3.0, np.array(3.0), np.array([3], dtype=object)])
def test_what_is_no_tensor_in_a_batch_is_data_too(one: Any, tmp_path: Path) -> None:
    def given(scale: Any, stop: int = 9) -> Iterator[dict[str, Any]]:
        for number, x in enumerate(DATA):
            if number == stop:
                raise KeyboardInterrupt
            yield {"x": x, "given": Scale(scale)}

    net = Do(lambda x, given: x * float(np.asarray(given.scale).item())).eval()
    with pytest.raises(KeyboardInterrupt):
        collect(net, given(one, stop=2), "", to=tmp_path, progress=False)
    with pytest.raises(ValueError, match="the batch has different data"):
        collect(net, given(one * 2), "", to=tmp_path, progress=False)
    assert collect(net, given(one), "", to=tmp_path, progress=False).complete


def test_a_tensor_at_another_place_is_other_data() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    assert fingerprint_batch((x, y, x)) != fingerprint_batch((x, y, y))
    assert fingerprint_batch((x, y, x)) == fingerprint_batch((x.clone(), y, x)), "equal numbers are the same data"


@pytest.mark.parametrize("size", [4, 1 << 17])
def test_a_parameter_that_is_turned_around_has_changed(size: int) -> None:
    net = nn.Module()
    net.register_parameter("ring", nn.Parameter(torch.zeros(2, size // 2)))
    with torch.no_grad():
        net.ring[0, 0] = 1  # type: ignore[index]
        before = fingerprint_state(net)
        net.ring.data = net.ring.data.roll(1, 1)  # type: ignore[union-attr, operator]
    assert fingerprint_state(net) != before


def test_a_dtype_that_cannot_be_written_is_said_before_anything_is(tmp_path: Path) -> None:
    data = torch.ones(4, 2, dtype=torch.float64).split(2)
    with pytest.raises(TypeError, match=r"'\(root\)' is torch.complex128, which safetensors cannot write. Run the"):
        collect(Do(lambda x: torch.complex(x, x)).eval(), data, "", to=tmp_path, progress=False)
    assert [each.name for each in tmp_path.iterdir()] == [".lock"]


def test_what_was_opened_before_a_folder_was_made_anew_is_not_mixed(tmp_path: Path) -> None:
    data, nets = torch.randn(8, 2).split(2), [nn.Linear(2, 3).eval() for _ in range(2)]
    stored = collect(nets[0], data, "", to=tmp_path, shard_bytes=1, progress=False)
    first = stored[0]["(root)"]
    shutil.rmtree(tmp_path)
    anew = collect(nets[1], data, "", to=tmp_path, shard_bytes=1, progress=False)
    assert torch.equal(stored[0]["(root)"], first), "that file is still open"
    with pytest.raises(DamagedError, match=r"written again after .* was opened.*Activations"):
        stored["(root)"][:]
    with torch.no_grad():
        assert torch.equal(anew["(root)"][:], nets[1](torch.cat(data)))


def test_an_interrupt_while_a_shard_is_counted_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Shard.samples, []

    def samples(shard: Shard) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return int(real.__get__(shard))

    net, data = nn.Linear(2, 3).eval(), torch.randn(12, 2).split(2)
    with monkeypatch.context() as patched:
        patched.setattr(Shard, "samples", property(samples))
        with pytest.raises(KeyboardInterrupt):
            collect(net, data, "", to=tmp_path, shard_bytes=1, progress=False)
    assert len(Activations(tmp_path)) == 4
    stored = collect(net, data, "", to=tmp_path, shard_bytes=1, progress=False)
    with torch.no_grad():
        assert torch.equal(stored["(root)"][:], torch.cat([net(x) for x in data]))


def test_what_no_column_can_be_taken_by(tmp_path: Path) -> None:
    stored = collect(nn.Linear(2, 3).eval(), torch.ones(4, 2).split(2), "", to=tmp_path, progress=False)
    for which in ([0, 1], None, ..., "a", True, 1.0):
        with pytest.raises(TypeError, match=r"'\(root\)' cannot be indexed by"):
            stored["(root)"][which]  # type: ignore[index]
    assert stored["(root)"][np.int64(1)].shape == stored["(root)"][torch.tensor(-1)].shape == (3,)


@pytest.mark.parametrize("other", [{"scale": 2.0}, {"swapped": True}])
def test_other_arguments_are_other_data(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(Do(lambda a, b, scale: (a - b) * scale).eval(), batches(stop=2), "", to=tmp_path, progress=False)
    with pytest.raises(ValueError, match="the batch has different data"):
        collect(Do(lambda a, b, scale: (a - b) * scale).eval(), batches(**other), "", to=tmp_path, progress=False)
    assert collect(Do(lambda a, b, scale: (a - b) * scale).eval(), batches(), "", to=tmp_path, progress=False).complete


def test_a_file_larger_than_the_system_allows_is_said(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match="larger than this system allows") as error:
            collect(nn.Linear(8, 100).eval(), torch.ones(500, 8).split(10), to=tmp_path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "Pass shard_bytes= smaller than" in str(error.value)
    stored = collect(
        nn.Linear(8, 100).eval(), torch.ones(500, 8).split(10), to=tmp_path / "b", shard_bytes=9000, progress=False
    )
    assert len(stored) == 500
