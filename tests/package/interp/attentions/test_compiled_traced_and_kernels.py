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


COMPILES_IN_ITS_PASS = """
import torch
from torch import nn
from hookscope import attention

class Late(nn.Module):
    def forward(self, x):
        return torch.compile(lambda q: (q @ q.mT).softmax(-1) @ q, fullgraph=True, backend="aot_eager")(x)

print(len(attention(Late(), torch.randn(2, 3, 4))), torch._dynamo.eval_frame._stance.stance)
"""


@pytest.mark.slow  # imports the compiler
def test_what_is_compiled_in_the_pass_runs_as_it_is_if_the_compiler_was_imported_before():
    """Else torch traces the pass, and raises; nothing is shown wrong."""
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
        for script in ("import torch._dynamo" + COMPILES_IN_ITS_PASS, COMPILES_IN_ITS_PASS)
    ]
    assert (runs[0].stdout, runs[0].stderr) == ("1 default\n", "")
    assert runs[1].stdout == ""
    assert "torch._dynamo.exc." in runs[1].stderr


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
