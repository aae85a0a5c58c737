"""What `SteeringSlider` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

import torch

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.steering_slider.figure import SteeringSlider

PUSH = torch.linspace(-0.01, 0.01, 64)
VERBS = {"plural verbs": ("run", "sleep"), "singular verbs": ("runs", "sleeps")}

PROMISES: dict[str, Promises] = {
    "SteeringSlider": Promises(
        lambda net: SteeringSlider(net, "blocks.0", PUSH, "the baker", VERBS),
        {"strength": 2},
        refused=(("strength", 0.3, "choose from"), ("place", "nowhere", "choose from 'every token'")),
        calls=(
            (
                lambda _: SteeringSlider(samples.story_lm(), "blocks.0", PUSH, "the", {"verbs": ("run",)}),
                "there are 1 groups",
            ),
            (lambda _: SteeringSlider(samples.story_lm(), "blocks.0", PUSH[1:], "the", VERBS), "size of tensor"),
        ),
        model=samples.story_lm,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SteeringSlider": Controls(
        "Steer it",
        """
import torch
from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course.figures import SteeringSlider
lm, kept = samples.story_lm(), []
with lm.blocks[0].register_forward_hook(lambda module, args, output: kept.append(output[:, 2].mean(0).detach())):
    for nouns in (MANY, ONE):
        lm(torch.cat([samples.story_tokens(f"the {noun} near the cat") for noun in nouns[:4]]))
verbs, places = {"plural verbs": MANY_DO, "singular verbs": ONE_DOES}, {"every token": None, "baker only": 2}
slider = SteeringSlider(lm, "blocks.0", kept[0] - kept[1], "the baker near the friend", verbs, places=places)
slider
""",
        ("button:has-text('baker only')",),
        "slider.place, slider.strength",
        "baker only 0.0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"),
        "every token 1.0",
    ),
}
