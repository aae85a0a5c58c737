"""Exceptions and interrupts in layers, hooks and functions, while entering and while leaving, leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.hooks import RemovableHandle

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


def in_forward(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    net[1].dropout.forwards = kind
    yield
    net[1].dropout.forwards = None


def in_backward(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    net[1].dropout.backwards = kind
    yield
    net[1].dropout.backwards = None


def in_an_edited_layer(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    """In torch's own function for attention, in which heads and edges are edited."""
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = hook(kind)
    yield
    torch.nn.functional.scaled_dot_product_attention = attend


def before_a_layer(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    handle = net[1].self_attn.register_forward_pre_hook(hook(kind))
    yield
    handle.remove()


def after_a_layer(net: nn.Sequential, kind: type[BaseException]) -> Iterator[None]:
    handle = net[0].register_forward_hook(hook(kind))
    yield
    handle.remove()


PLACES = [in_forward, in_backward, in_an_edited_layer, before_a_layer, after_a_layer]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES)
def test_a_pass_that_raises_leaves_nothing_and_the_next_block_is_right(place: Any, kind: type[BaseException]) -> None:
    net = model()
    expected = run(net)
    raising = place(net, kind)
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


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("number", range(6))
def test_entering_that_raises_leaves_nothing(
    number: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, calls = model(), []
    before = state_of(net)
    register = nn.Module.register_forward_pre_hook

    def raises(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) > number:
            raise kind
        return register(*given, **options)

    e = edit(net)
    every_kind(e)
    monkeypatch.setattr(nn.Module, "register_forward_pre_hook", raises)
    with pytest.raises(kind), e:
        pytest.fail("the block began")
    assert state_of(net) == before
    monkeypatch.undo()
    with e:  # it is not open
        net(IDS).sum().backward()
    assert state_of(net) == before


@pytest.mark.parametrize("number", range(8))
def test_an_interrupt_while_leaving_undoes_the_rest(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, calls = model(), []
    before = state_of(net)
    remove = RemovableHandle.remove

    def raises(handle: RemovableHandle) -> None:
        remove(handle)
        calls.append(handle)
        if len(calls) == number + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RemovableHandle, "remove", raises)
    with pytest.raises(KeyboardInterrupt):
        run(net)
    assert len(calls) > 8
    assert state_of(net) == before


def test_modes_of_others_stay() -> None:
    class Mine(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    net = model()
    with Mine() as mine:
        net[1].dropout.forwards = KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            run(net)
        assert _get_current_function_mode_stack() == [mine]


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
    assert any("nothing tells how many samples" in note for note in e.notes)
