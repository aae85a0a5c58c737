"""The grid of the cache: what it shows is what a counter by hand finds, and it hides the hits until the run."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from hookscope_course.figures import CacheGrid
from hookscope_course.figures.cache_grid.figure import CHANGES
from tests.shared.language_models import gpt2

MODEL = gpt2()
INDICES = {"output[:, 3]": 3, "output[:, 3:4]": slice(3, 4), "output[:, -1]": -1, "output": slice(None)}
WITH, WITHOUT = "with the cache", "without it"


def hit_by_hand(index, cache):
    """Mark the tokens by their numbers in the whole sequence, and let the index choose."""
    hits, past = [], 0

    def count(module, args, output):
        nonlocal past
        numbers = torch.arange(output.shape[1])[None] + (past if cache else 0)
        past += output.shape[1]
        hits.append(numbers[:, index].flatten().tolist())

    with MODEL.transformer.h[0].register_forward_hook(count):
        options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "use_cache": cache}
        with suppress(IndexError):
            MODEL.generate(torch.tensor([[5, 6, 7, 8, 9]]), **options)
    return hits


@pytest.fixture
def grid():
    return CacheGrid(MODEL, "transformer.h.0")


@pytest.mark.parametrize("change", INDICES)
def test_each_hit_is_that_of_a_counter_by_hand(grid, change):
    grid.change = change
    grid.run()
    assert grid.hits == {WITH: hit_by_hand(INDICES[change], True), WITHOUT: hit_by_hand(INDICES[change], False)}


def test_positions_of_edit_are_those_of_the_whole_sequence(grid):
    grid.change = "positions=3"
    assert grid.run().endswith("Both runs compute the same scores.")
    assert grid.hits == {WITH: [[3], [], [], []], WITHOUT: [[3]] * 4}


def test_only_the_last_token_computes_something_else(grid):
    said = {}
    for change in CHANGES:
        grid.change = change
        said[change] = grid.run()
    assert grid.differs == "output[:, -1]"
    assert [change for change, words in said.items() if "different scores" in words] == ["output[:, -1]"]
    assert [change for change, words in said.items() if "the same scores" in words] == [
        "output[:, 3:4]",
        "output",
        "positions=3",
    ]
    assert "comes to its end" in said["output[:, 3]"]


def test_marks_are_judged_and_hidden_again(grid):
    grid.change = "output[:, -1]"
    assert "hits are hidden" in grid.alt
    grid.marks = ["0,0,4", "0,1,5", "1,1,0"]
    assert grid.run().startswith("2 of 8 found, 1 marked that is not hit. ")
    grid.change = "output"
    assert (grid.marks, grid.ran) == ([], False)
