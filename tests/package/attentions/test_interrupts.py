"""An interrupt at any line leaves no mode of torch on, and the model as it was."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hookscope import attention, census
from tests.shared.interrupts import Run, lines, places
from tests.shared.patience import PATIENCE

X = torch.randn(2, 3, 4)


def encoder() -> tuple[nn.Module, Run]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.BatchNorm1d(3)).train()
    state = torch.get_rng_state()

    def run() -> None:
        torch.set_rng_state(state)
        attention(net, X, tokens=["the", "cat", "sat"])

    run()  # once outside, since torch imports and caches on the way
    return net, run


def what_could_stay(net: nn.Module) -> object:
    modes = len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())
    buffers = [(name, buffer.sum().item()) for name, buffer in net.named_buffers()]
    flags = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), net.training
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    stance = compiler and str(compiler._stance)
    return len(census(net)), modes, buffers, flags, torch.get_rng_state().sum().item(), stance, len(sys.meta_path)


def test_an_interrupt_at_any_line_leaves_nothing() -> None:
    found, stayed = places(encoder, what_could_stay, 113, "attentions", "compiler.py", "unchanged.py")
    assert found > 20
    assert not stayed


@pytest.mark.slow
def test_an_interrupt_at_each_line_leaves_nothing() -> None:
    importlib.import_module("torch._dynamo")  # what is compiled runs eagerly meanwhile, in the whole process
    found, stayed = lines(encoder, what_could_stay, "attentions", "compiler.py", "unchanged.py")
    print(f"{found} places, and {len(stayed)} where something stays: {stayed}")
    assert found > 400
    assert not stayed


WITHOUT_COMPILER = """
import sys
from tests.package.attentions.test_interrupts import encoder, what_could_stay
from tests.shared.interrupts import lines

print(*lines(encoder, what_could_stay, "attentions/attention.py", "compiler.py"))
assert "torch._dynamo" not in sys.modules
"""


def test_an_interrupt_before_the_compiler_is_there_leaves_nothing_that_waits_for_it() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, timeout=PATIENCE)
    found, _, stayed = run.stdout.strip().partition(" ")
    assert (stayed, run.stderr) == ("[]", "")
    assert int(found) > 60
