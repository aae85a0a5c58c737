"""Attention that torch computes in one operation: the weights are recomputed, and right."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookscope import attention
from tests.shared.awkward_models import Do, Net

GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(shape, generator=GENERATOR)


def calls(times=1, **given):
    """Build a layer that is one call of torch's operation, or several."""
    return Do(lambda *qkv: [F.scaled_dot_product_attention(*qkv, **given) for _ in range(times)])


def torch_says(q, k, **given):
    """Let torch say what the weights are: those times the identity."""
    identity = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, identity, **given)


BOOL = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0] * 7, [1] * 7, [0, 0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]).bool()
MASKS = {
    "none": None,
    "bool": BOOL,
    "float": BOOL.float().log(),
    "bias for each head": numbers(1, 4, 5, 7),
    "keys of each sample": (torch.arange(7) < torch.tensor([7, 4])[:, None])[:, None, None],
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3, 0.0])
@pytest.mark.parametrize("grouped", [False, True])
def test_mask_scale_and_grouped_queries(mask, scale, grouped):
    heads = 2 if grouped else 4
    q, k, v = numbers(2, 4, 5, 8), numbers(2, heads, 7, 8), numbers(2, heads, 7, 8)
    given = {"attn_mask": MASKS[mask], "scale": scale, "enable_gqa": grouped}
    found = attention(calls(**given), q, k, v)[0]
    assert found.weights.shape == (2, 4, 5, 7)
    torch.testing.assert_close(found.weights, torch_says(q, k, **given))
    assert found.verified
    if not grouped or torch.__version__ >= (2, 14):  # before, torch took grouped queries apart itself
        assert found.by == "scaled_dot_product_attention"
    masked = mask in ("bool", "float")
    assert bool(found.blind.any()) is masked
    assert any("8 of 40 rows are fully masked" in note for note in found.notes) is masked


@pytest.mark.parametrize("shape", [(5, 8), (4, 5, 8), (2, 4, 5, 8), (3, 2, 4, 5, 8)])
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_axes_and_causal(shape, causal):
    q, k, v = numbers(*shape), numbers(*shape), numbers(*shape)
    found = attention(calls(is_causal=causal), q, k, v)[0]
    torch.testing.assert_close(found.weights.flatten(), torch_says(q, k, is_causal=causal).flatten())
    samples = {2: 1, 3: 4, 4: 2, 5: 6}[len(shape)]
    heads = 4 if len(shape) > 3 else 1
    assert found.weights.shape == (samples, heads, 5, 5)
    assert found.verified


def test_batch_axes_are_broadcast():
    q, k, v = numbers(1, 4, 5, 8), numbers(3, 4, 7, 8), numbers(3, 4, 7, 2)
    found = attention(calls(), q, k, v)[0]
    torch.testing.assert_close(found.weights, torch_says(q.expand(3, 4, 5, 8), k))
    assert found.verified


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("heads", "keys"), [(4, 5), (2, 5), (1, 5), (4, 3), (2, 8)])
def test_causal_calls(dtype, scale, heads, keys):
    q, k, v = (numbers(2, *shape).to(dtype) for shape in ((4, 5, 8), (heads, keys, 8), (heads, keys, 8)))
    given = {"is_causal": True, "scale": scale, "enable_gqa": heads in (1, 2)}
    maps = [*attention(calls(2, **given), q, k, v).values()]
    for found in maps:
        assert found.weights.shape == (2, 4, 5, keys)
        assert found.verified
        whole = found.by == "scaled_dot_product_attention"
        assert whole or (heads < 4 and torch.__version__ < (2, 14))  # torch took it apart itself, in float32
        torch.testing.assert_close(found.weights, torch_says(q, k, **given), check_dtype=whole)
    assert torch.equal(maps[0].weights, maps[1].weights), "the first call has left nothing in the second one's mask"


def test_causal_calls_of_several_lengths_and_dtypes_in_one_pass():
    calls = [
        tuple(numbers(1, 2, length, 8).to(dtype) for length in (queries, keys, keys))
        for dtype in (torch.float32, torch.float64, torch.float16)
        for queries, keys in ((5, 5), (7, 7), (5, 7), (5, 5))
    ]
    maps = attention(Do(lambda calls: [F.scaled_dot_product_attention(*call, is_causal=True) for call in calls]), calls)
    for found, (q, k, _) in zip(maps.values(), calls, strict=True):
        assert found.verified
        torch.testing.assert_close(found.weights, torch_says(q, k, is_causal=True))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_a_query_does_not_see_has_no_weight_whatever_it_is(value):
    q, k, v = numbers(1, 2, 6, 8), numbers(1, 2, 6, 8), numbers(1, 2, 6, 8)
    before = torch_says(q, k, is_causal=True)
    k[:, :, 4] = value
    found = attention(calls(is_causal=True), q, k, v)[0]
    torch.testing.assert_close(found.weights[:, :, :4], before[:, :, :4])
    torch.testing.assert_close(found.weights @ v, calls(is_causal=True)(q, k, v)[0], equal_nan=True)


