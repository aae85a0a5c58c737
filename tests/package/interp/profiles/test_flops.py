"""FLOPs are those of a count by hand, and an operation that torch has no formula for is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from hookscope import profile
from hookscope.interp.profiles import Profile


class Does(nn.Module):
    """Calls a function with its input, and its weight if there is one."""

    def __init__(self, function: Callable[..., Any], weight: Tensor | None = None) -> None:
        super().__init__()
        self.function = function
        self.weight = None if weight is None else nn.Parameter(weight)

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given) if self.weight is None else self.function(*given, self.weight)


def quick(model: nn.Module, *inputs: Any, **options: Any) -> Profile:
    return profile(model, *inputs, **{"repeats": 1, "warmup": 0} | options)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# --- counted by hand: a multiplication and an addition are 2 FLOPs


def test_a_linear_layer() -> None:
    costs = quick(nn.Linear(16, 32), leaf(10, 16))
    assert costs[""].flops == 2 * 10 * 16 * 32
    assert costs[""].backward_flops == 2 * costs[""].flops  # gradients of the input and of the weight


def test_a_convolution() -> None:
    costs = quick(nn.Conv2d(4, 6, kernel_size=3), leaf(2, 4, 8, 8))
    assert costs[""].flops == 2 * (2 * 6 * 6 * 6) * (3 * 3 * 4)  # 6 maps of 6 × 6, each from 4 maps
    assert costs[""].backward_flops == 2 * costs[""].flops


def test_a_small_transformer() -> None:
    batch, length, wide, hidden = 2, 10, 16, 48
    layer = nn.TransformerEncoderLayer(wide, 2, hidden, batch_first=True)
    costs = quick(nn.Sequential(layer, nn.Linear(wide, 5)), torch.randn(batch, length, wide), backward=False)
    projections, scores = 4 * 2 * batch * length * wide * wide, 2 * 2 * batch * length * length * wide
    assert costs["0.self_attn"].flops == projections + scores
    assert costs["0.linear1"].flops == costs["0.linear2"].flops == 2 * batch * length * wide * hidden
    assert costs["0"].flops == projections + scores + 2 * costs["0.linear1"].flops
    assert costs[""].flops == costs["0"].flops + 2 * batch * length * wide * 5
    assert costs.notes == ()


# --- what is not counted is named


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (torch.fft.rfft, "aten::_fft_r2c"),
        (lambda x: torch.linalg.inv(x @ x.T), "aten::linalg_inv_ex"),
        (lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x), "aten::_sparse_addmm"),
        (lambda x: torch.mv(x, x[0]), "aten::mv"),
        (lambda x: torch.dot(x[0], x[0]), "aten::dot"),
        (lambda x: torch.addr(x, x[:, 0], x[0]), "aten::addr"),
        (lambda x: nn.functional.bilinear(x, x, torch.ones(2, 5, 5)), "aten::_trilinear"),
    ],
    ids=["fft", "inverse", "sparse", "matrix and vector", "dot", "outer", "bilinear"],
)
def test_a_product_without_a_formula_is_named_with_its_layers(function: Callable[[Tensor], Any], named: str) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Sequential(Does(lambda x: (function(x), x)[1])), nn.Linear(5, 5))
    costs = quick(model, torch.randn(4, 5), backward=False)
    (note,) = [note for note in costs.notes if "FLOPs do not include" in note]
    assert named in note
    assert "in '1.0'" in note
    assert "register_flop_formula" in note
    assert note in repr(costs)
    assert costs["0"].flops == costs["2"].flops == 2 * 4 * 5 * 5


def test_a_fused_operation_without_a_formula_is_named() -> None:
    attention, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(2, 10, 16)
    layer = nn.TransformerEncoderLayer(16, 2, 48, batch_first=True).eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        scripted = nn.Sequential(torch.jit.script(layer))  # no hooks inside, so it is fused
        notes = [*quick(attention, x, x, x).notes, *quick(scripted, x).notes]
    named = ("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd")
    assert all(any(name in note for note in notes) for name in named)


def test_many_calls_and_layers_are_named_in_one_note() -> None:
    layers = [Does(lambda x: torch.fft.fft(torch.fft.fft(x)).real) for _ in range(6)]
    (note,) = quick(nn.Sequential(*layers), torch.randn(4, 5)).notes[1:]
    assert "aten::_fft_r2c (6 calls, in '0', '1', '2', '3', …)" in note
    assert "aten::_fft_c2c (6 calls" in note


def test_a_product_of_backward_alone_is_named_too() -> None:
    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return torch.fft.fft(grad).real

    (note,) = quick(Does(Transformed.apply), leaf(4, 5)).notes  # type: ignore[arg-type]
    assert "aten::_fft_r2c (1 call, in backward)" in note


def test_an_operation_of_an_extension_is_named_until_it_has_a_formula() -> None:
    @torch.library.custom_op("hookscope_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x @ x.T

    model, x = Does(twice), torch.randn(4, 5)  # type: ignore[arg-type]
    costs = quick(model, x, backward=False)
    assert (costs[""].flops, costs[""].row().get("MFLOPs", "blank")) == (None, "blank"), "a 0 would be a wrong number"
    assert "hookscope_tests::twice (1 call, in '(root)')" in costs.notes[0]
    for last, flops, notes in ((1, 2 * 4 * 4 * 5, 0), (2, None, 1)):  # the second raises, and nothing else does
        formula = {torch.ops.hookscope_tests.twice: lambda x, *, last=last, out_shape: 2 * x[0] * x[0] * x[last]}
        try:
            register_flop_formula([*formula])(*formula.values())
            costs = quick(model, x, backward=False)
        finally:
            del flop_registry[torch.ops.hookscope_tests.twice]
        assert (costs[""].flops, len(costs.notes)) == (flops, notes)


def test_what_has_no_products_needs_no_note() -> None:
    def much(x: Tensor) -> Tensor:
        x = nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")[0, 0]
        x = nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1).cumsum(-1).digamma().sigmoid()
        x = nn.functional.max_pool1d(x, 2)
        return torch.linalg.vector_norm(x.sort().values, dim=-1) + nn.functional.dropout(x, 0.1).amax(-1)

    costs = quick(Does(much), leaf(4, 5))
    assert (costs[""].flops, costs.notes) == (0, ())
