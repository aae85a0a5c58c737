"""FLOPs of fused operations are those of the same work in parts, and what has no formula is named."""

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


def counts(model: nn.Module, *inputs: Any) -> tuple[int | None, int | None]:
    costs = quick(model, *inputs)
    assert not [note for note in costs.notes if "FLOP" in note]
    return costs[""].flops, costs[""].backward_flops


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


# --- counted, as the same work in parts is


@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}, {"batch_first": True}],
    ids=["plain", "bidirectional", "without bias", "batch first"],
)
def test_an_lstm_is_counted_as_in_double_precision_which_is_not_fused(options: dict[str, Any]) -> None:
    many = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = 2 if options.get("batch_first") else 10
    found = []
    for dtype in (torch.float32, torch.float64):
        layer = nn.LSTM(16, 32, **options).to(dtype)
        state = leaf(many, batch, 32, dtype=dtype), leaf(many, batch, 32, dtype=dtype)
        found.append(counts(layer, leaf(2, 10, 16, dtype=dtype), state))
    assert found[0] == found[1]
    assert found[0][0]


def test_an_lstm_by_hand() -> None:
    costs = quick(nn.Sequential(nn.LSTM(16, 32, batch_first=True)), torch.randn(2, 10, 16))
    assert costs["0"].flops == costs[""].flops == 2 * 10 * 2 * 4 * 32 * (16 + 32)
    with torch.no_grad():
        assert quick(nn.LSTM(16, 32), torch.randn(2, 10, 16))[""].flops == costs["0"].flops


@pytest.mark.parametrize("mask", [False, True])
def test_attention_counts_the_same_with_and_without_gradients(mask: bool) -> None:
    attention, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(2, 10, 16)
    given: Any = {"key_padding_mask": torch.arange(10).expand(2, 10) > 7} if mask else {}
    parts = quick(attention, x, x, x, backward=False, kwargs=given)[""].flops
    with torch.no_grad():
        for more in ({}, {"need_weights": False}):
            costs = quick(attention, x, x, x, kwargs=given | more)
            assert (costs[""].flops, costs.notes) == (parts, ())
    assert parts == 2 * 4 * 2 * 10 * 16 * 16 + 2 * 2 * 2 * 10 * 10 * 16


def test_a_vision_transformer_counts_the_same_with_and_without_gradients() -> None:
    import torchvision

    model, x = torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64).eval(), torch.randn(1, 3, 32, 32)
    parts = quick(model, x, backward=False)
    with torch.no_grad():
        fused = quick(model, x)
    assert parts[""].flops
    assert {name: cost.flops for name, cost in fused.items()} == {
        name: parts[name].flops for name in fused if name in parts
    }


def test_a_fused_encoder_layer_counts_as_its_parts() -> None:
    layer, x = nn.TransformerEncoderLayer(16, 2, 48, batch_first=True).eval(), torch.randn(2, 10, 16)
    parts = quick(layer, x, backward=False)[""].flops
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        assert quick(nn.Sequential(torch.jit.script(layer)), x)[""].flops == parts  # no hooks inside, so it is fused


def test_experts_that_are_fused_count_as_a_loop_over_experts() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")
    ends, weight, x = torch.tensor([8, 16, 32], dtype=torch.int32), torch.randn(3, 16, 24), leaf(32, 16)

    def in_parts(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([rows @ each for rows, each in zip(x.split([8, 8, 16]), weight, strict=True)])

    def fused(x: Tensor, weight: Tensor) -> Tensor:
        return torch._grouped_mm(x, weight, offs=ends).sin()  # its backward takes no gradient of a plain sum

    forward, backward = counts(Does(fused, weight), x)
    assert forward == counts(Does(in_parts, weight), x)[0] == 2 * 32 * 16 * 24
    assert backward == counts(Does(in_parts, weight), x)[1] == 2 * 2 * 32 * 16 * 24


def test_experts_of_a_model_of_transformers_are_counted() -> None:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.MixtralConfig(**sizes, intermediate_size=64, vocab_size=100, num_local_experts=4)
    model, found = transformers.MixtralForCausalLM(config).eval(), []
    for way in ("grouped_mm", "eager"):
        model.set_experts_implementation(way)
        costs = quick(model, torch.randint(5, 90, (2, 9)), backward=False)
        found.append({name: cost.flops for name, cost in costs.items() if "act_fn" not in name})
    assert found[0] == found[1]
    (experts,) = [name for name in found[0] if name.endswith("experts")]
    assert found[0][experts] == 2 * 9 * 2 * 2 * 3 * 32 * 64  # two experts of three products for each token


def test_a_bilinear_layer_counts_as_two_products() -> None:
    x, y, weight = leaf(4, 5), leaf(4, 6), torch.randn(7, 5, 6)
    fused, parts = nn.Bilinear(5, 6, 7), Does(lambda x, y, w: torch.einsum("ni,oij,nj->no", x, w, y), weight)
    forward, backward = counts(fused, x, y)
    assert forward == counts(parts, x, y)[0] == 2 * 4 * 7 * (5 * 6 + 6)
    assert backward == 3 * 2 * 4 * 7 * 5 * 6  # gradients of three, of one product each; the rest is elementwise


A, B, V = torch.randn(4, 5), torch.randn(5, 6), torch.randn(5)
MATRIX_AND_VECTOR: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "mv": (torch.mv, (A, V), 40),
    "matmul": (torch.matmul, (A, V), 40),
    "dot": (torch.dot, (V, V), 10),
    "vdot": (torch.vdot, (V, V), 10),
    "addmv": (torch.addmv, (torch.ones(4), A, V), 40),
    "addr": (torch.addr, (torch.ones(4, 5), torch.ones(4), V), 40),
    "addbmm": (torch.addbmm, (torch.ones(4, 6), A.expand(3, 4, 5), B.expand(3, 5, 6)), 720),
    "addmm_": (lambda to, a, b: to.addmm_(a, b), (torch.ones(4, 6), A, B), 240),
    "addmv_": (lambda to, a, b: to.addmv_(a, b), (torch.ones(4), A, V), 40),
    "baddbmm_": (
        lambda to, a, b: to.baddbmm_(a, b),
        (torch.ones(3, 4, 6), A.expand(3, 4, 5), B.expand(3, 5, 6)),
        720,
    ),
}


@pytest.mark.parametrize("name", MATRIX_AND_VECTOR)
def test_products_with_vectors_and_products_in_place(name: str) -> None:
    function, given, flops = MATRIX_AND_VECTOR[name]
    assert counts(Does(function), *given)[0] == flops


# --- what is not counted is named


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (torch.fft.rfft, "aten::_fft_r2c"),
        (lambda x: torch.linalg.inv(x @ x.T), "aten::linalg_inv_ex"),
        (lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x), "aten::_sparse_addmm"),
    ],
    ids=["fft", "inverse", "sparse"],
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
    assert costs[""].flops == 0
    assert "hookscope_tests::twice (1 call, in '(root)')" in costs.notes[0]
    for last, flops, notes in ((1, 2 * 4 * 4 * 5, 0), (2, 0, 1)):  # the second raises, and nothing else does
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


def test_formulas_stay_out_of_torchs_own_counter() -> None:
    before = set(flop_registry)
    quick(nn.LSTM(4, 4), torch.randn(2, 1, 4))
    assert set(flop_registry) == before
