"""Heads between attention and its output projection, and single edges of attention, in real models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import NotEditedError, at, capture, census, edit
from tests.shared.language_models import IDS, bert, generate, gpt2, llama, small_vit, t5

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def attention(**more: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, **more).eval()


def of_heads(net: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What lies before the output projection, by hand: (samples, tokens, heads, width)."""
    q, k, v = F.linear(x, net.in_proj_weight, net.in_proj_bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v))
    scores = q @ k.transpose(-1, -2) / 2
    weights = (scores if mask is None else scores.masked_fill(mask, -torch.inf)).softmax(-1)
    return (weights @ v).transpose(1, 2)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_head_of_multihead_attention(weights: bool, batch_first: bool) -> None:
    net = attention(batch_first=batch_first)
    x = X if batch_first else X.transpose(0, 1)
    merged = of_heads(net, X)
    merged[1, 3, 1] *= 3
    expected = net.out_proj(merged.flatten(-2))
    with edit(net) as e:
        index = at[1, 3] if batch_first else at[3, 1]
        e.scale("", 3.0, index, heads=1)
        y, _ = net(x, x, x, need_weights=weights)
    torch.testing.assert_close(y if batch_first else y.transpose(0, 1), expected)
    assert e.rows[0]["change"].endswith("heads=1")
    assert not len(census(net))
    assert "forward" not in net.__dict__


def test_a_head_in_training_unbatched_with_gradients_and_by_the_name_of_out_proj() -> None:
    net, v = attention(), torch.zeros(4, requires_grad=True)
    x = X[0].clone().requires_grad_()
    with edit(net) as e:
        e.add("out_proj", v, heads=0)
        net(x, x, x)[0].sum().backward()
    assert e.rows[0]["layer"] == "(root)"
    torch.testing.assert_close(v.grad, net.out_proj.weight[:, :4].sum(0) * 5)


def test_heads_of_an_encoder_and_of_vit() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), 2).eval()
    vit, layer = small_vit(), "encoder.layers.encoder_layer_1.self_attention"
    e = edit(encoder)
    e.set("layers.1.self_attn", 0, heads=[0, 1])
    with torch.no_grad(), pytest.warns(UserWarning, match="fused path"), e:
        y = encoder(X)
    with torch.no_grad():
        encoder.layers[1].self_attn.out_proj.weight.zero_()
        torch.testing.assert_close(y, encoder(X))
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad(), edit(vit) as e:
        e.set(layer, 0, heads=3)
        y = vit(images)
    with torch.no_grad():
        plain = vit(images)
        vit.get_submodule(layer).out_proj.weight[:, 24:32] = 0
        torch.testing.assert_close(y, vit(images))
    assert not torch.equal(plain, y)


def test_swap_of_a_head_that_no_capture_sees_is_refused() -> None:
    net = attention()
    with capture(net, "", inputs=True) as seen:
        net(X, X, X)
    with pytest.raises(ValueError, match="a capture cannot see the values between the heads and the output projection"):
        edit(net).swap("", seen, heads=1)
    with pytest.raises(ValueError, match=r"no head 2\. Its heads are 0 to 1"):
        edit(net).set("", 0, heads=2)


@pytest.mark.parametrize(
    ("make", "layer", "projection", "width"),
    [
        (gpt2, "transformer.h.1.attn", "c_proj", 8),
        (llama, "model.layers.0.self_attn", "o_proj", 4),
        (t5, "decoder.block.1.layer.1.EncDecAttention", "o", 8),
    ],
)
def test_heads_of_transformers_models(make: Any, layer: str, projection: str, width: int) -> None:
    model, mine = make(), make()
    more = {"decoder_input_ids": IDS[:, :2]} if make is t5 else {}
    with torch.no_grad(), edit(model) as e:
        e.set(layer, 0, heads=1)
        y = model(IDS, **more).logits
        plain = mine(IDS, **more).logits
        weight = mine.get_submodule(f"{layer}.{projection}").weight
        (weight[width : 2 * width] if projection == "c_proj" else weight[:, width : 2 * width]).zero_()
        torch.testing.assert_close(y, mine(IDS, **more).logits)
    assert not torch.equal(y, plain)


# -- edges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [None, [1]])
def test_an_edge_of_multihead_attention(samples: Any) -> None:
    net = attention(batch_first=True)
    mask = torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    mask[slice(None) if samples is None else samples, 1, 3, 2] = True
    expected = net.out_proj(of_heads(net, X, mask).flatten(-2))
    with edit(net) as e:
        e.cut("", heads=1, queries=3, keys=2, samples=samples)
        y, _ = net(X, X, X, need_weights=False)
    torch.testing.assert_close(y, expected)
    assert e.rows[0]["change"] == "cut heads=1 queries=3 keys=2" + ("" if samples is None else " samples=[1]")
    assert e.rows[0]["largest change"] > 0
    assert "forward" not in net.__dict__


