"""A model that keeps something from pass to pass is collected as a plain loop would have it, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import collect


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
    with pytest.raises(ValueError, match=f"each pass may change {kind} 'state' of the model"):
        collect(Average(kind).eval(), DATA, "", to=tmp_path / "part", progress=False)
    again = collect(Average(kind).eval(), DATA, "", to=tmp_path / "whole", progress=False)  # complete: nothing to run
    assert again.complete


class Difference(nn.Module):
    def forward(self, a: Tensor, b: Tensor, scale: float) -> Tensor:
        return (a - b) * scale


def batches(scale: float = 1.0, swapped: bool = False, stop: int | None = None) -> Iterator[dict[str, Any]]:
    for number, x in enumerate(DATA):
        if number == stop:
            raise KeyboardInterrupt
        yield {"b": x, "a": 2 * x, "scale": scale} if swapped else {"a": x, "b": 2 * x, "scale": scale}


@pytest.mark.parametrize("other", [{"scale": 2.0}, {"swapped": True}])
def test_other_arguments_are_other_data(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(Difference().eval(), batches(stop=2), "", to=tmp_path, progress=False)
    with pytest.raises(ValueError, match="the data of the batch is not that of then"):
        collect(Difference().eval(), batches(**other), "", to=tmp_path, progress=False)
    assert collect(Difference().eval(), batches(), "", to=tmp_path, progress=False).complete


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
    assert "give a smaller shard_bytes than" in str(error.value)
    stored = collect(
        nn.Linear(8, 100).eval(), torch.ones(500, 8).split(10), to=tmp_path / "b", shard_bytes=9000, progress=False
    )
    assert len(stored) == 500
