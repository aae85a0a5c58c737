"""A layer that is given a list is given that list, and its caller has it back as the layer left it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import edit


class Inner(nn.Module):
    """Hands something on through what it is given."""

    def forward(self, x: Tensor, seen: Any) -> Tensor:
        if isinstance(seen, dict):
            seen["more"] = seen["first"] * 2
            return x + 1
        holder = seen[0] if isinstance(seen, tuple) else seen
        if x.sum() < 0:
            raise ValueError("negative")
        holder.append(holder[0] * 2)
        return x + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor, seen: Any) -> Tensor:
        return self.inner(x, seen)


X = torch.ones(2)


def test_a_list_stays_the_callers() -> None:
    net, first = Net(), X * 1
    seen = [first]
    with edit(net) as e:
        e.add("inner", 100.0, to="input", part=(1, 0))
        net(X, seen)
        assert seen[0] is first
        assert seen[1].tolist() == [202, 202]  # what the layer made of what it saw
    assert e.rows[0]["calls changed"] == 1
    assert not net.inner._forward_hooks


def test_a_dict_and_a_list_in_a_tuple() -> None:
    net, first = Net(), X * 1
    held, seen = {"first": first}, ([first],)
    with edit(net) as e:
        e.add("inner", 100.0, to="input", part=(1, "first"))
        net(X, held)
    with edit(net) as e:
        e.add("inner", 100.0, to="input", part=(1, 0, 0))
        net(X, seen)
    assert held["first"] is first
    assert held["more"].tolist() == [202, 202]
    assert seen[0][0] is first
    assert seen[0][1].tolist() == [202, 202]


def test_after_an_exception_the_list_is_as_it_was() -> None:
    net, first = Net(), X * 1
    seen = [first]
    e = edit(net)
    e.add("inner", 100.0, to="input", part=(1, 0))
    with pytest.raises(ValueError, match="negative"), e:
        net(-X, seen)
    assert seen[0] is first
    assert len(seen) == 1


def test_what_the_layer_moved_is_found_and_what_it_took_away_stays_away() -> None:
    class Turns(nn.Module):
        def forward(self, seen: list[Tensor]) -> Tensor:
            seen.insert(0, seen[0] * 2)
            return seen[0]

    class Takes(nn.Module):
        def forward(self, seen: list[Tensor]) -> Tensor:
            return seen.pop() * 2

    first = X * 1
    for net, left in ((Turns(), 2), (Takes(), 0)):
        seen = [first]
        with edit(net) as e:
            e.add("", 100.0, to="input", part=(0, 0))
            y = net(seen)
        assert y.tolist() == [202, 202]
        assert len(seen) == left
        assert not left or seen[1] is first
