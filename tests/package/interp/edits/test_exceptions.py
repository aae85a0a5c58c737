"""Exceptions and interrupts in layers, hooks and functions, while entering and while leaving, leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from hookscope import at, census, edit
from hookscope.interp.edits import Edit

IDS = torch.tensor([[1, 2, 3]])


class Raises(nn.Module):
    """A layer that raises on demand, in forward or in backward."""

    forwards: type[BaseException] | None = None
    backwards: type[BaseException] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.forwards is not None:
            raise self.forwards
        if self.backwards is not None and x.requires_grad:
            x = x * 1
            x.register_hook(self.raises)
        return x * 1

    def raises(self, grad: Tensor) -> None:
        assert self.backwards is not None
        raise self.backwards


def model() -> nn.Sequential:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder.dropout = Raises()  # runs between the attention and the end
    return nn.Sequential(nn.Embedding(9, 4), encoder, nn.Tanh())


def every_kind(e: Edit) -> None:
    """Write edits of every kind, each of which puts something else on the model."""
    e.set("0", 0, at[..., 1])
    e.scale("2", 2.0, to="input")
    e.scale("2", 3.0, to="grad")
    e.scale("0", 2.0, positions=1)
    e.scale("0", 2.0, samples=[0])
    e.scale("1.self_attn", 2.0, heads=1)
    e.cut("1.self_attn", heads=0, queries=2, keys=1)


def state_of(net: nn.Module) -> Any:
    kept = [
        {key: [*value] if isinstance(value, dict) else id(value) for key, value in vars(module).items()}
        for module in net.modules()
    ]
    return kept, repr(census(net)), [*map(id, _get_current_function_mode_stack())]


def hook(kind: type[BaseException]) -> Callable[..., None]:
    def raises(*given: Any) -> None:
        raise kind

    return raises


def in_an_edited_layer(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    """In torch's own function for attention, in which heads and edges are edited."""
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = hook(kind)
    yield
    torch.nn.functional.scaled_dot_product_attention = attend


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_edited_attention_that_raises_leaves_nothing_and_the_next_block_is_right(kind: type[BaseException]) -> None:
    net = model()
    expected = run(net)
    raising = in_an_edited_layer(net, kind)
    next(raising)
    before = state_of(net)
    with pytest.raises(kind):
        run(net)
    assert state_of(net) == before
    next(raising, None)
    assert torch.equal(run(net), expected)


def run(net: nn.Module) -> Tensor:
    net.zero_grad()
    with edit(net) as e:
        every_kind(e)
        y: Tensor = net(IDS)
        y.square().sum().backward()
    return y.detach()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_function_of_an_edit_that_raises_leaves_nothing(kind: type[BaseException]) -> None:
    for to in ("output", "input", "grad"):
        net = model()
        before, e = state_of(net), edit(net)
        every_kind(e)
        e.map("1", hook(kind), to=to)
        with pytest.raises(kind), e:
            net(IDS).sum().backward()
        assert state_of(net) == before


@pytest.mark.filterwarnings("ignore:hookscope")
def test_a_pass_that_raised_does_not_say_how_many_samples_a_later_call_has() -> None:
    net = nn.Sequential(nn.Linear(3, 3), Raises())
    net[1].forwards = ValueError
    with edit(net) as e:
        e.set("0", 0.0, samples=[1])
        with suppress(ValueError):
            net(torch.ones(4, 3))
        found = net[0](torch.ones(2, 3))
    assert not found[1].any()
    assert any("the number of samples is unknown" in note for note in e.notes)
