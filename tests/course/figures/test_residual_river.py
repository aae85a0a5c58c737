"""The residual river: every number is what hooks by hand find, every tap runs as it is written, and a text can fail."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest
import torch

import hookscope
from hookscope import samples
from hookscope_course.figures import ResidualRiver
from hookscope_course.figures.residual_river.figure import EXAMPLES, read_stream
from hookscope_course.figures.residual_river.layout import place_river

TEXT = "the dogs near the cat"


@pytest.fixture(scope="module")
def lm():
    return samples.story_lm()


@pytest.fixture
def river(lm):
    return ResidualRiver(lm, TEXT)


def by_hand(lm, text):
    """Compute the streams from the modules, one after the other, without hooks."""
    tokens = samples.story_tokens(text)
    with torch.no_grad():
        parts = {"tokens": lm.tokens(tokens)[0], "positions": lm.positions(torch.arange(tokens.shape[1]))}
        x = sum(parts.values())[None]
        streams = [x]
        for number, block in enumerate(lm.blocks):
            parts[f"blocks.{number}.attn"] = block.attn(block.norm1(x))[0]
            x = x + block.attn(block.norm1(x))
            streams.append(x)
            parts[f"blocks.{number}.mlp"] = block.mlp(block.norm2(x))[0]
            x = x + block.mlp(block.norm2(x))
            streams.append(x)
        chances = [lm.head(lm.norm(stream))[0].softmax(-1) for stream in streams]
    return parts, streams, chances


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_number_is_that_of_the_modules(lm, text):
    found = read_stream(lm, text)
    parts, streams, chances = by_hand(lm, text)
    assert found.words == samples.story_words(samples.story_tokens(text))
    assert set(found.added) == set(parts)
    for name, rows in found.added.items():
        assert rows == pytest.approx(parts[name].norm(dim=-1).tolist(), abs=0.0006)
    for rows, stream in zip(found.stream, streams, strict=True):
        assert rows == pytest.approx(stream[0].norm(dim=-1).tolist(), abs=0.0006)
    for number, (before, after) in enumerate(zip(streams[::2], streams[2::2], strict=False)):
        assert found.own[f"blocks.{number}"] == pytest.approx((after - before)[0].norm(dim=-1).tolist(), abs=0.0006)
    for rows, chance in zip(found.top, chances, strict=True):
        for row, top in enumerate(rows):
            assert [word for word, _ in top] == samples.story_words(chance[row].topk(3).indices)
            assert [value for _, value in top] == pytest.approx(chance[row].topk(3).values.tolist(), abs=6e-4)


def test_the_find_of_the_chapter_can_be_seen(river):
    verbs = ("run", "sleep", "sing", "wait")
    words = []
    for river.depth in range(5):
        words.append(river.word)
    assert [word in verbs for word in words] == [False, False, False, False, True]
    assert river._say().startswith("Row 5, cat: blocks.1.mlp adds ")
    river.text = "Mary ball park Leo book Mary ball"
    words = []
    for river.depth in range(5):
        words.append(river.word)
    assert [word == "park" for word in words] == [False, False, False, True, True]


def test_each_tap_runs_as_it_is_written_and_prints_what_the_figure_says(lm, river):
    for token in (2, 5):
        river.token = token
        for tap in river._taps:
            river.tap = tap
            assert len(river.code.splitlines()) == 3
            assert max(map(len, river.code.splitlines())) <= 80
            names = {"lm": lm, "samples": samples}
            with redirect_stdout(io.StringIO()) as printed, torch.no_grad():
                exec(river.code, names)
                lm(samples.story_tokens(TEXT))
            names["handle"].remove()
            found, (value,) = river._found, printed.getvalue().splitlines()
            if tap.startswith("lens after "):
                assert value == found["top"][river._stages.index(tap[11:])][token][0][0]
                continue
            norm = found["added"].get(tap) or found["stream"][stage_of(tap)]
            assert float(re.search(r"[\d.]+", value)[0]) == pytest.approx(norm[token], abs=0.0006)
    assert len(hookscope.census(lm)) == 0


def stage_of(tap):
    """Where the taps on the river itself stand, counted by hand."""
    return {"blocks.0.norm2": 1, "blocks.0": 2, "blocks.1.norm2": 3, "blocks.1": 4}[tap]


def test_the_arcs_are_the_weights_of_the_model(lm, river):
    assert river._heads == []
    with pytest.raises(ValueError, match="there are: none"):
        river.head = "blocks.1.attn, head 0"
    arched = ResidualRiver(lm, TEXT, head="blocks.1.attn, head 0")
    assert len(arched._heads) == 8
    for text in EXAMPLES:
        maps = hookscope.attention(lm, samples.story_tokens(text))
        for name in arched._heads:
            layer, head = name.split(", head ")
            weights = maps[layer].weights[0, int(head)]
            for row, found in enumerate(arched._texts[text]["looks"][name]):
                assert found == pytest.approx(weights[row, : row + 1].tolist(), abs=0.006)
    assert "row 5, cat, takes 9" in arched.alt
    assert "from row 2, dogs." in arched.alt
    assert arched.numbers()[-4]["weight"] == max(row.get("weight", 0) for row in arched.numbers()) > 0.9
    assert arched.png != river.png
    arched.head = ""
    assert "takes" not in arched.alt


def test_additions_and_sums_are_told_apart(river):
    gets = {name: tap["gets"] for name, tap in river._taps.items()}
    assert [name for name, what in gets.items() if what == "sum"] == [
        "blocks.0.norm2",
        "blocks.0",
        "blocks.1.norm2",
        "blocks.1",
    ]
    added = ["tokens", "positions", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp"]
    assert [name for name, what in gets.items() if what == "addition"] == added
    assert sum(what == "lens" for what in gets.values()) == 5


def test_a_text_of_your_own_is_read_and_another_row_is_asked_for(river):
    river.text = "  the   bakers  "
    assert (river.text, river.token) == ("the bakers", 2)
    river.token = 1
    assert river._say().startswith("Row 1, the: ")
    river.set_state({"text": "the lamp near the birds", "_request": 1})
    assert (river.text, river.token, river.problem) == ("the lamp near the birds", 5, "")
    river.set_state({"text": EXAMPLES[0], "token": 2, "depth": 4, "_request": 2})
    assert (river.text, river.token) == (EXAMPLES[0], 2)


def test_a_word_that_it_does_not_know_is_told_and_the_text_stays(river):
    river.token = 3
    river.set_state({"text": "the dgos", "_request": 1})
    assert (river.text, river.token) == (TEXT, 3)
    assert "the word 'dgos' is not in the vocabulary" in river.problem
    river.set_state({"text": "the cats", "_request": 2})
    assert (river.text, river.problem) == ("the cats", "")
    river.set_state({"text": " ".join(["the"] * 50), "_request": 3})
    assert river.text == "the cats"
    assert "the model reads at most 40" in river.problem


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_no_tap_stands_on_something_else_and_the_river_has_no_gap(blocks, narrow):
    layout = place_river(blocks, narrow)
    width, height = layout["size"]
    for x, y, w, h in [*layout["boxes"].values(), *layout["lenses"], layout["says"]]:
        for a, b in layout["taps"].values():
            assert 0 < a < width
            assert 0 < b < height
            assert abs(x - a) >= w / 2 + 9 or abs(y - b) >= h / 2 + 9
    taps = [*layout["taps"].values()]
    for at, (x, y) in enumerate(taps):
        for a, b in taps[at + 1 :]:
            assert (x - a) ** 2 + (y - b) ** 2 >= (2 * layout["radius"]) ** 2
    stages = 2 * blocks + 1
    for name, count in {
        "water": stages,
        "lenses": stages,
        "pipes": stages,
        "stops": stages,
        "tracks": stages - 1,
    }.items():
        assert len(layout[name]) == count, name
    for at, track in enumerate(layout["tracks"]):
        assert (track[0], track[-1]) == (layout["stops"][at], layout["stops"][at + 1])
    for one, two in zip(layout["water"], layout["water"][1:], strict=False):
        assert one[-1] == two[0], "the river has no gap"
