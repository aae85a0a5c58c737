"""Compiled and traced code, and kernels of others, run as without `attention`; what is not followed is named."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hookscope import attention
from tests.package.interp.attentions.test_softmax_by_hand import Attention, X, usual
from tests.shared import PATIENCE
from tests.shared.awkward_models import Do, Net


@torch.library.custom_op("hookscope_tests::my_attention", mutates_args=())
def my_attention(q: torch.Tensor) -> torch.Tensor:
    return q.clone()


def test_a_kernel_of_somebody_else_is_not_followed_and_named():
    found = attention(Do(my_attention), X)
    assert len(found) == 0
    assert any("cannot read the weights of my_attention" in note for note in found.notes)


LATE = """
import sys, torch
from torch import nn
from hookscope import attention

class Late(nn.Module):
    def forward(self, x):
        assert "torch._dynamo" not in sys.modules
        return torch.compile(lambda q: (q @ q.mT).softmax(-1) @ q, fullgraph=True, backend="aot_eager")(x)

finders = len(sys.meta_path)
print(len(attention(Late(), torch.randn(2, 3, 4))), sys.modules["torch._dynamo"].eval_frame._stance.stance)
assert len(sys.meta_path) == finders - 1  # hookscope waits for the compiler no longer
"""


@pytest.mark.slow  # imports the compiler
def test_what_is_compiled_in_the_pass_in_which_the_compiler_is_imported_runs_as_it_is():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("1 default\n", "")


OTHERS = """
import sys, threading, torch
from torch import nn
from hookscope import attention

class During(nn.Module):
    def __init__(self, during):
        super().__init__()
        self.during = during

    def forward(self, x):
        self.during()
        return torch.compile(lambda q: (q @ q.mT).softmax(-1) @ q, fullgraph=True, backend="aot_eager")(x)

X, began, ended = torch.randn(2, 3, 4), threading.Event(), threading.Event()

def wait():
    began.set()
    ended.wait(PATIENCE)

def other_ends():
    import torch._dynamo
    ended.set()
    thread.join()

finders = len(sys.meta_path) - 1
for there in (False, True):
    assert ("torch._dynamo" in sys.modules) is there
    thread = threading.Thread(target=lambda: print(len(attention(During(wait), X))))
    thread.start()
    began.wait(PATIENCE)
    print(len(attention(During(other_ends), X)), torch._dynamo.eval_frame._stance.stance)
    began.clear()
    ended.clear()
    assert len(sys.meta_path) == finders
"""

NESTED = """
import sys, torch
from torch import nn
from hookscope import attention

class Inner(nn.Module):
    def forward(self, x):
        import torch._dynamo
        return (x @ x.mT).softmax(-1) @ x

class Outer(nn.Module):
    def forward(self, x):
        print(len(attention(Inner(), x)))
        return torch.compile(Inner().forward, fullgraph=True, backend="aot_eager")(x)

finders = len(sys.meta_path)
print(len(attention(Outer(), torch.randn(2, 3, 4))), torch._dynamo.eval_frame._stance.stance)
assert len(sys.meta_path) == finders - 1
"""


@pytest.mark.slow  # imports the compiler
@pytest.mark.parametrize(("script", "says"), [(OTHERS, "1\n1 default\n" * 2), (NESTED, "1\n2 default\n")])
def test_two_passes_at_once_share_the_switch_of_the_compiler(script, says):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == (says, "")


def test_traced_and_in_inference_mode():
    model = Attention(usual)
    with torch.no_grad():
        traced = torch.jit.trace(model, X)
    torch.testing.assert_close(attention(traced, X)[0].weights, model.weights(X))
    with torch.inference_mode():
        torch.testing.assert_close(attention(model, X)[0].weights, model.weights(X))

    inside = Net(torch.inference_mode()(lambda self, x: self.attn(x)), attn=model)
    torch.testing.assert_close(attention(inside, X)["attn"].weights, model.weights(X))


@pytest.mark.slow  # imports the compiler
def test_a_compiled_model_runs_without_its_compilation():
    model = Attention(usual)
    compiled = torch.compile(model, backend="eager")
    found = attention(compiled, X)
    torch.testing.assert_close(found["_orig_mod"].weights, model.weights(X))
    assert any("ran its uncompiled version" in note for note in found.notes)
