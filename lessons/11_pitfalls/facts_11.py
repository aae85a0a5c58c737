"""What chapter 11 says beyond its cells, run."""

from typing import Any

import pytest
import torch
from torch import nn

from hookscope import capture


def test_what_hooks_keep(says):
    says(
        "The other two hooks also hold the previous output, but only `latest` returns it.",
        "because the first `pop` returns the None.",
        "The output of `stem`, the output of `relu` and the sum share the same memory.",
        "`mix` and `head` return new tensors,",
        "A clone without `detach()` keeps the whole graph alive.",
    )
    latest, layer, append = list[Any]([None]), nn.Identity(), list[Any].append
    layer.register_forward_hook(lambda module, args, output: append(latest, output) or latest.pop(0))
    assert [layer(torch.full((1,), float(value))).item() for value in (5, 3, 8)] == [5, 5, 3]
    assert len(latest) == 1, "it keeps no older output, and the other two do"
    stem = nn.Linear(1, 1)(torch.ones(2, 1))
    mix = nn.Linear(1, 1)(relu := nn.ReLU(inplace=True)(stem))
    assert stem.data_ptr() == relu.data_ptr() == relu.detach().add_(1).data_ptr() != mix.data_ptr()
    y = torch.ones(1, requires_grad=True).exp()
    clone: Any = (y * y).clone()
    saved = clone.grad_fn.next_functions[0][0]
    assert saved._saved_self is not None
    clone.backward()
    with pytest.raises(RuntimeError, match="second time"):
        saved._saved_self  # noqa: B018


def test_capture_has_the_output_that_was_overwritten(says):
    says("`capture` names the step that overwrote an output.")
    pair = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    nn.init.constant_(pair[0].weight, -2.0)
    nn.init.zeros_(pair[0].bias)
    with torch.no_grad(), capture(pair, "0") as seen:
        pair(torch.ones(1, 1))
    assert seen["0"].output.item() == -2
    assert seen.overwritten
