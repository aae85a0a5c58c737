"""An interrupt at any line leaves no hook on, and buffers, gradients and random numbers as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hookscope import census, profile
from tests.shared.interrupts import Run, lines, places

X = torch.randn(2, 4)


def net_with_gradients() -> tuple[nn.Module, Run]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5)).train()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = torch.get_rng_state()

    def run() -> None:
        torch.set_rng_state(state)
        profile(net, X, repeats=1, warmup=0)

    run()  # once outside, since torch imports and caches on the way
    return net, run


def what_could_stay(net: nn.Module) -> object:
    modes = len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())
    gradients = [None if p.grad is None else p.grad.sum().item() for p in net.parameters()]
    buffers = [buffer.sum().item() for buffer in net.buffers()]
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.8
    saving = top and top(True)
    state = torch.get_rng_state().sum().item()
    return len(census(net)), modes, gradients, buffers, saving, torch.is_grad_enabled(), net.training, state


def test_an_interrupt_at_any_line_leaves_nothing() -> None:
    found, stayed = places(net_with_gradients, what_could_stay, 199, "profiles", "unchanged.py")
    assert found > 10
    assert not stayed


@pytest.mark.slow
def test_an_interrupt_at_each_line_leaves_nothing() -> None:
    found, stayed = lines(net_with_gradients, what_could_stay, "profiles", "unchanged.py")
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > 500
    assert not stayed
