"""Calls inside of themselves, calls that raise, calls that a checkpoint repeats."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from hookscope import NotEditedError, edit
from tests.shared.awkward_models import Do, Net


class CallsItself(nn.Module):
    """Calls itself once with another tensor, and catches what that raises."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises

    def forward(self, given: tuple[Tensor], inner: bool = False) -> Tensor:
        if inner and self.raises:
            raise ValueError
        if not inner:
            with suppress(ValueError):
                self((torch.zeros(1),), True)
        return given[0] * 1


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("to", ["input", "output"])
def test_the_first_call_calls_the_second(to: str, raises: bool) -> None:
    net, part = Net(lambda self, x: self.layer((x,)), layer=CallsItself(raises)), (0, 0) if to == "input" else None
    with edit(net) as e:
        e.set("layer", 100.0, to=to, part=part, calls=1)
        assert net(torch.ones(1)) == 100
    assert e.rows[0]["largest change"] == 99
    second = edit(net)
    second.set("layer", 100.0, to=to, part=part, calls=2)
    if raises and to == "output":
        with pytest.raises(NotEditedError, match="was called 2 times, but raised an exception"), second:
            assert net(torch.ones(1)) == 1
    else:
        with second:
            assert net(torch.ones(1)) == 1


class StopsItself(CallsItself):
    """Is left without a word by the call inside of it: torch calls no hook on the way of such an exception."""

    def forward(self, given: tuple[Tensor], inner: bool = False) -> Tensor:
        if inner:
            raise KeyboardInterrupt
        with suppress(KeyboardInterrupt):
            self((torch.zeros(1),), True)
        return given[0] * 1


def _refuses_inner_calls(module: nn.Module, args: tuple[Any, ...]) -> None:
    if len(args) > 1:
        raise ValueError


@pytest.mark.parametrize("why", ["a hook before", "a hook after", "interrupt"])
@pytest.mark.parametrize("to", ["input", "output"])
def test_a_call_inside_that_does_not_begin_or_end_leaves_the_outer_one_its_edit(to: str, why: str) -> None:
    layer = StopsItself(False) if why == "interrupt" else CallsItself(False)
    net = nn.Sequential(nn.Identity(), layer)
    net[0].register_forward_hook(lambda module, args, output: (output,))
    if why == "a hook before":
        layer.register_forward_pre_hook(_refuses_inner_calls)
    with edit(net) as e:
        e.set("1", 100.0, to=to, part=(0, 0) if to == "input" else None, calls=1)
        if why == "a hook after":
            layer.register_forward_pre_hook(_refuses_inner_calls)
        assert net(torch.ones(1)) == 100
        assert net(torch.ones(1)) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_pass_from_before_the_edit_is_recomputed_without_it(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4, requires_grad=True)
    (plain,) = torch.autograd.grad(net(x).sum(), x)
    before = checkpoint(net, x, use_reentrant=reentrant).sum()
    with edit(net) as e:
        e.scale("0", 5.0)
        net(torch.randn(1, 4))
        before.backward()
    assert torch.equal(x.grad, plain)

    x.grad = None
    with edit(net) as e:
        e.scale("0", 2.0)
        (edited,) = torch.autograd.grad(net(x).sum(), x)
        y = checkpoint(net, x, use_reentrant=reentrant).sum()
        e.scale("0", 5.0)
        y.backward()
        net(torch.randn(1, 4))
    torch.testing.assert_close(x.grad, edited)
    assert not torch.equal(edited, plain)


def test_a_checkpoint_in_another_thread_is_recomputed_with_the_edit() -> None:
    """Autograd counts in each thread by itself, so that its numbers say nothing about another one."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(50):
        net(x)  # autograd has counted on in this thread
    found: list[Tensor] = []

    def run() -> None:
        found.extend(torch.autograd.grad(checkpoint(net, x, use_reentrant=False).sum(), x))

    with edit(net) as e:
        e.scale("0", 2.0)
        (expected,) = torch.autograd.grad(net(x).sum(), x)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("verb", ["samples=", "mean"])
@pytest.mark.parametrize(("layer", "to"), [("fc", "output"), ("fc", "grad"), ("", "output"), ("", "grad")])
def test_samples_are_counted_for_gradients_and_for_the_model_itself(layer: str, to: str, verb: str) -> None:
    net = Net(lambda self, x: self.fc(x.flatten(0, 1)) * 1, fc=nn.Linear(3, 3))
    e = edit(net)
    if verb == "mean":
        e.mean(layer, to=to)
    else:
        e.set(layer, 0.0, samples=[1], to=to)
    with pytest.raises(ValueError, match=r"needs samples on the first axis, but the shape is \(8, 3\)"), e:
        net(torch.randn(2, 4, 3)).sum().backward()


def test_the_data_of_a_packed_sequence_are_no_samples() -> None:
    lstm = nn.LSTM(3, 5, batch_first=True)
    packed = pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    e = edit(lstm)
    e.set("", 0.0, samples=[1], part=(0, "data"))
    with pytest.raises(ValueError, match=r"but the shape is \(6, 5\)"), e:
        lstm(packed)


def test_where_only_a_part_of_the_model_runs_it_says_that_samples_cannot_be_counted() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    e = edit(net)
    e.set("0", 0.0, samples=[1])
    with pytest.warns(UserWarning, match="the number of samples is unknown"), e:
        net[0](torch.randn(2, 3))
    with e:
        net(torch.randn(2, 3))
    assert not e.notes


@pytest.mark.filterwarnings("ignore:hookscope")
def test_a_pass_that_raised_does_not_say_how_many_samples_a_later_call_has() -> None:
    def fail(x: Tensor) -> None:
        raise ValueError

    net = nn.Sequential(nn.Linear(3, 3), Do(fail))
    with edit(net) as e:
        e.set("0", 0.0, samples=[1])
        with suppress(ValueError):
            net(torch.ones(4, 3))
        found = net[0](torch.ones(2, 3))
    assert not found[1].any()
    assert any("the number of samples is unknown" in note for note in e.notes)
