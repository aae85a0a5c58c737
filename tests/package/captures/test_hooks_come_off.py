"""Hooks come off however the block ends, and what was captured until then can be read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census, record
from hookscope.captures.call import NotCapturedError
from tests.shared import awkward
from tests.shared.awkward import RAISED, Case, Do, Net, cloning
from tests.shared.captured import X, assert_same_calls, check, small
from tests.shared.recorded import hooks_on


@pytest.mark.parametrize("stop", [ValueError("stop"), KeyboardInterrupt()])
def test_hooks_come_off_and_the_error_carries_what_was_captured(stop):
    def fail(x):
        raise stop

    net = nn.Sequential(nn.Linear(1, 1), Do(fail), nn.Linear(1, 1))
    with pytest.raises(type(stop)) as caught, capture(net) as seen:
        net(torch.ones(1, 1))
    assert caught.value.capture is seen
    assert "2 calls were captured, the last one 1" in caught.value.__notes__[0]
    assert seen["0"].output.shape == (1, 1)
    with pytest.raises(NotCapturedError, match="call 1 raised"):
        _ = seen["1"].output
    assert len(census(net)) == 0


def test_a_layer_whose_exception_the_model_catches_does_not_confuse_the_rest():
    def fail(x):
        raise ValueError

    bad, good = Do(fail), nn.ReLU()

    def forward(x):
        try:
            return bad(x)
        except ValueError:
            return good(x)

    net = Do(forward)
    net.bad, net.good = bad, good
    with capture(net, "bad", "good", "") as seen:
        net(torch.ones(1))
    assert seen.order == ["", "bad", "good"]
    assert seen["good"].output.item() == 1
    assert seen[""].output.item() == 1
    with pytest.raises(NotCapturedError):
        _ = seen["bad"].output


def test_two_captures_nest_and_one_can_be_entered_again():
    net = small()
    with torch.no_grad(), capture(net, "0") as outer:
        with capture(net, "0", "2") as inner:
            net(X)
        net(X)
    assert len(outer["0"].calls) == 2
    assert len(inner["0"].calls) == 1
    with pytest.raises(RuntimeError, match="already open"), outer, outer:
        pass
    with torch.no_grad(), outer:
        net(X * 2)
    assert outer["0"].output.item() == -8
    assert len(census(net)) == 0


class StopEarlyError(Exception):
    """Raised by a layer on purpose."""


def failing(when: int) -> Net:
    def explode(x: torch.Tensor) -> torch.Tensor:
        model.count += 1
        if model.count == when:
            raise StopEarlyError
        return x * 2

    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.relu(self.explode(self.a(x)))
        return x

    model = Net(run, a=nn.Linear(4, 4), explode=awkward.Do(explode), relu=nn.ReLU(inplace=True))
    model.count = 0
    return model


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_exception_in_forward_leaves_no_hook_and_keeps_what_was_there(when: int, gradients: bool) -> None:
    torch.manual_seed(0)
    model = failing(when)
    with pytest.raises(StopEarlyError), cloning(model) as reference:
        model(torch.ones(2, 4))
    model.count = 0
    with pytest.raises(StopEarlyError), capture(model, gradients=gradients) as seen:
        model(torch.ones(2, 4))
    assert len(census(model)) == 0
    assert [call.output is RAISED for call in reference] == [False] * (3 * when - 2) + [True]
    assert seen.order == ["a", "explode", "relu"] * (when - 1) + ["a", "explode"]
    assert_same_calls(seen, reference, gradients=False, inputs=False)


def test_an_exception_that_the_model_catches() -> None:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.inner(x)
        except StopEarlyError:
            x = self.inner.a(x) * 3
        return self.b(x)

    def build() -> Case:
        torch.manual_seed(0)
        return Net(run, inner=failing(2), b=nn.Linear(4, 3)), (torch.ones(2, 4),), {}

    assert not check(build, "grad", gradients=True, inputs=True)
    assert not check(build, "inference", gradients=False, inputs=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_in_the_block_or_in_backward_leaves_no_hook(error: type[BaseException]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))

    def explode(grad: torch.Tensor) -> None:
        raise error

    def run() -> None:
        with capture(model, gradients=True):
            output = model(torch.ones(2, 4))
            output.register_hook(explode)
            output.sum().backward()

    with pytest.raises(error):
        run()
    assert len(census(model)) == 0
    with pytest.raises(error), capture(model):
        raise error
    assert len(census(model)) == 0


# --- an exception anywhere in a block, also one that is no Exception

ERRORS = pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])


class Odd(nn.Module):
    """Raises where it is told to: while a hook is registered or removed, in forward, or in backward."""

    def __init__(self, where: str, error: type[BaseException]) -> None:
        super().__init__()
        self.where, self.error = where, error

    def register_forward_hook(self, *args, **kwargs):
        if self.where == "enter":
            raise self.error
        handle = super().register_forward_hook(*args, **kwargs)
        if self.where == "exit":
            remove = handle.remove

            def fail():
                remove()
                raise self.error

            handle.remove = fail
        return handle

    def forward(self, x):
        if self.where == "forward":
            raise self.error
        if self.where == "backward":
            x.register_hook(self.fail)
        return x * 2

    def fail(self, grad):
        raise self.error


@ERRORS
@pytest.mark.parametrize("options", [{}, {"inputs": True}, {"stats": True}, {"copy": False}], ids=str)
@pytest.mark.parametrize("where", ["enter", "forward", "backward", "exit"])
def test_an_exception_anywhere_leaves_no_hook(where, options, error):
    net = nn.Sequential(nn.Linear(4, 4), Odd(where, error), nn.ReLU(inplace=True))
    seen = capture(net, gradients=True, **options)
    for _ in range(2):
        with pytest.raises(error), seen:
            net(torch.ones(2, 4)).sum().backward()
        assert hooks_on(net) == hooks_on(nn.Sequential(nn.Linear(4, 4), Odd("", error), nn.ReLU()))
    net[1].where = ""
    with seen:
        net(torch.ones(2, 4))
    assert seen.order == ["0", "1", "2"]


@ERRORS
@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_an_exception_in_a_hook_leaves_none_of_ours(register, error):
    def fail(*args):
        raise error

    net = small()
    handle = getattr(net[1], register)(fail)
    with pytest.raises(error), capture(net):
        net(X)
    handle.remove()
    assert len(census(net)) == 0


def test_a_capture_that_ends_inside_a_recording_that_began_in_it_leaves_no_hook() -> None:
    net = small()
    seen, recording = capture(net), record(net, kinds="forward")
    seen.__enter__()
    recording.__enter__()
    seen.__exit__(None, None, None)
    net(X)
    recording.__exit__(None, None, None)
    assert hooks_on(net) == hooks_on(small())
    assert seen.order == []
