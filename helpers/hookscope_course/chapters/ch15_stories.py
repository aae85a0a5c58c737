"""Texts for the story model, and what it does without some of its heads, as a table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope import Table, samples
from hookscope.samples.stories import MANY, NAMES, ONE, PLACES, THINGS

__all__ = ["Gifts", "gift_stories", "heads_table", "repeated_rows"]


class Gifts(NamedTuple):
    """Stories about a gift.

    Args:
        tokens: int64, (stories, 15).
        getters: for each story the token of the answer, the name of who gets the gift.
        givers: for each story the token of the other name.

    """

    tokens: Tensor
    getters: Tensor
    givers: Tensor


def gift_stories(count: int, seed: int = 0) -> Gifts:
    """Make stories such as "when Mary and Leo went to the park , Leo gave the ball to".

    Example:
        >>> stories = gift_stories(2)
        >>> stories.tokens.shape, bool((samples.story_lm()(stories.tokens)[:, -1].argmax(-1) == stories.getters).all())
        (torch.Size([2, 15]), True)

    """
    chance, texts, pairs = random.Random(seed), [], []
    for _ in range(count):
        two = chance.sample(NAMES, 2)
        giver, getter = chance.sample(two, 2)
        place, thing = chance.choice(PLACES), chance.choice(THINGS)
        texts.append(f"when {two[0]} and {two[1]} went to the {place} , {giver} gave the {thing} to")
        pairs.append((samples.STORY_WORDS.index(getter), samples.STORY_WORDS.index(giver)))
    return Gifts(torch.cat([samples.story_tokens(text) for text in texts]), *torch.tensor(pairs).T)


def repeated_rows(count: int, seed: int = 0, length: int = 8) -> Tensor:
    """Make rows of nouns and names that come a second time: the start token, `length` words, the same words again.

    Returns:
        int64, (count, 1 + 2 * length).

    Example:
        >>> samples.story_words(repeated_rows(1, length=3))
        ['<start>', 'dogs', 'birds', 'Clara', 'dogs', 'birds', 'Clara']

    """
    chance = random.Random(seed)
    words = [*NAMES, *ONE, *MANY]
    chosen = [chance.sample(words, length) for _ in range(count)]
    return torch.cat([samples.story_tokens(row + row) for row in chosen])


def heads_table(
    found: Mapping[tuple[int, ...], float | Sequence[float]], columns: Sequence[str], caption: str
) -> Table:
    """Show what was measured with some heads switched off, with two digits.

    Args:
        found: maps the heads that were off to a number, or to several.
        columns: a name for each number.
        caption: of the table.

    Example:
        >>> heads_table({(): 1.0, (0, 3): 0.5}, ["right"], "How often it is right")
        How often it is right
        heads off  right
        ---------  -----
        none       1.00
        0 and 3    0.50

    """
    rows = []
    for heads, numbers in found.items():
        several = numbers if isinstance(numbers, Sequence) else [numbers]
        texts = [f"{number:.2f}" for number in several]
        rows.append({"heads off": " and ".join(map(str, heads)) or "none", **dict(zip(columns, texts, strict=True))})
    return Table(rows, caption)
