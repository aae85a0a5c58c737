"""Models of transformers from their configurations, and of torchvision: blocks, lens and maps are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookscope.interp.lenses import Streams

transformers = pytest.importorskip("transformers")
IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 50}


def made(name: str, config: str, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options)).eval()
    return model


def gpt2() -> torch.nn.Module:
    return made("GPT2LMHeadModel", "GPT2Config", n_layer=3, n_embd=24, n_head=3, **ENDS)


def test_gpt2() -> None:
    model = gpt2()
    read = Streams(model, (IDS,))
    assert read.labels == ["transformer.h.0", "transformer.h.1", "transformer.h.2"]
    assert read.lens is not None
    assert read.lens.names == ("transformer.ln_f", "lm_head")
    assert read.remarks() == []
    with torch.no_grad():
        out = model(IDS, output_hidden_states=True)
    for layer in range(2):  # the last of output_hidden_states has gone through the norm
        assert torch.allclose(read.reading().norm[layer].float(), out.hidden_states[layer + 1][0].norm(dim=-1))
    assert torch.equal(read.reading(1).words[-1, :, 0], out.logits[1].argmax(-1))
    assert [each.label for each in read.maps_at(1)] == ["transformer.h.1.attn"]
    first = ["transformer.drop", "transformer.h.*"]
    with_input = Streams(model, (IDS,), layers=[first[0], *[f"transformer.h.{layer}" for layer in range(3)]])
    assert torch.allclose(with_input.reading().norm[0].float(), out.hidden_states[0][0].norm(dim=-1))


def test_llama_with_grouped_queries_and_keywords_only() -> None:
    model = made("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **SIZES, **ENDS)
    read = Streams(model, (), {"input_ids": IDS, "logits_to_keep": 2})
    assert read.lens is not None
    assert read.lens.names == ("model.norm", "lm_head")
    assert read.reading().verified  # the two that it returned
    assert read.maps_at(0)[0].weights.shape[1] == 4
    assert read.reading().next_probability is not None


def test_a_head_that_more_is_done_to_is_said() -> None:
    options = {"num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 0.5}
    read = Streams(made("Gemma2ForCausalLM", "Gemma2Config", **options, **SIZES, **ENDS), (IDS,))
    assert not read.reading().verified
    assert any("differs from the logits of the model by up to" in text for text in read.remarks())


def test_bert() -> None:
    read = Streams(made("BertForMaskedLM", "BertConfig", vocab_size=50, **SIZES), (IDS,))
    assert read.lens is not None
    assert read.lens.names == ("cls",)
    assert read.reading().verified
    assert read.reading().next_probability is None
    assert any("attend to later ones" in text for text in read.remarks())
    plain = Streams(made("BertModel", "BertConfig", vocab_size=50, **SIZES), (IDS,))
    assert plain.lens is None  # its pooler reads one token, and makes no words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "options", "lens"),
    [
        ("MixtralForCausalLM", "MixtralConfig", {"num_key_value_heads": 2, **SIZES, **ENDS}, ("model.norm", "lm_head")),
        ("AlbertForMaskedLM", "AlbertConfig", {"embedding_size": 16, "vocab_size": 50, **SIZES}, ("predictions",)),
        (
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            {"dim": 32, "hidden_dim": 40, "n_layers": 3, "n_heads": 4, "vocab_size": 50},
            ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
        ),
    ],
)
def test_others(name: str, config: str, options: dict[str, Any], lens: tuple[str, ...]) -> None:
    read = Streams(made(name, config, **options), (), {"input_ids": IDS})
    assert len(read.labels) == 3
    assert read.lens is not None
    assert read.lens.names == lens
    assert read.reading().verified
    assert all(read.maps_at(layer) for layer in range(3))


def test_the_decoder_of_t5_is_what_is_read() -> None:
    options = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_heads": 4, "vocab_size": 50}
    model = made("T5ForConditionalGeneration", "T5Config", **options, decoder_start_token_id=0, pad_token_id=0)
    read = Streams(model, (), {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]})
    assert read.labels == ["decoder.block.0", "decoder.block.1", "decoder.block.2"]
    assert [each.weights.shape[3] for each in read.maps_at(0)] == [5, 7]  # to itself, and to the encoder
    assert not read.reading().verified  # it divides by the root of its width, which no module shows


def test_a_vit_of_torchvision() -> None:
    vision = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    model = vision.VisionTransformer(32, 8, 3, 4, 32, 40, num_classes=7)
    torch.nn.init.normal_(model.heads.head.weight)  # else all its scores are 0
    read = Streams(model, (torch.randn(2, 3, 32, 32),))
    assert (len(read.labels), read.tokens, read.ids) == (3, 17, None)
    assert read.lens is not None
    assert (read.lens.names, read.lens.position) == (("encoder.ln", "heads"), 0)
    assert read.reading().verified
