"""The model of the cloakroom, and its lists."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.extras import optional_import
from hookscope.samples import STORY_WORDS
from hookscope.samples.bundled import read_verified
from hookscope.samples.stories import NAMES, START, THINGS, StoryLM

__all__ = ["CLOAKROOM_WEIGHTS", "PEOPLE", "WIDTH", "Lists", "cloakroom_lists", "cloakroom_lm", "things_of"]

CLOAKROOM_WEIGHTS = Path(__file__).with_suffix(".safetensors")
"""The weights that `tools/training/cloakroom.py` writes and `cloakroom_lm` loads."""
_SHA256 = "799d3ed8c3df583681d01365a7bf256ac4b5f98a7ae817d93a817d3f92d157ba"
PEOPLE, WIDTH = 4, 32
_START, _COMMA, _PERIOD = (STORY_WORDS.index(word) for word in (START, ",", "."))
_NAMES, _THINGS = (torch.tensor([STORY_WORDS.index(word) for word in words]) for words in (NAMES, THINGS))


class Lists(NamedTuple):
    """Some lists of a cloakroom: four people, what each of them left, and who comes to fetch it.

    Args:
        tokens: the lists, (N, 14).
        answers: the thing of the one who comes, (N,).
        places: the position of this thing in the list, (N,).
        others: the same people in the same order, and four other things, (N, 14).
        other_answers: the thing of the one who comes in `others`, (N,).

    """

    tokens: Tensor
    answers: Tensor
    places: Tensor
    others: Tensor
    other_answers: Tensor


def cloakroom_lists(count: int, seed: int = 0, *, comes: str | None = None, waits: str | None = None) -> Lists:
    """Make lists such as "Anna hat , Ben key , Clara book , Paul lamp . Ben".

    Args:
        count: how many.
        seed: of the lists.
        comes: the name of the one who comes to fetch a thing; by default anybody on the list.
        waits: a name that is on each list and does not come.

    Example:
        >>> from hookscope.samples import story_words
        >>> lists = cloakroom_lists(2, comes="Ben", waits="Anna")
        >>> [words[-1] for words in map(story_words, lists.tokens)]
        ['Ben', 'Ben']

    """
    draw = torch.Generator().manual_seed(seed)
    people = torch.stack([torch.randperm(len(_NAMES), generator=draw)[:PEOPLE] for _ in range(count)])
    things = torch.stack([torch.randperm(len(_THINGS), generator=draw) for _ in range(count)])
    asked = torch.randint(PEOPLE, (count,), generator=draw)
    rows = torch.arange(count)
    # Put a wanted name in its place, and what was there in the place of the name.
    for name, at in (
        (comes, asked),
        (waits, (asked + 1 + torch.randint(PEOPLE - 1, (count,), generator=draw)) % PEOPLE),
    ):
        if name is not None:
            index = NAMES.index(name)
            people = torch.where(people == index, people[rows, at][:, None], people)
            people[rows, at] = index
    tokens, others = (_write(people, each, asked) for each in (things[:, :PEOPLE], things[:, PEOPLE:]))
    places = 3 * asked + 2
    return Lists(tokens, tokens[rows, places], places, others, others[rows, places])


def _write(people: Tensor, things: Tensor, asked: Tensor) -> Tensor:
    count = len(people)
    tokens = torch.full((count, 3 * PEOPLE + 2), _COMMA)
    tokens[:, 0], tokens[:, -2] = _START, _PERIOD
    tokens[:, 1:-1:3], tokens[:, 2:-1:3] = _NAMES[people], _THINGS[things]
    tokens[:, -1] = _NAMES[people[torch.arange(count), asked]]
    return tokens


def things_of(tokens: Tensor, name: str) -> Tensor:
    """Return what somebody left, in each list, (N,).

    Example:
        >>> from hookscope.samples import STORY_WORDS, story_tokens
        >>> STORY_WORDS[things_of(story_tokens("Anna hat , Ben key , Clara book , Paul lamp . Ben"), "Clara")[0]]
        'book'

    """
    first = (tokens == STORY_WORDS.index(name)).int().argmax(1)
    return tokens[torch.arange(len(tokens)), first + 1]


def cloakroom_lm(trained: bool = True) -> StoryLM:
    """Return a small language model that says what somebody left.

    It has the words and the kinds of layers of `samples.story_lm()`, and other weights: two blocks with four heads
    each, and 32 numbers for each token. It reads lists of four people. Its weights are frozen.

    Args:
        trained: load the trained weights. Otherwise the weights are random, and the same in each call.

    Example:
        >>> from hookscope.samples import STORY_WORDS, story_tokens
        >>> tokens = story_tokens("Anna hat , Ben key , Clara book , Paul lamp . Ben")
        >>> STORY_WORDS[int(cloakroom_lm()(tokens)[0, -1].argmax())]
        'key'

    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = StoryLM(width=WIDTH)
    if trained:
        with optional_import("the cloakroom model"):
            from safetensors.torch import load
        advice = f"Run `git restore {CLOAKROOM_WEIGHTS.name}` in that folder"
        saved = load(read_verified(CLOAKROOM_WEIGHTS, _SHA256, "the cloakroom model", advice))
        model.load_state_dict({name: weight.float() for name, weight in saved.items()})
    return model.eval().requires_grad_(False)