def by_eager(model: nn.Module, heads: list[int], queries: list[int], key: int, layer: str, **more: Any) -> Tensor:
    """Compute with attention written out, the edge masked in the scores of one layer; the logits."""
    from transformers import AttentionInterface

    def masked(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **rest: Any) -> Any:
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        causal = rest.get("is_causal")
        scores = q @ k.transpose(-1, -2) * (rest.get("scaling") or q.shape[-1] ** -0.5)
        if rest.get("position_bias") is not None:
            scores = scores + rest["position_bias"]
        if mask is not None:
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)
        elif q.shape[2] > 1 and (getattr(module, "is_causal", True) if causal is None else causal):
            scores = scores.masked_fill(~torch.ones(q.shape[2], k.shape[2]).tril().bool(), -torch.inf)
        if module is watched:
            for head in heads:
                for query in queries:
                    scores[:, head, query, key] = -torch.inf
        return (scores.softmax(-1) @ v).transpose(1, 2), None

    AttentionInterface.register("by_hand", masked)
    mine = copy.deepcopy(model)
    # With padding or without, masks are made as for SDPA.
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS.register("by_hand", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    mine.set_attn_implementation("by_hand")
    watched = mine.get_submodule(layer)
    with torch.no_grad():
        return mine(IDS, **more)[0]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("make", "layer"),
    [(gpt2, "transformer.h.1.attn"), (llama, "model.layers.0.self_attn")],
)
def test_an_edge_of_a_language_model(make: Any, layer: str, padded: bool) -> None:
    model = make()
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    more = {"attention_mask": mask} if padded else {}
    expected = by_eager(model, [1], [3, 4], 1, layer, **more)
    with torch.no_grad(), edit(model) as e:
        e.cut(layer, heads=1, queries=[3, 4], keys=1)
        y = model(IDS, **more).logits
        assert e.rows[0]["largest change"] > 0
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    assert e.rows[0]["positions"] == "call 1: 3, 4"
    torch.testing.assert_close(model(IDS, **more).logits[:, :3], y[:, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "layer"), [(gpt2, "transformer.h.1.attn"), (llama, "model.layers.1.self_attn")])
