"""The language model of the stories: what it knows, what makes it know, and its words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import attention, samples
from hookscope.samples import train_stories
from hookscope.samples.stories import STORY_WEIGHTS, StoryLM

SKILLS = {"giving": 0.99, "agreeing": 0.99, "repeating": 0.95}
"""What it can do with words put together as they never were in training, and how often it is right at least."""


@pytest.mark.parametrize(("skill", "least"), SKILLS.items())
def test_it_can_do_what_it_was_trained_for_on_what_it_has_not_seen(skill: str, least: float) -> None:
    measure = getattr(train_stories, skill)
    assert measure(samples.story_lm()) >= least
    assert measure(samples.story_lm(trained=False)) < 0.6


def test_held_out_pairs_are_not_in_training() -> None:
    def pairs(held_out: bool) -> set[tuple[str, str, str]]:
        writer = train_stories.Writer(0, held_out)
        giving = {("names", *sorted((story[1], story[3]))) for story in (writer.giving() for _ in range(2000))}
        return giving | {
            ("near", said[1].rstrip("s"), said[4].rstrip("s")) for said in (writer.agreeing() for _ in range(2000))
        }

    known, new = pairs(held_out=False), pairs(held_out=True)
    assert len(known) > 100
    assert len(new) > 30
    assert not known & new


def test_texts_are_the_same_every_time_and_ask_for_nothing_that_nobody_can_know() -> None:
    tokens, targets = train_stories.texts(seed=5, count=200)
    assert torch.equal(tokens, train_stories.texts(seed=5, count=200)[0])
    assert tokens.shape == targets.shape == (200, StoryLM.length)
    scored = targets != train_stories.UNSCORED
    assert torch.equal(targets[:, :-1][scored[:, :-1]], tokens[:, 1:][scored[:, :-1]])
    rows = ~scored.all(1)
    assert 0.2 < rows.float().mean() < 0.6
    for text, asked in zip(tokens[rows], scored[rows], strict=True):
        first = int((~asked).sum())
        assert not asked[:first].any()
        assert torch.equal(text[1:-first], text[1 + first :]), "the row begins again where targets begin"


def induction(model: StoryLM, words: int = 12) -> torch.Tensor:
    """How much each head, [block, head], takes in the second round from the word after the same word in the first."""
    writer = train_stories.Writer(9, held_out=True)
    tokens = torch.cat([samples.story_tokens(writer.row(words, 2 * words)) for _ in range(50)])
    queries = torch.arange(words + 1, 2 * words)
    return torch.stack(
        [each.weights[:, :, queries, queries - words + 1].mean((0, 2)) for each in attention(model, tokens).values()]
    )


def without(model: StoryLM, block: int, head: int) -> torch.utils.hooks.RemovableHandle:
    """Take the work of a head away, until the handle is removed."""
    proj = model.blocks[block].attn.proj
    size = proj.in_features // model.blocks[block].attn.heads

    def silence(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        mixed = args[0].clone()
        mixed[..., head * size : (head + 1) * size] = 0
        return (mixed,)

    return proj.register_forward_pre_hook(silence)


def test_heads_that_look_for_what_came_after_the_same_word_make_it_repeat() -> None:
    model = samples.story_lm()
    scores = induction(model)
    assert scores[0].max() < 0.3, "what came after can only be known from the second block on"
    order = scores[1].argsort(descending=True).tolist()
    assert scores[1, order[0]] > 0.3
    before = train_stories.repeating(model)
    with without(model, 1, order[0]), without(model, 1, order[1]):
        assert train_stories.repeating(model) < before - 0.4
    with without(model, 1, order[2]), without(model, 1, order[3]):
        assert train_stories.repeating(model) > before - 0.2
    assert induction(samples.story_lm(trained=False)).max() < 0.2


def test_words_become_tokens_and_words_again() -> None:
    text = "the dogs near the cat run ."
    tokens = samples.story_tokens(text)
    assert (tokens.shape, tokens.dtype) == ((1, 8), torch.int64)
    assert samples.story_words(tokens) == samples.story_words(tokens[0]) == ["<start>", *text.split()]
    assert torch.equal(samples.story_tokens(text.split()), tokens)
    with pytest.raises(ValueError, match=r"does not know the word 'dogz'; did you mean 'dogs' or 'dog'"):
        samples.story_tokens("the dogz run")
    with pytest.raises(ValueError, match=r"'quantum'; samples\.STORY_WORDS has all"):
        samples.story_tokens("quantum")
    with pytest.raises(ValueError, match=r"shape \(2, 8\): give those of one text"):
        samples.story_words(tokens.expand(2, -1))
    with pytest.raises(ValueError, match="no token 99: there are 67"):
        samples.story_words(torch.tensor([0, 99]))
    with pytest.raises(ValueError, match="41 tokens, but the model reads 40"):
        samples.story_lm()(torch.zeros(1, 41, dtype=torch.int64))


def test_it_is_small_and_leaves_random_numbers_alone() -> None:
    assert STORY_WEIGHTS.stat().st_size < 1_000_000
    before = torch.get_rng_state()
    first, second = samples.story_lm(trained=False), samples.story_lm(trained=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not first.training


@pytest.mark.slow
def test_training_again_gives_a_model_as_good() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = train_stories.train(*train_stories.texts(seed=0))
    finally:
        torch.set_num_threads(threads)
    for skill, least in SKILLS.items():
        assert getattr(train_stories, skill)(model) >= least
