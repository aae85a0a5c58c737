"""What a capture asks about memory that others know is answered the short way where that is possible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope.captures import capture, keep


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[torch.UntypedStorage]:
    """The storages that were looked up among those of all parameters, which is the long way."""
    found: list[torch.UntypedStorage] = []
    has = keep.Foreign.has
    monkeypatch.setattr(keep.Foreign, "has", lambda self, storage: found.append(storage) or has(self, storage))
    return found


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def test_the_short_way_is_taken_on_the_installed_torch(looked_up: list[torch.UntypedStorage]) -> None:
    model = small()
    with torch.no_grad(), capture(model) as seen:
        outputs = [model(torch.ones(4, 2)) for _ in range(2)]
    assert len(seen.calls) == 6
    assert not looked_up
    assert keep.shares_memory(outputs[-1])  # so it was asked at all


def test_the_long_way_is_taken_where_a_third_tensor_has_the_memory(looked_up: list[torch.UntypedStorage]) -> None:
    model = nn.Flatten()
    x = torch.ones(2, 3, 4)
    with torch.no_grad(), capture(model):
        model(x)
    assert len(looked_up) == 1
    assert not keep.shares_memory(x)


def test_without_a_use_count_the_long_way_is_taken(
    looked_up: list[torch.UntypedStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "_use_count", lambda cdata: float("inf"))
    keep._uses_by_two.cache_clear()
    try:
        model = small()
        with torch.no_grad(), capture(model) as seen:
            model(torch.ones(4, 2))
    finally:
        keep._uses_by_two.cache_clear()
    assert len(looked_up) == len(seen.calls) == 3
