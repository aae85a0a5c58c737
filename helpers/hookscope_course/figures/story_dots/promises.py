"""What `StoryDots` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

import torch

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.story_dots.figure import StoryDots

FALLS = {"head 0 off": torch.linspace(-2, 2, 20), "both off": torch.linspace(3, -1, 20)}


def make_figure(count: int = 20) -> StoryDots:
    """Make it of few stories, with made-up numbers."""
    tokens = torch.cat([samples.story_tokens(f"when {name} and Leo went") for name in ("Mary", "Anna")])
    return StoryDots(tokens.repeat(count // 2, 1), FALLS, {name: torch.tensor([0.5]) for name in FALLS})


PROMISES: dict[str, Promises] = {
    "StoryDots": Promises(
        lambda _: make_figure(),
        {"story": 3},
        refused=(("story", 20, "-1 to 19"),),
        calls=((lambda _: make_figure(4), "20 numbers, but there are 4 stories"),),
    ),
}

CONTROLS: dict[str, Controls] = {
    "StoryDots": Controls(
        "A dot for each story",
        """
import torch
from hookscope_course.chapters.ch15_stories import gift_stories
from hookscope_course.figures import StoryDots
falls = {"head 0 off": torch.linspace(-2, 2, 20), "both off": torch.linspace(3, -1, 20)}
figure = StoryDots(gift_stories(20).tokens, falls, {name: torch.tensor([0.5]) for name in falls})
figure
""",
        (".sd-row >> nth=0 >> .sd-dot >> nth=19",),
        "figure.story",
        "19",
        ".sd-row >> nth=1",
        ("Home", "ArrowRight", "ArrowRight"),
        "17",
    ),
}
