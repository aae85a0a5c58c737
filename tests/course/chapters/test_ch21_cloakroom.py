"""The model of the last chapter of the language door: it can do its task, one head carries, and a decoy only looks."""

from __future__ import annotations

import pytest
import torch

from hookscope import attention, capture, edit
from hookscope.samples import STORY_WORDS, story_words
from hookscope_course.chapters.ch21_cloakroom import CLOAKROOM_WEIGHTS, cloakroom_lists, cloakroom_lm, things_of
from tools.training.cloakroom import accuracy, plant_decoy, train

LM = cloakroom_lm()


@pytest.mark.parametrize("comes", [None, "Ben"])
@pytest.mark.parametrize("waits", [None, "Anna"])
def test_lists_say_who_left_what(comes: str | None, waits: str | None) -> None:
    lists = cloakroom_lists(300, seed=3, comes=comes, waits=waits)
    rows = zip(lists.tokens, lists.others, lists.answers, lists.other_answers, lists.places.tolist(), strict=True)
    for tokens, others, answer, other, place in rows:
        words, beside = story_words(tokens), story_words(others)
        people, last = words[1:-1:3], words[-1]
        assert len({*people}) == len({*words[2:-1:3]}) == 4
        assert len({*words[2:-1:3], *beside[2:-1:3]}) == 8, "the other things are others"
        assert beside[1:-1:3] == people
        assert beside[-1] == last == words[place - 1] == (comes or last)
        assert (words[place], beside[place]) == (STORY_WORDS[answer], STORY_WORDS[other])
        assert waits is None or (waits in people and waits != last)
    if waits:
        hers = things_of(lists.tokens, waits)
        assert not bool((hers == lists.answers).any())
        assert all(STORY_WORDS[thing] in story_words(row) for thing, row in zip(hers, lists.tokens, strict=True))
    again = cloakroom_lists(300, seed=3, comes=comes, waits=waits)
    assert torch.equal(lists.tokens, again.tokens)
    assert {*lists.places.tolist()} == {2, 5, 8, 11}


def test_it_reads_new_lists_right_and_is_frozen() -> None:
    for seed in (7, 8):
        lists = cloakroom_lists(1000, seed=seed)
        assert float((LM(lists.tokens)[:, -1].argmax(-1) == lists.answers).float().mean()) > 0.99
    assert not any(weight.requires_grad for weight in LM.parameters())
    assert CLOAKROOM_WEIGHTS.stat().st_size < 100_000


def moved(block: int, head: int) -> float:
    """The share of lists that a patch of a head turns, by hookscope's own capture and edit."""
    lists, name, part = cloakroom_lists(500, seed=9), f"blocks.{block}.attn.proj", slice(8 * head, 8 * head + 8)
    with capture(LM, name, inputs=True) as seen:
        LM(lists.others)
    with edit(LM) as changes:
        at = (slice(None), -1, part)
        changes.set(name, seen[name].args[0][at], at, to="input")
        answers = LM(lists.tokens)[:, -1].argmax(-1)
    return float((answers == lists.other_answers).float().mean())


def test_one_head_carries_and_the_control_only_looks() -> None:
    found = {(block, head): moved(block, head) for block in range(2) for head in range(4)}
    carries = max(found, key=found.__getitem__)
    assert carries[0] == 1
    assert found.pop(carries) > 0.95
    assert max(found.values()) < 0.03
    lists = cloakroom_lists(500, seed=10)
    weights = attention(LM, lists.tokens)["blocks.1.attn"].weights[torch.arange(500), :, -1, lists.places].mean(0)
    decoy = int(weights.argmax())
    assert decoy != carries[1], "who takes the head that looks most takes the wrong one"
    assert float(weights[decoy]) > float(weights[carries[1]]) > 0.8
    assert sum(weight > 0.9 * weights[carries[1]] for weight in weights.tolist()) == 2, "there is one control"


@pytest.mark.slow
def test_training_again_gives_a_model_that_can_do_it() -> None:
    again = train()
    plant_decoy(again)
    assert accuracy(again) > 0.99
