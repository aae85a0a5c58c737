"""What is on one device is worked on there, whatever torch's default device is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A default device on which nothing has a value."""
    with torch.device("meta"):
        yield


@pytest.fixture
def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(1, 3, 8)


def test_a_capture_and_an_edit(encoder: nn.Module, x: torch.Tensor, elsewhere: None) -> None:
    with torch.no_grad(), hookscope.edit(encoder) as e:
        e.set("linear1", 0, hookscope.at[:, [0, 2]], samples=[0])
        with hookscope.capture(encoder, "linear1") as seen:
            encoder(x)
    assert seen["linear1"].output[0, :, 0].ne(0).tolist() == [False, True, False]


def test_one_number_of_another_device_is_a_value_of_an_edit() -> None:
    net, number = nn.Sequential(nn.Identity()), torch.tensor(2.0)
    for verb in ("set", "add", "scale"):
        with hookscope.edit(net) as e:
            getattr(e, verb)("0", number, hookscope.at[0])
            assert net(torch.ones(3, device="meta")).is_meta
    with hookscope.edit(net) as e:
        e.swap("0", number)
        assert net(torch.ones((), device="meta")).is_meta


def test_a_sweep_and_its_picture(encoder: nn.Module, x: torch.Tensor, elsewhere: None) -> None:
    found = hookscope.sweep(encoder, x, layers="linear1", source="zero", positions=[0, 1], metric=lambda y: y[0, 0, 0])
    assert found.values.device.type == "cpu"
    assert found.picture().png


def test_attention_and_its_pictures(encoder: nn.Module, x: torch.Tensor, elsewhere: None) -> None:
    maps = hookscope.attention(encoder, x)
    assert maps.picture().png
    assert maps.table().rows[0]["queries"] == 3


def test_what_is_collected(tmp_path: Path, encoder: nn.Module, x: torch.Tensor, elsewhere: None) -> None:
    stored = hookscope.collect(encoder, [x, x], "linear1", to=tmp_path / "all")
    with torch.no_grad(), hookscope.capture(encoder, "linear1") as seen:
        encoder(x)
    assert stored["linear1"][1:].equal(seen["linear1"].output)
    assert stored["linear1"][2:].device.type == "cpu"


def test_places_out_of_bounds_are_refused_where_torch_would_not_check() -> None:
    net = nn.Identity()
    for index, where in ((hookscope.at[:, [0, 3]], {}), (hookscope.at[..., [0, -5]], {}), (..., {"samples": [2]})):
        with pytest.raises(IndexError, match="does not fit"), hookscope.edit(net) as e:  # noqa: PT012
            e.set("", 0, index, **where)
            net(torch.ones(2, 3, 4, device="meta"))
