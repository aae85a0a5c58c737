"""The steering slider and the grid of the cache in a real browser: mouse, keyboard, both themes, a narrow page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_digits import sits
from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

SLIDER = """
import torch
from hookscope import samples
from hookscope.samples.stories import MANY, MANY_DO, ONE, ONE_DOES
from hookscope_course.scenes import CacheGrid, SteeringSlider
lm, kept = samples.story_lm(), []
with lm.blocks[0].register_forward_hook(lambda module, args, output: kept.append(output[:, 2].mean(0).detach())):
    for nouns in (MANY, ONE):
        lm(torch.cat([samples.story_tokens(f"the {noun} near the cat") for noun in nouns[:4]]))
verbs, places = {"plural verbs": MANY_DO, "singular verbs": ONE_DOES}, {"every token": None, "baker only": 2}
slider = SteeringSlider(lm, "blocks.0", kept[0] - kept[1], "the baker near the friend", verbs, places=places)
slider
""".strip()
GRID = """
from transformers import GPT2Config, GPT2LMHeadModel
gpt = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100, bos_token_id=None, eos_token_id=None))
grid = CacheGrid(gpt.eval(), "transformer.h.0")
grid
""".strip()


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests: starting costs most."""
    lab.scratch("steering", SLIDER, GRID)
    return lab


def test_the_learner_finds_the_cliff(opened: Lab) -> None:
    lab, stage = opened, opened.stage("Steer it")
    say, new, bar = stage.locator(".sv-say"), stage.locator(".sv-new"), stage.get_by_role("slider", name="strength")
    points = "line => (line.getAttribute('points').match(/,/g) ?? []).length"
    curve = stage.locator("polyline.sv-wanted")
    expect(new).to_have_text("sleeps . the friend")
    expect(say).to_have_text("At strength 0 it writes “sleeps”. Plural verbs have 1 %.")
    assert curve.evaluate(points) == 1, "the curve is not given away"

    bar.focus()
    for _ in range(4):
        bar.press("ArrowRight")
    expect(new).to_have_text(re.compile("^sleep "))
    expect(say).to_have_text("At strength 1 it writes “sleep”. That is what you want: plural verbs have 94 %.")
    expect(stage.locator(".sv-verdict")).to_have_text("plural verbs")
    assert curve.evaluate(points) == 5
    lab.told("print(slider.strength, slider.explored['every token'])", "1.0 [8, 12]")
    bar.press("End")
    expect(new).to_have_text("gave gave gave gave")
    expect(stage.locator(".sv-verdict")).to_have_text("another word")
    expect(stage.locator(".sv-control")).to_contain_text(
        "One of the random pushes, as long as yours: the baker near the friend"
    )
    lab.look(stage, "steering")

    stage.get_by_role("button", name="baker only").click()
    expect(stage.locator(".sv-verdict")).to_have_text("plural verbs")
    assert curve.evaluate(points) == 33, "from 0, where nothing was changed, to 8"
    bar.press("Home")
    lab.told("print(slider.place, slider.strength, slider.explored['baker only'])", "baker only -2.0 [0, 40]")
    lab.kernel("slider.place, slider.strength = 'every token', 2")
    expect(say).to_have_text(re.compile("^At strength 2 it writes"))
    sits(lab, stage, "steering")


def test_cells_are_marked_and_the_cache_shows_what_stays(opened: Lab) -> None:
    lab, stage = opened, opened.stage("The cache as a grid")
    say, hit = stage.locator(".sc-say"), stage.locator("button.kv-hit")
    stage.get_by_role("button", name="output[:, -1]").click()
    expect(hit).to_have_count(0)
    stage.get_by_role("button", name="with the cache, call 1, token 4", exact=True).click()
    lab.page.keyboard.press("ArrowDown")  # the nearest cell below is the new token
    lab.page.keyboard.press("Space")
    stage.get_by_role("button", name="without it, call 2, token 4", exact=True).click()
    lab.told("print(grid.change, grid.marks)", "output[:, -1] ['0,0,4', '0,1,5', '1,1,4']")
    lab.look(stage, "cache-marks")
    stage.get_by_role("button", name="Run generate()").click()
    expect(hit).to_have_count(8)
    expect(stage.locator(".kv-why")).to_have_text("2 of 8 found, 1 marked that is not hit.")
    expect(say).to_contain_text("The two runs compute different scores.")
    expect(stage.locator(".kv-grid .kv-stays")).to_have_count(1 + 2 + 3)
    lab.look(stage, "cache-run")

    stage.get_by_role("button", name="output[:, 3]", exact=True).click()
    expect(hit).to_have_count(0)
    stage.get_by_role("button", name="Run generate()").click()
    expect(stage.locator(".kv-error")).to_have_text("IndexError")
    expect(stage.locator(".kv-lost:visible")).to_have_count(2)
    lab.told("print(grid.ran, grid.hits)", "True {'with the cache': [[3]], 'without it': [[3], [3], [3], [3]]}")
    sits(lab, stage, "cache")
    lab.kernel("grid.change = 'output'; _ = grid.run()")
    expect(hit).to_have_count(8 + 26)


SCANS = """
from hookscope import samples
from hookscope_course.scenes import SteeredScans
import torch
net, (images, labels) = samples.digit_cnn(), samples.digits("train")
with torch.no_grad():
    outputs = net.block3(net.block2(net.block1(images)))
push = outputs[labels == 8].mean(0) - outputs[labels == 3].mean(0)
test = samples.digits("test")
pushes = {"toward 8": push, "nothing": 0 * push}
scans = SteeredScans(net, "block3", pushes, test.images[test.labels == 3][:24], 8, marked=[0])
scans
""".strip()


def test_scans_turn_one_after_the_other(lab: Lab) -> None:
    lab.scratch("scans", SCANS)
    stage = lab.stage("Scans that are pushed")
    say, tiles, bar = stage.locator(".sc-say"), stage.locator(".st-tile"), stage.get_by_role("slider", name="station")
    none = "Nothing is added to block3: the model reads 24 as 3. Repaired: 0 of 1. Changed: 0 of the other 23."
    expect(say).to_have_text(none)
    expect(stage.locator(".st-start.st-tile")).to_have_count(24)
    bar.focus()
    bar.press("End")
    lab.told("print(scans.strength, scans.read.count(8))", "1.0 24")
    whole = "block3 + 1 · (toward 8): the model reads 24 as 8. Repaired: 1 of 1. Changed: 23 of the other 23."
    expect(say).to_have_text(whole)
    expect(stage.locator(".st-mended.st-tile")).to_have_text(["✓ 8"])
    lab.look(stage, "scans")
    stage.get_by_role("button", name="nothing").click()
    expect(stage.locator(".st-start.st-tile")).to_have_count(24)
    expect(tiles.first).to_have_class(re.compile("st-marked"))
    bar.press("Home")
    lab.told("print(scans.push, scans.step)", "nothing 0")
    lab.kernel("scans.push, scans.step = 'toward 8', 20")
    expect(stage.locator(".st-goal.st-tile")).not_to_have_count(0)
    stage.get_by_role("button", name="Back").focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.told("print(scans.step)", "19")
    sits(lab, stage, "scans")
