"""A container among the inputs that the layer writes to in place, that threads share, or whose objects form a graph."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import edit
from hookscope.edits.lending import Loan, lend, refuse_borrowed, take_back
from tests.shared.awkward import Do, Net
from tests.shared.patience import PATIENCE

X = torch.ones(1)


def test_what_is_written_in_place_to_an_edited_tensor_is_said() -> None:
    def write(cache: dict[str, Tensor], place: int) -> Tensor:
        cache["k"][place] = 1.0
        return cache["k"].sum()

    net = Net(lambda self, cache, place: self.attn(cache, place), attn=Do(write))
    cache = {"k": torch.zeros(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with edit(net) as e:
            e.scale("attn", 2.0, to="input", part=(0, "k"), calls=2)
            assert [net(cache, place).item() for place in range(3)] == [1, 3, 2]
    assert cache["k"].tolist() == [1, 0, 1]
    (note,) = e.notes
    assert note.startswith("layer 'attn' wrote in place to an edited tensor in a container")


def test_what_is_written_to_another_tensor_of_the_container_stays_and_needs_no_word() -> None:
    def write(cache: dict[str, Tensor]) -> Tensor:
        cache["v"] += 1
        return cache["k"] + cache["v"]

    net = Net(lambda self, cache: self.attn(cache), attn=Do(write))
    cache = {"k": torch.ones(1), "v": torch.ones(1)}
    with edit(net) as e:
        e.scale("attn", 5.0, to="input", part=(0, "k"))
        assert net(cache).item() == 7
    assert (e.notes, cache["k"].item(), cache["v"].item()) == ((), 1, 2)


class Waits(nn.Module):
    """Waits in its first call for `go`, and says so by `inside`."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go = threading.Event(), threading.Event()

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        value = given["c"]
        if not self.inside.is_set():
            self.inside.set()
            assert self.go.wait(PATIENCE)
        return value * 1


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_with_one_container_are_refused_and_with_two_are_right(shared: bool) -> None:
    net = Net(lambda self, given: self.block(given), block=Waits())
    first = {"c": torch.ones(1)}
    results: list[float] = []
    thread = threading.Thread(target=lambda: results.append(net(first).item()))
    with edit(net) as e:
        e.scale("block", 2.0, to="input", part=(0, "c"))
        thread.start()
        assert net.block.inside.wait(PATIENCE)
        try:
            if shared:
                with pytest.raises(RuntimeError, match=r"edit 1 \(scale\) of layer 'block'.*another thread .* one of"):
                    net(first)
            else:
                assert net({"c": torch.ones(1)}).item() == 2
        finally:
            net.block.go.set()
            thread.join()
    assert (results, first["c"].item()) == ([2.0], 1.0)


def test_a_value_that_another_thread_has_taken_back_meanwhile_is_refused_too() -> None:
    lent: list[Loan] = []
    thread = threading.Thread(target=lend, args=({"c": X}, "c", X, X * 2, lent))
    thread.start()
    thread.join()
    try:
        refuse_borrowed(X, lambda: X)
        for found in (lent[0].now, X * 2):  # it is there still; it was there until a moment ago
            with pytest.raises(RuntimeError, match="another thread"):
                refuse_borrowed(found, lambda: X)
    finally:
        take_back(lent)


class Node:
    def __init__(self) -> None:
        self.x = torch.ones(1)
        self.others: list[Any] = []


def test_objects_that_point_to_each_other_are_not_followed_on_every_path() -> None:
    nodes = [Node() for _ in range(10)]
    for node in nodes:
        node.others = [other for other in nodes if other is not node]
    net = Net(lambda self, node: self.cell(node), cell=Do(lambda node: node.x * 3))
    with edit(net) as e:
        e.scale("cell", 2.0, to="input", part=(0, "x"))
        assert net(nodes[0]).item() == 6
    assert nodes[0].x.item() == 1


@pytest.mark.parametrize(("calls", "said"), [({1, 3}, (1, 3)), ({2, 3}, (2, 3)), (range(1, 4), (1, 2, 3))])
def test_freeze_takes_the_first_call_that_is_meant(calls: Any, said: tuple[int, ...]) -> None:
    net = Net(lambda self, x: torch.stack([self.f(x + number) for number in range(3)]), f=Do(lambda x: x * 1))
    with edit(net) as e:
        e.freeze("f", calls=calls)
        found = net(torch.zeros(())).tolist()
    assert found == [said[0] - 1 if number in said else number - 1 for number in (1, 2, 3)]
