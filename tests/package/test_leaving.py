"""An interrupt that comes as `__exit__` begins, before any line of it has run, leaves no hook on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import capture, census, record

Block = Callable[[nn.Module], Any]


BLOCKS: dict[str, Block] = {"capture": capture, "record": record}


def interrupted_as_it_leaves(block: Any, run: Callable[[], object]) -> None:
    """Run a block, and raise where Python itself asks for interrupts: as a function begins."""

    def trace(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == "__exit__" and frame.f_locals.get("self") is block:
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    try:
        with block:
            run()
            sys.settrace(trace)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", BLOCKS)
def test_no_hook_stays(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    block = BLOCKS[name](net)
    with pytest.raises(KeyboardInterrupt) as error:
        interrupted_as_it_leaves(block, lambda: net(torch.ones(1, 2)))
    assert not len(census(net))  # although the traceback, as in a notebook, still holds every frame
    assert error.tb is not None


@pytest.mark.parametrize("name", BLOCKS)
def test_looking_at_it_ends_no_block(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with BLOCKS[name](net) as block:
        for _ in range(2):
            assert callable(block.__exit__)
            gc.collect()
        assert len(census(net))
        net(torch.ones(1, 2))
    assert not len(census(net))


def test_a_stack_of_blocks_and_a_direct_call_work_as_ever() -> None:
    from contextlib import ExitStack

    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with ExitStack() as stack:
        seen = stack.enter_context(capture(net))
        net(torch.ones(1, 2))
    seen.__enter__()
    assert len(census(net))
    seen.__exit__(None, None, None)
    assert not len(census(net))
