"""The residual river in a real JupyterLab: played, clicked, typed into, by keyboard, dark, narrow, with less motion."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.shared.lab import Lab, places

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

IMPORT = "from hookscope import samples\nfrom hookscope_course.scenes import ResidualRiver\nlm = samples.story_lm()"
RIVER = "river = ResidualRiver(lm, 'the dogs near the cat')\nriver"
TAPS = "taps = ResidualRiver(lm, 'the dogs near the cat', lens=False)\ntaps"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests."""
    lab.scratch("river", IMPORT, RIVER, TAPS)
    return lab


def the_river(lab: Lab, number: int = 0) -> Locator:
    found = lab.page.get_by_role("region", name="The residual river").nth(number)
    found.scroll_into_view_if_needed()
    return found


def tap(stage: Locator, name: str) -> Locator:
    return stage.locator(f"[data-tap='{name}']")


def at_rest(stage: Locator) -> None:
    """Wait until nothing plays and nothing flows."""
    expect(stage.locator(".sc-player[data-playing]")).to_have_attribute("data-playing", "false")
    expect(stage.locator(".sc-scene")).not_to_have_attribute("data-moves", "true")


def lens_words(stage: Locator) -> list[str]:
    words: list[str] = stage.locator(".rr-lens .sc-box").evaluate_all(
        "boxes => boxes.map((box) => box.lastElementChild.textContent)"
    )
    return words


