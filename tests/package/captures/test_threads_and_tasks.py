"""Several threads, or tasks of asyncio, run one model: each call has the arguments and the output that are its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import torch
from torch import Tensor, nn

from hookscope import capture
from tests.shared import PATIENCE
from tests.shared.awkward_models import Do

X, Y = torch.full((1,), 1.0), torch.full((1,), 10.0)


def test_threads_that_cross_in_the_same_layer() -> None:
    inside, leave = threading.Barrier(2), {1.0: threading.Event(), 10.0: threading.Event()}

    def work(x: Tensor) -> Tensor:
        inside.wait(PATIENCE)  # both are in the layer now
        assert leave[x.item()].wait(PATIENCE)
        return x * 2

    net = nn.Sequential(nn.Identity(), Do(work))
    with capture(net, "", "0", "1", inputs=True) as seen:
        threads = [threading.Thread(target=net, args=(x,)) for x in (X, Y)]
        for thread in threads:
            thread.start()
        for thread, x in zip(threads, (X, Y), strict=True):  # the first that came in goes out first
            leave[x.item()].set()
            thread.join(PATIENCE)
    for layer in ("", "1"):
        assert sorted((c.args[0].item(), c.output.item()) for c in seen[layer].calls) == [(1, 2), (10, 20)]
    assert [call.number for call in seen["1"].calls] == [1, 2]


def test_calls_of_tasks_are_told_apart() -> None:
    net = nn.Sequential(nn.ReLU())

    async def twice(x: Tensor) -> None:
        net(x)
        await asyncio.sleep(0)  # here the other task runs
        net(x)

    async def both() -> None:
        await asyncio.gather(*(asyncio.create_task(twice(x), name=f"task of {x.item():.0f}") for x in (X, Y)))

    with capture(net, inputs=True) as seen:
        asyncio.run(both())
    assert [(c.by, c.args[0].item()) for c in seen.calls] == [("task of 1", 1), ("task of 10", 10)] * 2
    assert "task of 10" in repr(seen)
    with capture(net) as seen:
        net(X)
    assert seen.calls[0].by == "MainThread"
    assert "MainThread" not in repr(seen), "said only where there are several"


def test_a_call_that_one_task_left_open_is_not_around_the_calls_of_another() -> None:
    """Who comes to a model from outside is not in the middle of a pass, whatever others have left unfinished."""
    net, failing = nn.Module(), nn.Module()
    net.inner, net.view = failing, nn.Identity()
    failing.forward = lambda: [][0]
    net.forward = lambda x: net.view(x)

    async def fails() -> None:
        with contextlib.suppress(IndexError):
            failing()
        await asyncio.sleep(0)

    async def runs() -> None:
        net(X)

    async def both() -> None:
        await asyncio.gather(fails(), runs())

    address = X.data_ptr()
    with torch.no_grad(), capture(net, "inner", "view") as seen:
        asyncio.run(both())
    kept = seen["view"].output
    X.add_(0)  # a write: memory that was marked would move
    assert X.data_ptr() == address, "the caller's input keeps its address"
    assert kept.item() == 1
