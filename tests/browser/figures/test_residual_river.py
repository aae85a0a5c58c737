"""The residual river on a bare page: played, clicked, typed into, by keyboard, dark, narrow, with less motion."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import wait_until_still
from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def tap(stage: Locator, name: str) -> Locator:
    return stage.locator(f"[data-tap='{name}']")


def lens_words(stage: Locator) -> list[str]:
    words: list[str] = stage.locator(".rr-lens .sc-box").evaluate_all(
        "boxes => boxes.map((box) => box.lastElementChild.textContent)"
    )
    return words


def test_play_and_step(figures: FigurePage) -> None:
    stage = draw(figures, "ResidualRiver")
    say = stage.locator(".sc-say")
    expect(say).to_contain_text("Row 5, cat: blocks.1.mlp adds ")
    assert lens_words(stage)[-1] == "wait"
    expect(stage.locator(".rr-lens.rr-found")).to_have_count(1)
    stage.get_by_role("slider", name="station").fill("0")
    expect(say).to_contain_text("the stream begins as the sum of two embeddings")
    figures.told("print(river.depth)", "0")
    expect(stage.locator(".rr-lens.rr-later")).to_have_count(4)
    stage.get_by_role("button", name="Next").click()
    expect(say).to_contain_text("blocks.0.attn adds ")
    wait_until_still(stage)
    figures.told("print(river.depth)", "1")
    stage.get_by_role("button", name="Play").click()
    expect(say).to_contain_text("blocks.1.mlp adds ", timeout=20_000)
    wait_until_still(stage)
    expect(stage.locator(".rr-lens.rr-later")).to_have_count(0)
    figures.told("print(river.depth)", "4")


def test_what_the_page_says_is_what_the_kernel_says(figures: FigurePage) -> None:
    stage = draw(figures, "ResidualRiver")
    for text in ("the birds near the horse", "the dogs near the cat"):
        figures.kernel(f"river.text = '{text}'")
        for token, depth in ((0, 0), (2, 3), (5, 4)):
            said = figures.kernel(f"river.token, river.depth = {token}, {depth}; print(river._say())").strip()
            expect(stage.locator(".sc-say")).to_have_text(said)
            words = figures.kernel("print([tops[river.token][0][0] for tops in river._found['top']])").strip()
            assert str(lens_words(stage)) == words
    for name in ("tokens", "blocks.0.norm2", "blocks.1", "lens after blocks.1.attn"):
        code = figures.kernel(f"river.tap = '{name}'; print(river.code)").strip()
        expect(stage.locator(".rr-detail pre")).to_have_text(code)
        assert "{" not in stage.locator(".rr-detail p").inner_text()


def test_taps_by_mouse_and_keyboard(figures: FigurePage) -> None:
    stage = draw(figures, "ResidualRiver")
    figures.kernel("river.text, river.tap, river.depth = 'the dogs near the cat', '', 4")
    expect(stage.locator(".rr-detail")).to_have_text("Click a tap or a word: what does a hook get there?")
    tap(stage, "blocks.1.mlp").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("A forward hook on blocks.1.mlp gets an addition")
    expect(stage.locator(".rr-detail pre")).to_contain_text("lm.blocks[1].mlp.register_forward_hook(tap)")
    expect(tap(stage, "blocks.1.mlp")).to_have_attribute("aria-pressed", "true")
    figures.told("print(river.tap)", "blocks.1.mlp")
    tap(stage, "blocks.1").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("gets the sum so far: the stream.")
    tap(stage, "lens after blocks.1.attn").click()
    expect(stage.locator(".rr-detail p")).to_contain_text("norm and head, applied to the stream here, read: ")

    # One of them is reached by Tab; arrows go from one to the next, and the notebook stays where it is.
    expect(stage.locator("[data-tap][tabindex='0']")).to_have_count(1)
    tap(stage, "lens after blocks.1.attn").focus()
    reached = set()
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        figures.page.keyboard.press(key)
        reached.add(figures.page.evaluate("() => document.activeElement.dataset.tap"))
        expect(stage.locator("[data-tap][aria-pressed='true']")).to_be_focused()
    assert len(reached) >= 4


def test_another_row_and_another_text(figures: FigurePage) -> None:
    stage = draw(figures, "ResidualRiver")
    figures.kernel("river.text, river.depth = 'the dogs near the cat', 4")
    words = stage.get_by_role("group", name="Words of the text")
    words.get_by_role("button", name="dogs").click()
    expect(stage.locator(".sc-say")).to_contain_text("Row 2, dogs: ")
    figures.page.keyboard.press("ArrowLeft")
    expect(stage.locator(".sc-say")).to_contain_text("Row 1, the: ")
    figures.page.keyboard.press("End")
    figures.told("print(river.token)", "5")

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
    figures.told("print(river.text, river.token)", "the baker near the lamp 5")
    entry.fill("Mary ball park Leo book Mary ball")
    entry.press("Enter")
    expect(stage.locator(".sc-say")).to_contain_text("Row 7, ball: ")
    assert lens_words(stage)[-2:] == ["park", "park"]
    figures.told("print(river.token)", "7")


def test_without_the_lens_there_is_no_word(figures: FigurePage) -> None:
    draw(figures, "ResidualRiver", "taps = ResidualRiver(lm, 'the dogs near the cat', lens=False)\ntaps")
    stage = figures.stage("The residual river", 1)
    expect(stage.locator(".rr-lens")).to_have_count(0)
    assert not re.search(r"\b(run|sleep|sing|wait)\b", stage.inner_text())
    figures.kernel("taps.lens = True")
    expect(stage.locator(".rr-lens")).to_have_count(5)
    figures.kernel("taps.lens = False")
    expect(stage.locator(".rr-lens")).to_have_count(0)


def test_with_less_motion_the_drop_is_there_at_once(figures: FigurePage) -> None:
    stage = draw(figures, "ResidualRiver")
    figures.page.emulate_media(reduced_motion="reduce")
    try:
        figures.kernel("river.depth = 0")
        expect(stage.locator(".sc-say")).to_contain_text("two embeddings")
        stage.get_by_role("button", name="Next").click()
        assert stage.locator(".sc-scene").get_attribute("data-moves") == "false"
        figures.told("print(river.depth)", "1")
    finally:
        figures.page.emulate_media(reduced_motion="null")


def test_arcs_of_the_chosen_head(figures: FigurePage) -> None:
    arched = "arched = ResidualRiver(lm, 'the dogs near the cat', head='blocks.1.attn, head 0')\narched"
    plain = draw(figures, "ResidualRiver", arched.replace("head='blocks.1.attn, head 0'", "lens=False"), arched)
    expect(plain.locator(".rr-arcs path")).to_have_count(0)
    stage = figures.stage("The residual river", 2)
    look, arcs = stage.locator(".rr-look"), stage.locator(".rr-arcs path")
    expect(look).to_have_text(figures.kernel("print(arched._say_look())").strip())
    places = arcs.evaluate_all("arcs => arcs.map((arc) => parseFloat(arc.style.strokeWidth))")
    weights = figures.kernel("print([w for w in arched._found['looks'][arched.head][5] if w >= 0.01])").strip()
    assert str([round((wide - 1) / 9, 2) for wide in places]) == weights
    picker = stage.get_by_label("Arcs", exact=True)
    picker.focus()
    figures.page.keyboard.press("ArrowDown")
    figures.told("print(arched.head)", "blocks.1.attn, head 1")
    stage.get_by_role("group", name="Words of the text").get_by_role("button", name="dogs").click()
    expect(look).to_have_text(figures.kernel("print(arched._say_look())").strip())
    picker.select_option("")
    expect(arcs).to_have_count(0)