def test_play_and_step(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    say = stage.locator(".sc-say")
    expect(say).to_contain_text("Row 5, cat: blocks.1.mlp adds ")
    assert lens_words(stage)[-1] == "wait"
    expect(stage.locator(".rr-lens.rr-found")).to_have_count(1)
    stage.get_by_role("slider", name="station").fill("0")
    expect(say).to_contain_text("the stream begins as the sum of two embeddings")
    lab.told("print(river.depth)", "0")
    expect(stage.locator(".rr-lens.rr-later")).to_have_count(4)
    stage.get_by_role("button", name="Next").click()
    expect(say).to_contain_text("blocks.0.attn adds ")
    at_rest(stage)
    lab.told("print(river.depth)", "1")
    stage.get_by_role("button", name="Play").click()
    expect(say).to_contain_text("blocks.1.mlp adds ", timeout=20_000)
    at_rest(stage)
    expect(stage.locator(".rr-lens.rr-later")).to_have_count(0)
    lab.told("print(river.depth)", "4")
    lab.look(stage, "river")


def test_what_the_page_says_is_what_the_kernel_says(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    for text in ("the birds near the horse", "the dogs near the cat"):
        lab.kernel(f"river.text = '{text}'")
        for token, depth in ((0, 0), (2, 3), (5, 4)):
            said = lab.kernel(f"river.token, river.depth = {token}, {depth}; print(river._say())").strip()
            expect(stage.locator(".sc-say")).to_have_text(said)
            words = lab.kernel("print([tops[river.token][0][0] for tops in river._found['top']])").strip()
            assert str(lens_words(stage)) == words
    for name in ("tokens", "blocks.0.norm2", "blocks.1", "lens after blocks.1.attn"):
        code = lab.kernel(f"river.tap = '{name}'; print(river.code)").strip()
        expect(stage.locator(".rr-detail pre")).to_have_text(code)
        assert "{" not in stage.locator(".rr-detail p").inner_text()


def test_taps_by_mouse_and_keyboard(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    lab.kernel("river.text, river.tap, river.depth = 'the dogs near the cat', '', 4")
    expect(stage.locator(".rr-detail")).to_have_text("Click a tap or a word: what does a hook get there?")
    tap(stage, "blocks.1.mlp").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("A forward hook on blocks.1.mlp gets an addition")
    expect(stage.locator(".rr-detail pre")).to_contain_text("lm.blocks[1].mlp.register_forward_hook(tap)")
    expect(tap(stage, "blocks.1.mlp")).to_have_attribute("aria-pressed", "true")
    lab.told("print(river.tap)", "blocks.1.mlp")
    tap(stage, "blocks.1").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("gets the sum so far: the stream.")
    tap(stage, "lens after blocks.1.attn").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("norm and head, applied to the stream here, read: ")

    # One of them is reached by Tab; arrows go from one to the next, and the notebook stays where it is.
    expect(stage.locator("[data-tap][tabindex='0']")).to_have_count(1)
    tap(stage, "lens after blocks.1.attn").focus()
    cell = lab.page.evaluate(ACTIVE_CELL)
    reached = set()
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        lab.page.keyboard.press(key)
        reached.add(lab.page.evaluate("() => document.activeElement.dataset.tap"))
        expect(stage.locator("[data-tap][aria-pressed='true']")).to_be_focused()
    assert len(reached) >= 4
    assert lab.page.evaluate(ACTIVE_CELL) == cell


def test_another_row_and_another_text(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    lab.kernel("river.text, river.depth = 'the dogs near the cat', 4")
    words = stage.get_by_role("group", name="Words of the text")
    words.get_by_role("button", name="dogs").click()
    expect(stage.locator(".sc-say")).to_contain_text("Row 2, dogs: ")
    lab.page.keyboard.press("ArrowLeft")
    expect(stage.locator(".sc-say")).to_contain_text("Row 1, the: ")
    lab.page.keyboard.press("End")
    lab.told("print(river.token)", "5")

    entry = stage.get_by_label("Text", exact=True)
    entry.fill("the baker near the lamps")
    entry.press("Enter")
    expect(stage.locator(".hs-problem")).to_contain_text(
        "the word 'lamps' is not in the vocabulary; did you mean 'lamp'"
    )
    expect(stage.locator(".sc-say")).to_contain_text("Row 5, cat: ")
    entry.fill("the baker near the lamp")
    stage.get_by_role("button", name="Read", exact=True).click()
    expect(stage.locator(".sc-say")).to_contain_text("Row 5, lamp: ")
    expect(stage.locator(".hs-problem")).to_be_hidden()
    expect(words.get_by_role("button")).to_have_count(6)
    lab.told("print(river.text, river.token)", "the baker near the lamp 5")
    entry.fill("Mary ball park Leo book Mary ball")
    entry.press("Enter")
    expect(stage.locator(".sc-say")).to_contain_text("Row 7, ball: ")
    assert lens_words(stage)[-2:] == ["park", "park"]
    lab.told("print(river.token)", "7")


def test_without_the_lens_there_is_no_word(opened: Lab) -> None:
    stage = the_river(opened, 1)
    expect(stage.locator(".rr-lens")).to_have_count(0)
    assert not re.search(r"\b(run|sleep|sing|wait)\b", stage.inner_text())
    opened.kernel("taps.lens = True")
    expect(stage.locator(".rr-lens")).to_have_count(5)
    opened.kernel("taps.lens = False")
    expect(stage.locator(".rr-lens")).to_have_count(0)


def test_with_less_motion_the_drop_is_there_at_once(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        lab.kernel("river.depth = 0")
        expect(stage.locator(".sc-say")).to_contain_text("two embeddings")
        stage.get_by_role("button", name="Next").click()
        assert stage.locator(".sc-scene").get_attribute("data-moves") == "false"
        lab.told("print(river.depth)", "1")
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_on_each_page_and_in_the_dark(opened: Lab) -> None:
    lab, stage = opened, the_river(opened)
    lab.kernel("river.text, river.depth, river.tap = 'the dogs near the cat', 4, 'blocks.1.mlp'")
    assert lab.axe(".hookscope") == []
    for width, height, name in ((1280, 720, "river-720"), (390, 844, "river-390")):
        lab.page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            lab.command("application:toggle-left-area")
        stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
        lab.settled(stage)
        [box] = places(stage.locator(".sc-figure"))
        assert box["width"] <= width
        if width > 1000:
            [pane] = places(lab.page.locator(".jp-WindowedPanel-outer").first)
            assert box["height"] <= pane["height"]
        lab.screenshot(name)
    lab.command("application:toggle-left-area")
    lab.page.set_viewport_size({"width": 1280, "height": 800})