@pytest.mark.parametrize("head", [0, 1])
def test_an_edge_under_a_kv_cache_is_cut_in_the_step_of_its_query(make: Any, layer: str, head: int) -> None:
    model = make()
    with edit(model) as e:
        e.cut(layer, heads=head, queries=7, keys=2)
        made = generate(model, tokens=5)
    assert e.rows[0]["positions"] == "call 4: 7"
    with torch.no_grad(), edit(model) as e:
        e.cut(layer, heads=head, queries=7, keys=2)
        whole = model(made.sequences[:, :-1], use_cache=False).logits
    for step, logits in enumerate(made.logits):
        torch.testing.assert_close(logits, whole[:, 4 + step], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        plain = model(made.sequences[:, :-1], use_cache=False).logits
    assert not torch.allclose(plain[:, 7], whole[:, 7], atol=1e-6)
    torch.testing.assert_close(plain[:, :7], whole[:, :7])


@pytest.mark.parametrize("layer", ["encoder.block.1.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"])
def test_an_edge_of_t5_with_its_position_bias_and_across(layer: str) -> None:
    model, more = t5(), {"decoder_input_ids": IDS[:, :3]}
    expected = by_eager(model, [0], [2], 4, layer, **more)
    with torch.no_grad(), edit(model) as e:
        e.cut(layer, heads=0, queries=2, keys=4)
        y = model(IDS, **more).logits
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    assert e.rows[0]["largest change"] > 0


def test_an_edge_of_bert_and_gradients_through_a_cut() -> None:
    model = bert()
    expected = by_eager(model, [0, 1], [0], 3, "encoder.layer.0.attention.self")
    with edit(model) as e:
        e.cut("encoder.layer.0.attention.self", heads=[0, 1], queries=0, keys=3)
        y = model(IDS).last_hidden_state
        y.square().sum().backward()
    torch.testing.assert_close(y.detach(), expected, rtol=1e-4, atol=1e-5)
    key = model.encoder.layer[0].attention.self.key.weight
    assert key.grad is not None
    assert key.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_and_autocast(dtype: torch.dtype) -> None:
    net = attention(batch_first=True)
    mask = torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    mask[:, 0, 1, 4] = True
    expected = net.out_proj(of_heads(net, X, mask).flatten(-2))
    other = copy.deepcopy(net).to(dtype)
    with torch.no_grad(), edit(other) as e:
        e.cut("", heads=0, queries=1, keys=4)
        x = X.to(dtype)
        y, _ = other(x, x, x, need_weights=False)
    torch.testing.assert_close(y.float(), expected.detach(), rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), edit(net) as e:
        e.cut("", heads=0, queries=1, keys=4)
        y, _ = net(X, X, X, need_weights=False)
    torch.testing.assert_close(y.float(), expected.detach(), rtol=2e-2, atol=2e-2)


def test_what_cannot_be_cut_says_so() -> None:
    model = gpt2()
    layer = "transformer.h.0.attn"

    def refused(error: Any, match: str, net: nn.Module = model, name: str = layer, *args: Any, **cut: Any) -> None:
        def run() -> None:
            with edit(net) as e:
                e.cut(name, **{"heads": 0, "queries": 2, "keys": 1} | cut)
                net(*(args or (IDS,)))

        with pytest.raises(error, match=match):
            run()
        assert not len(census(net))
        assert not any("forward" in vars(module) for module in net.modules())

    refused(ValueError, "heads=2 is out of range. Pass integers from 0 to 1", heads=2)
    refused(TypeError, "queries='all'", queries="all")
    refused(ValueError, "queries=-1", queries=-1)
    refused(ValueError, "no key 9. The call has keys 0 to 4", keys=9)
    refused(ValueError, "a query has no key left", queries=0, keys=0)
    refused(NotEditedError, "never with position 8, only with 0 to 4", queries=[2, 8])
    refused(ValueError, "has no attribute with its number of heads", name="transformer.h.0.mlp.act")
    refused(RuntimeError, "uses dropout.*model.eval", gpt2().train())
    eager = gpt2()
    eager.set_attn_implementation("eager")
    refused(NotEditedError, 'saw no call of F.scaled_dot_product_attention.*"sdpa"', eager)
    net = attention()
    refused(NotEditedError, "need_weights=False", net, "", X, X, X)
    if_several = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    if_several.num_heads = 2
    refused(ValueError, "computes attention several times in one call", if_several, "", X, X)
    e = edit(model)
    e.cut(layer, heads=0, queries=1, keys=3)
    with torch.no_grad(), e:
        model(IDS)
    assert e.notes == ("edit 1 changed nothing in layer 'transformer.h.0.attn': all values were the same before",)


def test_attention_that_comes_out_otherwise_than_recomputed_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    net = attention(batch_first=True)
    from hookscope.interp.edits import attention as module

    monkeypatch.setattr(module, "_masked", lambda scores, *rest: scores * 2)
    e = edit(net)
    e.cut("", heads=0, queries=1, keys=2)
    with pytest.raises(RuntimeError, match=r"differs from the result of the call by .*so nothing is cut"), e:
        net(X, X, X, need_weights=False)


def test_nested_and_overlapping_blocks_give_every_forward_back() -> None:
    net = attention(batch_first=True)
    mine = net.forward
    net.forward = lambda *args, **kwargs: mine(*args, **kwargs)  # as accelerate does
    own = net.forward
    first, second = edit(net), edit(net)
    first.scale("", 2.0, heads=0)
    second.cut("", heads=1, queries=1, keys=2)
    first.__enter__()
    second.__enter__()
    net(X, X, X, need_weights=False)
    first.__exit__(None, None, None)
    assert net.forward is not own
    net(X, X, X, need_weights=False)
    second.__exit__(None, None, None)
    assert net.forward is own
    assert second.rows[0]["calls seen"] == 2


def test_edges_of_a_query_are_cut_in_one_edit() -> None:
    net = attention(batch_first=True)
    e = edit(net)
    e.cut("", heads=1, queries=[2, 3], keys=1, samples=[0])
    with pytest.raises(
        ValueError, match=r"edit 1 already cuts edges of head 1 and query 3\. Combine the two: keys=\[0, 1\]"
    ):
        e.cut("", heads=[0, 1], queries=3, keys=0)
    with pytest.raises(ValueError, match="edit 1 already cuts edges of head 1 and query 2"):
        e.cut("", heads=1, queries=2, keys=1, samples=slice(0, None))
    e.cut("", heads=0, queries=3, keys=0)  # another head, another query, other samples
    e.cut("", heads=1, queries=4, keys=0)
    e.cut("", heads=1, queries=3, keys=0, samples=slice(1, 2))
    with e:
        y, _ = net(X, X, X, need_weights=False)
    mask = torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    mask[0, 1, [2, 3], 1] = mask[:, 0, 3, 0] = mask[:, 1, 4, 0] = mask[1, 1, 3, 0] = True
    torch.testing.assert_close(y, net.out_proj(of_heads(net, X, mask).flatten(-2)))
    with edit(net) as e:  # each in a call of its own
        e.cut("", heads=1, queries=3, keys=0, calls=1)
        e.cut("", heads=1, queries=3, keys=1, calls=2)
        net(X, X, X, need_weights=False)
        net(X, X, X, need_weights=False)
    e = edit(net)
    e.cut("", heads=1, queries=3, keys=0, calls=1)
    with pytest.raises(ValueError, match="already"):
        e.cut("", heads=1, queries=3, keys=1)


def test_keys_from_elsewhere() -> None:
    from hookscope.interp.edits.intercept import is_cross_attention

    net, y = attention(batch_first=True), X + 1
    assert not is_cross_attention((X, X, X), {}, net)
    assert not is_cross_attention((X,), {"key": X, "value": y}, net)
    assert is_cross_attention((X, y, y), {}, net)
    assert is_cross_attention((), {"query": X, "key": y, "value": y}, net)