def test_dropout_is_said_and_the_weights_are_those_that_were_used():
    q, k, v = numbers(2, 4, 5, 8), numbers(2, 4, 7, 8), numbers(2, 4, 7, 8)
    state = torch.get_rng_state()
    found = attention(calls(dropout_p=0.25), q, k, v)[0]
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(found.weights @ v, F.scaled_dot_product_attention(q, k, v, dropout_p=0.25))
    assert found.dropout == 0.25
    assert any("dropout of 0.25" in note for note in found.notes)
    whole = torch_says(q, k) / 0.75
    kept = found.weights != 0
    torch.testing.assert_close(found.weights[kept], whole[kept])
    assert 0.05 < 1 - kept.float().mean() < 0.5


def test_a_value_without_bound_is_no_reason_to_doubt_the_map():
    q, k, v = numbers(1, 2, 5, 8), numbers(1, 2, 7, 8), numbers(1, 2, 7, 8)
    v[0, 0, 3, 0] = torch.inf
    found = attention(calls(), q, k, v)[0]
    assert found.verified
    assert 0 < found.output_error < 1e-5


@pytest.mark.parametrize("length", [1, 2])
def test_one_key_or_one_query(length):
    for queries, keys in itertools.product((1, length), repeat=2):
        q, k, v = numbers(2, 3, queries, 4), numbers(2, 3, keys, 4), numbers(2, 3, keys, 4)
        found = attention(calls(), q, k, v)[0]
        torch.testing.assert_close(found.weights, torch_says(q, k))


def test_weights_that_do_not_give_what_was_returned_are_not_to_be_trusted(monkeypatch):
    from hookscope.interp.attentions.recompute import AttentionInputs

    right = AttentionInputs.compute_weights
    monkeypatch.setattr(AttentionInputs, "compute_weights", lambda self: right(self).roll(1, -1))
    found = attention(calls(), numbers(1, 2, 3, 4), numbers(1, 2, 3, 4), numbers(1, 2, 3, 4))
    assert not found[0].verified
    assert found[0].output_error > 0.1
    assert any("do not trust this map" in note for note in found.notes)


def layer(**given):
    """Build a multi-head attention as people use it."""
    torch.manual_seed(1)
    return Net(lambda self, *qkv, **more: self.attn(*qkv, **more)[0], attn=nn.MultiheadAttention(8, 2, **given))


@pytest.mark.parametrize("need", [False, True])
@pytest.mark.parametrize(("first", "training"), [(True, False), (False, True)])  # the first could be fused
@pytest.mark.parametrize(
    "given", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 6, "vdim": 3}, {"bias": False}], ids=str
)
def test_multi_head_attention_gives_what_torch_gives(given, first, training, need):
    model = layer(batch_first=first, **given).train(training)
    x = numbers(3, 5, 8)
    k = numbers(3, 4, given.get("kdim", 8)) if "kdim" in given else x
    v = numbers(3, 4, given.get("vdim", 8)) if "kdim" in given else x
    q, k, v = (each if first else each.transpose(0, 1) for each in (x, k, v))
    if "kdim" not in given:
        k = v = q
    padding = torch.zeros(3, 4 if "kdim" in given else 5).bool()
    padding[1, 2:] = True
    for padded in (None, padding):
        found = attention(model, q, k, v, kwargs={"need_weights": need, "key_padding_mask": padded})
        theirs = model.attn(q, k, v, key_padding_mask=padded, average_attn_weights=False)[1]
        assert list(found) == ["attn"]
        torch.testing.assert_close(found["attn"].weights, theirs.detach())
        assert found["attn"].verified


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("how", ["plain", "padded", "causal"])
def test_an_encoder_that_torch_would_fuse(norm_first, how):
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.5, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()  # torch's own condition
    x = numbers(2, 5, 8)
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
    given = {
        "plain": {},
        "padded": {"src_key_padding_mask": padding},
        "causal": {"mask": torch.ones(5, 5).triu(1).bool()},
    }
    found = attention(model, x, kwargs=given[how])
    assert list(found) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(each.verified for each in found.values())
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    slow = attention(model, x, kwargs=given[how])
    assert list(slow) == ["layers.0.self_attn", "layers.1.self_attn"]
    for one, other in zip(found.values(), slow.values(), strict=True):
        rows = ~one.blind
        torch.testing.assert_close(one.weights[rows], other.weights[rows])
    assert not any(each.blind.any() for each in found.values())
