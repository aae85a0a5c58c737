"""An interrupt inside torch's own code, as a mode is put on or taken off, leaves none on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as dispatch

from hookscope import attention, profile, sweep
from hookscope.unchanged import take_mode_off
from tests.shared.interrupts import counted, interrupted

X = torch.randn(2, 3, 4)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()


def leaving_or_entering(place: int) -> Callable[[Any], bool]:
    """Tell the so manyth line that puts a mode on or takes it off, from 0."""
    is_it = counted(place)
    return lambda frame: frame.f_code.co_name in ("__enter__", "__exit__") and is_it(frame)


def profiled(net: nn.Module, x: Tensor) -> object:
    return profile(net, x, repeats=1, warmup=0)


@pytest.mark.parametrize(
    ("what", "step"), [(attention, 1), (profiled, 23), pytest.param(profiled, 1, marks=pytest.mark.slow)]
)
def test_no_mode_stays(what: Callable[..., object], step: int) -> None:
    net, places = encoder(), 0
    what(net, X)
    while interrupted(lambda: what(net, X), leaving_or_entering(places), (dispatch.__file__,)):
        assert not dispatch._get_current_dispatch_mode_stack(), places
        places += step
    assert places > 10


def test_modes_above_it_stay() -> None:
    class Below(dispatch.TorchDispatchMode):
        pass

    class Above(dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    below, above = Below(), Above()
    below.__enter__()
    with above:
        take_mode_off(below)
        assert dispatch._get_current_dispatch_mode_stack() == [above]
        assert dispatch.is_in_torch_dispatch_mode()
    assert not dispatch._get_current_dispatch_mode_stack()
    assert not dispatch.is_in_torch_dispatch_mode()


def swept(net: nn.Module, x: Tensor) -> object:
    return sweep(net, x, "linear1", "zero", channels=range(8), axis=2, metric=torch.sum, progress=False)


@pytest.mark.parametrize("what", [attention, profiled, swept])
def test_a_mode_of_another_thread_is_still_told(what: Callable[..., object]) -> None:
    net = encoder()
    with dispatch.TorchDispatchMode(), ThreadPoolExecutor(1) as thread:
        thread.submit(what, net, X).result()
        assert dispatch.is_in_torch_dispatch_mode()  # or torch would compile inside of the mode
    assert not dispatch.is_in_torch_dispatch_mode()
