"""What `ResidualRiver` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Layout, Promises
from hookscope_course.figures.residual_river.figure import ResidualRiver
from hookscope_course.figures.residual_river.layout import place_river


def list_river_boxes(layout: Mapping[str, Any]) -> Layout:
    """Return the boxes of the drawing: parts of the model, lenses, and the final prediction."""
    return layout["size"], [*layout["boxes"].values(), *layout["lenses"], layout["says"]]


PROMISES: dict[str, Promises] = {
    "ResidualRiver": Promises(
        lambda net: ResidualRiver(net, "the dogs near the cat", head=""),
        {"text": "the bakers", "token": 1, "depth": 2, "tap": "blocks.0", "head": "blocks.1.attn, head 0"},
        refused=(
            ("token", 6, "there are 6, counted from 0"),
            ("depth", -1, "there are 5, counted from 0"),
            ("tap", "blocks.2", "there are: tokens, positions, blocks.0.attn"),
            ("head", "blocks.1.attn", "there are: blocks.0.attn, head 0; blocks.0.attn, head 1"),
            ("text", "the dgos", "did you mean 'dogs'"),
            ("text", " ".join(["the"] * 50), "the model reads at most 40"),
        ),
        model=samples.story_lm,
        boxes=lambda narrow: list_river_boxes(place_river(2, narrow)),
    ),
    "ResidualRiver, no lens": Promises(
        lambda net: ResidualRiver(net, "the dogs near the cat", lens=False),
        {"token": 2},
        model=samples.story_lm,
        secret=lambda _: (r"\b(run|sleep|sing|wait)\b", r"\blens\b"),
        reveal={"lens": True, "depth": 4},
    ),
}

CONTROLS: dict[str, Controls] = {
    "ResidualRiver": Controls(
        "The residual river",
        """
from hookscope import samples
from hookscope_course.figures import ResidualRiver
lm = samples.story_lm()
river = ResidualRiver(lm, 'the dogs near the cat')
river
""",
        ("[data-tap='blocks.1.mlp']",),
        "river.tap",
        "blocks.1.mlp",
        "[data-tap][tabindex='0']",
        ("ArrowRight", "ArrowUp", "ArrowLeft"),
        "positions",
    ),
}
