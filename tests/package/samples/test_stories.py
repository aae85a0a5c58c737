"""The language model of the stories: what it knows, what makes it know, and its words."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hookscope import at, attention, capture, edit, samples
from hookscope.samples.stories import MANY, MANY_DO, STORY_WEIGHTS, STORY_WORDS, StoryLM
from tools.training import stories as train_stories

SKILLS = {"giving": 0.95, "agreeing": 0.99, "repeating": 0.99}
"""What it can do with words put together as they never were in training, and how often it is right at least."""


@pytest.fixture(scope="module")
def model() -> StoryLM:
    return samples.story_lm()


def written(held_out: bool, kind: str, count: int, *args: int) -> list[list[str]]:
    writer = train_stories.Writer(9, held_out)
    return [getattr(writer, kind)(*args) for _ in range(count)]


def tokens_of(texts: list[list[str]]) -> Tensor:
    return torch.cat([samples.story_tokens(text) for text in texts])


@pytest.mark.parametrize(("skill", "least"), SKILLS.items())
def test_it_can_do_what_it_was_trained_for_on_what_it_has_not_seen(model: StoryLM, skill: str, least: float) -> None:
    measure = getattr(train_stories, skill)
    assert measure(model) >= least
    assert measure(samples.story_lm(trained=False)) < 0.7


def test_held_out_pairs_are_not_in_training() -> None:
    def pairs(held_out: bool) -> set[tuple[str, ...]]:
        giving = {("names", *sorted((text[1], text[3]))) for text in written(held_out, "giving", 1000)}
        agreeing = {("near", text[1].rstrip("s"), text[4].rstrip("s")) for text in written(held_out, "agreeing", 1000)}
        rows = written(held_out, "row", 300, 8, 8 if held_out else 16)
        return giving | agreeing | {("row", *pair) for row in rows for pair in pairwise(row)}

    known, new = pairs(held_out=False), pairs(held_out=True)
    assert {kind: sum(pair[0] == kind for pair in new) > 10 for kind in ("names", "near", "row")} == {
        "names": True, "near": True, "row": True,
    }  # fmt: skip
    assert len(known) > 1000
    assert not known & new


def test_texts_are_the_same_every_time_and_ask_for_nothing_that_nobody_can_know() -> None:
    tokens, targets = train_stories.texts(seed=5, count=200)
    assert torch.equal(tokens, train_stories.texts(seed=5, count=200)[0])
    assert tokens.shape == targets.shape == (200, StoryLM.length)
    scored = targets != train_stories.UNSCORED
    assert torch.equal(targets[:, :-1][scored[:, :-1]], tokens[:, 1:][scored[:, :-1]])
    rows = ~scored.all(1)
    assert 0.2 < rows.float().mean() < 0.6
    for text, asked in zip(tokens[rows].tolist(), scored[rows].tolist(), strict=True):
        first = asked.index(True)
        assert all(asked[first:])
        assert len(set(text[: first + 1])) == first, "all words until then are new but the last, which came before"
        for place in range(first + 1, len(text)):
            assert text[place] in text[: place - 1]


def test_a_few_steps_of_training_are_the_same_twice() -> None:
    data = train_stories.texts(seed=5, count=100)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, second = train_stories.train(*data, steps=2), train_stories.train(*data, steps=2)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.head.weight, samples.story_lm(trained=False).head.weight)


def looks(model: StoryLM, words: int = 12) -> dict[str, Tensor]:
    """How much each head, [block, head], looks, in the second round of new rows, at two places."""
    tokens = tokens_of(written(True, "row", 50, words, 2 * words))
    maps = attention(model, tokens)
    assert len(maps) == len(model.blocks)
    assert all(each.verified for each in maps.values())
    places = torch.arange(words + 2, 2 * words)
    return {
        what: torch.stack([each.weights[:, :, places, places - far].mean((0, 2)) for each in maps.values()])
        for what, far in {"the word before": 1, "what came after the same word": words - 1}.items()
    }


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_a_head_that_looks_for_what_came_after_the_same_word_makes_it_repeat(model: StoryLM, ablation: str) -> None:
    seen = looks(model)
    before, after = seen["the word before"], seen["what came after the same word"]
    assert before[0].max() > 0.5, "an early head looks at the word before"
    assert after[1].max() > 0.5, "a later one looks for what came after"
    assert after[0].max() < 0.3

    def repeats(block: int, head: int) -> float:
        with edit(model) as changed:
            if ablation == "zero":
                changed.set(f"blocks.{block}.attn", 0.0, heads=head)
            else:
                changed.mean(f"blocks.{block}.attn", heads=head)
            return train_stories.repeating(model)

    least, *others, most = after[1].argsort().tolist()
    assert repeats(0, int(before[0].argmax())) < 0.3
    assert repeats(1, most) < 0.4
    for control in (least, *others):
        assert repeats(1, control) > 0.95, "heads that look there, too, are not needed"
    assert looks(samples.story_lm(trained=False))["what came after the same word"].max() < 0.2


@torch.no_grad()
def test_whether_there_are_many_can_be_read_at_the_subject_and_moves_the_verb(model: StoryLM) -> None:
    known, new = (written(held_out, "agreeing", 300) for held_out in (False, True))

    def stream(texts: list[list[str]]) -> tuple[Tensor, Tensor]:
        with capture(model, "blocks.0") as found:
            model(tokens_of(texts)[:, :-2])
        return found["blocks.0"].output[:, 2], torch.tensor([text[1] in MANY for text in texts])

    (x, many), (unseen, truth) = stream(known), stream(new)
    direction = x[many].mean(0) - x[~many].mean(0)
    middle = (x[many].mean(0) + x[~many].mean(0)) / 2
    assert (((unseen - middle) @ direction > 0) == truth).float().mean() > 0.99

    def many_do(logits: Tensor) -> Tensor:
        chances = logits[:, -1].softmax(-1)
        return chances[:, [STORY_WORDS.index(verb) for verb in MANY_DO]].sum(-1)

    one = samples.story_tokens("the dog near the cats")
    with capture(model, "tokens") as plural:
        model(samples.story_tokens("the dogs near the cats"))
    assert many_do(model(one)) < 0.05
    with edit(model) as changed:
        changed.swap("tokens", plural, at[:, 2])
        assert many_do(model(one)) > 0.95
    with edit(model) as changed:
        changed.swap("tokens", plural, at[:, 5])
        assert many_do(model(one)) < 0.05, "the neighbour is no subject"


def test_words_become_tokens_and_words_again() -> None:
    text = "the dogs near the cat run ."
    tokens = samples.story_tokens(text)
    assert (tokens.shape, tokens.dtype) == ((1, 8), torch.int64)
    assert samples.story_words(tokens) == samples.story_words(tokens[0]) == ["<start>", *text.split()]
    assert torch.equal(samples.story_tokens(text.split()), tokens)
    with pytest.raises(ValueError, match=r"the word 'dogz' is not in the vocabulary; did you mean 'dog' or 'dogs'"):
        samples.story_tokens("the dogz run")
    with pytest.raises(ValueError, match=r"'quantum' is not in the vocabulary.*samples\.STORY_WORDS"):
        samples.story_tokens("quantum")
    with pytest.raises(ValueError, match=r"shape \(2, 8\), which is more than one text"):
        samples.story_words(tokens.expand(2, -1))
    with pytest.raises(ValueError, match="no token 99: there are 67"):
        samples.story_words(torch.tensor([0, 99]))
    with pytest.raises(ValueError, match="41 tokens, but the model reads at most 40"):
        samples.story_lm()(torch.zeros(1, 41, dtype=torch.int64))


def test_it_is_small_and_leaves_random_numbers_alone() -> None:
    assert STORY_WEIGHTS.stat().st_size < 1_000_000
    before = torch.get_rng_state()
    first, second = samples.story_lm(trained=False), samples.story_lm(trained=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not first.training


@pytest.mark.slow
def test_training_again_gives_a_model_as_good(model: StoryLM) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        again = train_stories.train(*train_stories.texts(seed=0))
    finally:
        torch.set_num_threads(threads)
    for skill, least in SKILLS.items():
        assert getattr(train_stories, skill)(again) >= least
