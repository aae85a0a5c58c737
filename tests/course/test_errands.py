"""The model of chapter 16's capstone: it can do its task, one head carries the place, and a decoy only looks there."""

from __future__ import annotations

import pytest
import torch

from hookscope import attention, edit
from hookscope.samples import story_words
from hookscope.samples.stories import NAMES, PLACES
from hookscope_course.errands import errand_lm, errands
from hookscope_course.errands.model import write_errand
from hookscope_course.errands.train import UNSCORED, texts, train_stories

LM = errand_lm()


def test_texts_end_where_the_asked_person_went():
    tokens, places, looks = errands(50, seed=3)
    for row, place, look in zip(tokens, places, looks, strict=True):
        words = story_words(row)
        asked = words[20]
        assert words[19] == "then"
        assert words[look] == words[words.index(asked) + 4] == story_words(place[None])[0]
        assert len({*words[1:19:6]}) == len({*words[5:19:6]}) == 3
    assert torch.equal(tokens, errands(50, seed=3).tokens)


def test_the_other_texts_have_the_same_people_in_other_places():
    tokens, others = errands(50, seed=3), errands(50, seed=3, places=PLACES[::-1])
    differ = (tokens.tokens != others.tokens).nonzero()[:, 1].unique().tolist()
    assert differ == [5, 11, 17]
    assert bool((tokens.places != others.places).all())
    assert torch.equal(tokens.looks, others.looks)


def test_it_ends_texts_of_every_seed_right():
    tokens, places, _ = errands(1000, seed=7)
    assert float((LM(tokens)[:, -1].argmax(-1) == places).float().mean()) > 0.97
    assert not any(weight.requires_grad for weight in LM.parameters())


def moved(block, head):
    """How many of 200 answers a patch of that head moves, by hookscope's own edit."""
    tokens, others = errands(200, seed=8), errands(200, seed=8, places=PLACES[::-1])
    kept = []
    with LM.get_submodule(f"blocks.{block}.attn.proj").register_forward_pre_hook(lambda _, args: kept.append(args[0])):
        LM(others.tokens)
    with edit(LM) as changes:
        columns = slice(16 * head, 16 * head + 16)
        at = (slice(None), -1, columns)
        changes.set(f"blocks.{block}.attn.proj", kept[0][at], at, to="input")
        answers = LM(tokens.tokens)[:, -1].argmax(-1)
    return int((answers == others.places).sum())


def test_one_head_carries_the_place_and_a_decoy_only_looks_there():
    found = {(block, head): moved(block, head) for block in range(2) for head in range(4)}
    carries = max(found, key=found.get)
    assert carries[0] == 1
    assert found.pop(carries) > 180
    assert max(found.values()) <= 10
    tokens, _, looks = errands(200, seed=9)
    weights = attention(LM, tokens)["blocks.1.attn"].weights[torch.arange(200), :, -1, looks].mean(0)
    decoy = int(weights.argmax())
    assert decoy != carries[1], "who takes the head that looks most is wrong"
    assert float(weights[decoy]) > float(weights[carries[1]]) > 0.5


def test_only_what_follows_from_the_text_is_a_target():
    tokens, targets = texts(seed=4, count=20)
    words = [story_words(row) for row in tokens]
    for row, target in zip(words, targets.tolist(), strict=True):
        unknown = [row[place + 1] for place, token in enumerate(target[:-1]) if token == UNSCORED]
        assert len(unknown) == 7
        assert {*unknown} <= {*NAMES, *PLACES}
        assert write_errand(row[1:18:6], row[5:18:6], row[1:18:6].index(row[20])) == row[1:]


@pytest.mark.slow
def test_training_again_gives_a_model_that_can_do_it():
    torch.set_num_threads(1)
    again = train_stories(*texts(seed=0), steps=2000)
    tokens, places, _ = errands(500, seed=7)
    assert float((again(tokens)[:, -1].argmax(-1) == places).float().mean()) > 0.97
