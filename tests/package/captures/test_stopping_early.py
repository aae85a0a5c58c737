"""With stop=True a pass ends after the last chosen layer, the block swallows only that, and nothing stays behind."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from hookscope import NotEditedError, at, capture, census, edit
from tests.shared.awkward_models import Net


class Counted(nn.Module):
    """Adds one, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + 1


def chain(length: int = 4) -> nn.Sequential:
    return nn.Sequential(*(Counted() for _ in range(length)))


def counts(net: nn.Sequential) -> list[int]:
    return [layer.count for layer in net]


X = torch.zeros(1, 2)


def test_the_pass_ends_after_the_last_chosen_layer_and_the_block_with_it():
    net, after = chain(), []
    with torch.no_grad(), capture(net, "0", "2", stop=True) as seen:
        net(X)
        after.append("never")
    assert counts(net) == [1, 1, 1, 0]
    assert not after
    assert seen.order == ["0", "2"]
    assert seen["2"].output.tolist() == [[3.0, 3.0]]
    assert seen.stopped == "2"
    assert "; the pass was ended after 2" in repr(seen)
    assert not seen.notes
    assert len(census(net)) == 0
    assert net(X).tolist() == [[4.0, 4.0]]


def test_of_a_layer_in_a_loop_so_many_calls_are_waited_for():
    inner = Counted()
    net = nn.Sequential(inner, inner, inner, Counted())
    for stop, calls in ((True, 1), (2, 2), (3, 3)):
        inner.count = 0
        with capture(net, inner, stop=stop) as seen:
            net(X)
        assert (inner.count, len(seen["0"].calls)) == (calls, calls)
        assert net[3].count == 0


def test_a_layer_that_is_not_called_so_often_lets_the_pass_run_to_its_end():
    net = nn.Sequential(chain(), Net(lambda self, x: x, never=nn.Linear(2, 2)))
    for which, stop in ((["0.1", "1.never"], True), (["0.1"], 2)):
        with capture(net, *which, stop=stop) as seen:
            y = net(X)
        assert y.tolist() == [[4.0, 4.0]]
        assert seen.stopped == ""
        assert list(seen.uncalled) == which[1:]


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_a_model_that_catches_the_exception_does_not_return_a_wrong_output(kind):
    def run(self: nn.Module, x: Tensor) -> Tensor:
        try:
            return self.first(x)
        except kind:
            return x - 1

    net, after = Net(run, first=Counted()), []
    with pytest.warns(UserWarning, match="caught the exception with which stop=True"), capture(net, "first", stop=True):
        after.append(net(X))
    assert not after
    assert len(census(net)) == 0


def test_only_its_own_exception_is_swallowed():
    net = chain()
    handle = net[0].register_forward_hook(lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught, capture(net, "3", stop=True) as seen:
        net(X)
    handle.remove()
    assert caught.value.capture is seen
    assert seen.stopped == ""


def test_captures_nest_and_each_is_ended_by_its_own_exception():
    net, after = chain(), []
    with capture(net, stop=False) as whole:
        with capture(net, "2", stop=True) as outer:
            with capture(net, "0", stop=True) as inner:
                net(X)
            after.append("inner")
            with capture(net, "3", stop=True) as late:  # comes too late: outer ends both blocks
                net(X)
            after.append("never")
        after.append("outer")
        net(X)
    assert after == ["inner", "outer"]
    assert (inner.stopped, outer.stopped, late.stopped) == ("0", "2", "")
    assert whole.order == ["0", *"012", *"0123"]
    assert [call.number for call in whole["0"].calls] == [1, 2, 3]
    assert outer.order == ["2"]
    assert not late.order
    assert len(census(net)) == 0


def test_it_can_be_entered_again_and_forgets_that_it_was_ended():
    net = chain()
    seen = capture(net, "1", stop=True)
    for value in (0.0, 5.0):
        with seen:
            net(X + value)
        assert (seen["1"].output == value + 2).all()
        assert seen.stopped == "1"
    with seen:
        pass
    assert seen.stopped == ""


def test_hooks_of_others_that_are_always_called_are_called():
    net, called = nn.Sequential(chain(2)), []
    net.register_forward_hook(lambda *given: called.append("always"), always_call=True)
    with capture(net, "0.0", stop=True):
        net(X)
    assert called == ["always"]


def test_with_edits_around_and_after_it():
    net = chain()
    with edit(net) as e:
        e.set("0", 7.0, at[:, 0])
        with capture(net, "0", stop=True) as seen:
            net(X)
    assert seen["0"].output.tolist() == [[7.0, 1.0]]
    late = edit(net)
    late.set("3", 7.0)
    with pytest.raises(NotEditedError), late, capture(net, "0", stop=True):  # it never ran
        net(X)


def test_the_pass_of_another_thread_goes_on_and_that_is_said():
    net, results = chain(), []

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: results.append(net(X)), name="worker")
        thread.start()
        thread.join()

    with pytest.warns(UserWarning, match="stop=True does not end the pass of worker"), capture(net, "0", stop=True):
        elsewhere()
    assert results[0].tolist() == [[4.0, 4.0]]


def test_data_parallel_and_start_are_refused():
    with pytest.raises(ValueError, match=r"cannot end the threads of nn.DataParallel.* in its \.module"):
        capture(nn.DataParallel(chain()), stop=True)
    net = chain()
    with pytest.raises(ValueError, match=r"start\(\) does not work with stop=True"):
        capture(net, "0", stop=True).start()
    assert len(census(net)) == 0


def test_what_the_next_pass_is_given_keeps_its_memory():
    net = nn.Sequential(nn.Identity(), Counted())
    with capture(net, "0") as whole:
        with capture(net, "0", stop=True):
            net(torch.zeros(1, 2))
        x = torch.zeros(1, 2)
        array = x.numpy()
        net(x)
        array[:] = 5  # past torch: an input that shares its memory with the capture would change there
    assert whole["0"].calls[1].output.tolist() == [[0.0, 0.0]]
