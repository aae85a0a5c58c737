"""A dispatch mode of somebody else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as dispatch

from hookscope import attention, profile
from tests.shared.sweep_helpers import sweep

X = torch.randn(2, 3, 4)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()


def profiled(net: nn.Module, x: Tensor) -> object:
    return profile(net, x, repeats=1, warmup=0)


def swept(net: nn.Module, x: Tensor) -> object:
    return sweep(net, x, "linear1", "zero", channels=range(8), axis=2, metric=torch.sum, progress=False)


@pytest.mark.parametrize("what", [attention, profiled, swept])
def test_a_mode_of_another_thread_is_still_told(what: Callable[..., object]) -> None:
    net = encoder()
    with dispatch.TorchDispatchMode(), ThreadPoolExecutor(1) as thread:
        thread.submit(what, net, X).result()
        assert dispatch.is_in_torch_dispatch_mode()  # or torch would compile inside of the mode
    assert not dispatch.is_in_torch_dispatch_mode()
