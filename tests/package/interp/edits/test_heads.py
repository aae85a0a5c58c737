"""Heads between attention and its output projection, in real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import at, capture, census, edit
from tests.shared.language_models import IDS, gpt2, llama, small_vit, t5

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


def test_nested_and_overlapping_blocks_give_every_forward_back() -> None:
    net = attention(batch_first=True)
    mine = net.forward
    net.forward = lambda *args, **kwargs: mine(*args, **kwargs)  # as accelerate does
    own = net.forward
    first, second = edit(net), edit(net)
    first.scale("", 2.0, heads=0)
    second.scale("", 3.0, heads=1)
    first.__enter__()
    second.__enter__()
    net(X, X, X, need_weights=False)
    first.__exit__(None, None, None)
    assert net.forward is not own
    net(X, X, X, need_weights=False)
    second.__exit__(None, None, None)
    assert net.forward is own
    assert second.rows[0]["calls seen"] == 2
