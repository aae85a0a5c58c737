"""The steering slider: every state is what a plain hook and a loop give, one strength at a time."""

from __future__ import annotations

import pytest
import torch

from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course.figures import SteeringSlider
from hookscope_course.figures.steering_slider.figure import STRENGTHS

LM = samples.story_lm()
TEXT = "the baker near the friend"
VERBS = {"plural verbs": MANY_DO, "singular verbs": ONE_DOES}
PLACES = {"every token": None, "baker only": 2}
WHOLE = [strength for strength in STRENGTHS if strength == int(strength)]


def noun_mean(nouns):
    kept = []
    with torch.no_grad(), LM.blocks[0].register_forward_hook(lambda _, args, output: kept.append(output[:, 2].mean(0))):
        LM(torch.cat([samples.story_tokens(f"the {noun} near the cat") for noun in nouns]))
    return kept[0]


VECTOR = noun_mean(MANY[:4]) - noun_mean(ONE[:4])


def steered(vector, at):
    """What is written, and how likely each word is, with one vector."""

    def push(module, args, output):
        output = output.clone()
        output[:, slice(None) if at is None else at] += vector
        return output

    tokens, first = samples.story_tokens(TEXT), None
    with torch.no_grad(), LM.blocks[0].register_forward_hook(push):
        for _ in range(4):
            likely = LM(tokens)[:, -1].softmax(-1)
            first = likely[0] if first is None else first
            tokens = torch.cat([tokens, likely.argmax(-1, keepdim=True)], 1)
    return " ".join(samples.story_words(tokens)[1:]), first


@pytest.fixture(scope="module")
def slider():
    return SteeringSlider(LM, "blocks.0", VECTOR, TEXT, VERBS, places=PLACES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strength", WHOLE)
def test_each_state_is_that_of_a_plain_hook(slider, place, strength):
    slider.place, slider.strength = place, strength
    text, likely = steered(strength * VECTOR, PLACES[place])
    assert slider.written == text
    wanted = sum(float(likely[samples.STORY_WORDS.index(verb)]) for verb in MANY_DO)
    others = sum(float(likely[samples.STORY_WORDS.index(verb)]) for verb in ONE_DOES)
    assert slider._run["shares"] == pytest.approx([wanted, others, 1 - wanted - others], abs=2e-4)
    word = text.split()[5]
    other = "singular verbs" if word in ONE_DOES else "another word"
    assert slider.group == ("plural verbs" if word in MANY_DO else other)


def test_what_the_chapter_says_about_it(slider):
    slider.place, slider.strength = "every token", 1
    assert slider.written.startswith(f"{TEXT} sleep ")
    assert 1 <= slider.best <= 2
    slider.strength = 8
    assert slider.written == f"{TEXT} gave gave gave gave"
    slider.place = "baker only"
    assert slider.group == "plural verbs"
    random = slider._data["runs"]["baker only"]["random"]
    assert random[STRENGTHS.index(8)]["shares"][0] == pytest.approx(0.39, abs=0.006)
    assert random[STRENGTHS.index(1)]["shares"][0] < 0.05


def test_random_pushes_of_that_length_steer_seldom_and_the_control_is_their_mean(slider):
    random = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    many = [samples.STORY_WORDS.index(verb) for verb in MANY_DO]
    shares = [float(steered(each * VECTOR.norm() / each.norm(), None)[1][many].sum()) for each in random]
    mean = sum(shares) / 20
    assert mean < 0.3
    assert sum(share > 0.5 for share in shares) <= 3
    found = slider._data["runs"]["every token"]["random"][STRENGTHS.index(1)]["shares"][0]
    assert found == pytest.approx(mean, abs=2e-4)
    ends = slider._data["runs"]["every token"]["random"][-1]["shares"]
    assert ends[2] > 0.5, "a long push breaks the text, wherever it points"


def test_the_curves_are_known_as_far_as_the_slider_has_been():
    slider = SteeringSlider(LM, "blocks.0", VECTOR, TEXT, VERBS, places=PLACES)
    assert slider.explored == {"every token": [8, 8], "baker only": [8, 8]}
    slider.strength = 2
    slider.strength = -1
    slider.place = "baker only"
    assert slider.explored == {"every token": [4, 16], "baker only": [4, 8]}
