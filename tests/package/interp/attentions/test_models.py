"""Real models: every attention call of theirs is found, and equal to what they say themselves."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from hookscope import attention

transformers = pytest.importorskip("transformers")
IDS = torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
SMALL = {"vocab_size": 50, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def gpt2(**more):
    config = transformers.GPT2Config(
        n_layer=3, n_embd=32, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0, **more
    )
    return transformers.GPT2Model(config).eval()


def bert(**more):
    return transformers.BertModel(transformers.BertConfig(**SMALL, **more)).eval()


def llama(**more):
    return transformers.LlamaModel(transformers.LlamaConfig(**SMALL, num_key_value_heads=2, **more)).eval()


def t5(**more):
    sizes = {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": 50}
    return transformers.T5Model(transformers.T5Config(**sizes, **more)).eval()


def vit(**more):
    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8, **more)).eval()


TEXT = {"input_ids": IDS}
MODELS = {
    "GPT-2": (gpt2, TEXT),
    "BERT with padding": (bert, TEXT | {"attention_mask": PADDED}),
    "Llama with grouped queries, padded on the left": (llama, TEXT | {"attention_mask": PADDED.flip(1)}),
    "T5": (t5, TEXT | {"decoder_input_ids": IDS[:, :4], "attention_mask": PADDED}),
    "ViT": (vit, {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}),
}


def theirs(output):
    """The maps that a model of transformers returns, in the order of the calls."""
    if "cross_attentions" in output and output.get("encoder_attentions"):
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        return [*output.encoder_attentions, *(each for pair in pairs for each in pair)]
    return list(output.attentions)


@pytest.mark.parametrize("name", MODELS)
def test_every_map_is_what_the_model_says_itself(name):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, eager = make(), make(attn_implementation="eager")
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = theirs(eager(**inputs, output_attentions=True))
    for each, by in ((model, "scaled_dot_product_attention"), (eager, "softmax, then a product")):
        found = attention(each, kwargs=inputs)
        assert len(found) == len(expected)
        assert {map_.by for map_ in found.values()} == {by}
        assert all(map_.verified for map_ in found.values())
        for map_, weights in zip(found.values(), expected, strict=True):
            rows = ~map_.blind  # eager spreads the weights of a fully masked row over all keys
            torch.testing.assert_close(map_.weights[rows], weights[rows], atol=1e-6, rtol=1e-4)
        assert not any("could not be followed" in note for note in found.notes)
    if "left" in name:
        found = attention(model, kwargs=inputs)
        assert any("8 of 48 rows are fully masked" in note for note in found.notes)


def test_names_are_those_of_the_attention_layers():
    assert list(attention(gpt2(), IDS)) == ["h.0.attn", "h.1.attn", "h.2.attn"]
    found = attention(t5(), kwargs=MODELS["T5"][1])
    assert "decoder.block.0.layer.1.EncDecAttention" in found
    assert found["decoder.block.0.layer.1.EncDecAttention"].weights.shape == (2, 4, 4, 6)


def test_a_cache_is_used_and_grows_once():
    model = llama()
    cache = transformers.DynamicCache()
    attention(model, IDS, kwargs={"past_key_values": cache})
    assert cache.get_seq_length() == 6
    found = attention(model, IDS[:, :1], kwargs={"past_key_values": cache})
    assert found[0].weights.shape == (2, 4, 1, 7)
    with torch.no_grad():
        eager = llama(attn_implementation="eager")
        eager.load_state_dict(model.state_dict())
        whole = eager(torch.cat([IDS, IDS[:, :1]], 1), output_attentions=True).attentions
    torch.testing.assert_close(found[1].weights, whole[1][:, :, -1:], atol=1e-6, rtol=1e-4)


def test_vision_transformer_of_torchvision():
    model = torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64).eval()
    found = attention(model, torch.randn(2, 3, 32, 32))
    assert list(found) == [f"encoder.layers.encoder_layer_{layer}.self_attention" for layer in (0, 1)]
    assert all(each.verified and each.weights.shape == (2, 4, 17, 17) for each in found.values())
    slow = attention(model.train(), torch.randn(2, 3, 32, 32))
    assert {each.by for each in slow.values()} == {"scaled_dot_product_attention"}


def test_swin_looks_through_windows_and_not_past_a_shifted_edge():
    torch.manual_seed(0)
    model = torchvision.models.SwinTransformer([4, 4], 24, [2, 2], [3, 6], [4, 4]).eval()
    found = attention(model, torch.randn(1, 3, 32, 32))
    shapes = [tuple(each.weights.shape) for each in found.values()]
    assert shapes == [(4, 3, 16, 16)] * 2 + [(1, 6, 16, 16)] * 2
    assert all(each.verified for each in found.values())
    plain, shifted = found["features.1.0.attn"].weights, found["features.1.1.attn"].weights
    assert (plain > 1e-6).all()
    assert (shifted[-1] < 1e-6).any()  # the last window holds places from all four edges
    assert torch.allclose(shifted.sum(-1), torch.ones(()), atol=1e-5)


def test_transformer_of_torch():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, dropout=0.0)
    found = attention(model, torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    assert list(found) == [
        "encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn",
    ]  # fmt: skip
    assert found["decoder.layers.0.multihead_attn"].weights.shape == (2, 2, 3, 5)
    assert all(each.verified for each in found.values())


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])  # the second with squeeze-and-excitation
def test_networks_without_attention_of_tokens(name):
    found = attention(getattr(torchvision.models, name)(weights=None).eval(), torch.randn(1, 3, 32, 32))
    assert len(found) == 0
    assert found.notes[0].startswith("0 maps: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_v2_t", "maxvit_t"])
def test_models_of_torchvision(name):
    model = getattr(torchvision.models, name)(weights=None).eval()
    found = attention(model, torch.randn(1, 3, 224, 224))
    assert len(found) == {"swin_v2_t": 12, "maxvit_t": 22}[name]
    assert all(each.verified for each in found.values())
    assert all(each.weights.shape[1] > 1 for each in found.values())


def test_flex_attention_of_llama_is_not_seen_and_named():
    found = attention(llama(attn_implementation="flex_attention"), kwargs=TEXT)
    assert len(found) == 0
    assert "0 maps" in repr(found)
    assert any("cannot read the weights of flex_attention" in note for note in found.notes)
