"""The errand model and its texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.samples import story_tokens
from hookscope.samples.bundled import read_verified
from hookscope.samples.stories import NAMES, PLACES, StoryLM, story_lm

__all__ = ["ERRAND_WEIGHTS", "Errands", "errand_lm", "errands", "write_errand"]

ERRAND_WEIGHTS = Path(__file__).with_name("errand_lm.safetensors")
"""The weights that `train.py` writes and `errand_lm` loads."""
_SHA256 = "not yet"
PEOPLE = 3


class Errands(NamedTuple):
    """Some texts about errands, all of the same length.

    Args:
        tokens: the texts up to the last "the", (N, 24).
        places: the token that comes next, (N,).
        looks: the position of the first mention of that place, (N,).

    """

    tokens: Tensor
    places: Tensor
    looks: Tensor


def errand_lm() -> StoryLM:
    """Return a small language model that tells who goes where.

    It has the words and the layers of `samples.story_lm()`, and other weights. Each text says where three people went,
    and then where one of them went again.

    Returns:
        A new model in eval mode, with frozen weights.

    Example:
        >>> tokens, places, _ = errands(100, seed=1)
        >>> bool((errand_lm()(tokens)[:, -1].argmax(-1) == places).float().mean() > 0.95)
        True

    """
    from safetensors.torch import load

    model = story_lm(trained=False)
    advice = "Run `git restore helpers/hookscope_course/errands` in a checkout, or install the course again"
    model.load_state_dict(load(read_verified(ERRAND_WEIGHTS, _SHA256, "the errand model", advice)))
    return model.requires_grad_(False)


def write_errand(who: Sequence[str], where: Sequence[str], asked: int) -> list[str]:
    """Write one errand, up to and with the place at its end.

    Example:
        >>> print(*write_errand(["Anna", "Ben", "Leo"], ["park", "beach", "school"], 1)[-7:])
        . then Ben went to the beach

    """
    went = [f"{name} went to the {place}" for name, place in zip(who, where, strict=True)]
    return f"{' , '.join(went)} . then {who[asked]} went to the {where[asked]}".split()


def errands(count: int, seed: int, places: Sequence[str] = PLACES) -> Errands:
    """Write texts about errands.

    Args:
        count: how many.
        seed: the same texts for the same seed.
        places: at least three places to go to.

    Returns:
        tokens, places, looks: the texts up to the last "the", (count, 24); the place that comes next, (count,); and
        the position of that place in the text, (count,).

    Example:
        >>> tokens, places, looks = errands(1, seed=0)
        >>> tokens[0, looks[0]] == places[0]
        tensor(True)

    """
    chance = torch.Generator().manual_seed(seed)
    texts, looks = [], []
    for _ in range(count):
        who = [NAMES[n] for n in torch.randperm(len(NAMES), generator=chance)[:PEOPLE]]
        where = [places[n] for n in torch.randperm(len(places), generator=chance)[:PEOPLE]]
        asked = int(torch.randint(PEOPLE, (), generator=chance))
        texts.append(story_tokens(write_errand(who, where, asked)))
        looks.append(5 + 6 * asked)
    tokens = torch.cat(texts)
    return Errands(tokens[:, :-1], tokens[:, -1], torch.tensor(looks))


