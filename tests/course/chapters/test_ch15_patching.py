"""What the cells of chapter 15 import: many stories, and a sweep over the sentence encoder with and without weights."""

from __future__ import annotations

import re

import pytest
import torch

from hookscope import samples
from hookscope_course.chapters import ch15_sentence_sweep as sentences
from hookscope_course.chapters import ch15_stories as stories
from hookscope_course.lessons import folder_of


def test_the_recording_is_what_the_cell_of_the_chapter_gives() -> None:
    lesson = (folder_of(15) / "lesson.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^(def sweep_bank.*?)^by_word", lesson, re.DOTALL | re.MULTILINE)
    names = {"samples": samples, "torch": torch}
    exec("import hookscope\nimport torch.nn.functional as F\n" + code, names)
    made, recorded = sentences.run_or_recall(names["sweep_bank"]), sentences.recall()  # type: ignore[arg-type]
    assert torch.allclose(made.values, recorded.values, atol=1e-3)
    assert (made.layers, made.tokens, made.columns) == (recorded.layers, recorded.tokens, recorded.columns)
    assert made.source == pytest.approx(recorded.source, abs=1e-3)
    assert recorded.picture().png.startswith(b"\x89PNG")


def test_without_weights_there_is_a_note_and_the_recording(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "has_sentence_weights", lambda: False)
    found = sentences.run_or_recall(lambda: pytest.fail("it has no weights to run with"))
    assert "NOTE: the weights of the sentence encoder are missing" in capsys.readouterr().out
    assert torch.equal(found.values, sentences.recall().values)


def test_the_stories_have_the_answers_that_they_say() -> None:
    found = stories.gift_stories(50, seed=3)
    words = [samples.story_words(tokens) for tokens in found.tokens]
    for text, getter, giver in zip(words, found.getters.tolist(), found.givers.tolist(), strict=True):
        assert {samples.STORY_WORDS[getter], samples.STORY_WORDS[giver]} == {text[2], text[4]}
        assert samples.STORY_WORDS[giver] == text[10] != samples.STORY_WORDS[getter]
