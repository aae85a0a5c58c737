"""The map that plays: stepped, dragged, moved by keys, guessed."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import drag, height, peg, wait_until_still
from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes

FREE = "Drag a hook to another place. Click a hook, and it multiplies by ten."


def place(stage: Locator, words: str) -> tuple[float, float]:
    """Where the place is that has these words beside it."""
    [box] = measure_boxes(stage.locator(".sc-slot", has_text=re.compile(f"^{words}$")).locator("circle"))
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def values(stage: Locator) -> dict[str, str]:
    """What the boxes show."""
    texts: list[tuple[str, str]] = stage.locator(".sc-box").evaluate_all(
        "boxes => boxes.map((box) => [...box.querySelectorAll('text')].map((text) => text.textContent))"
    )
    return dict(texts)


def test_step_scrub_and_keys(figures: FigurePage) -> None:
    stage = draw(figures, "PlayingMap")
    say = stage.locator(".sc-say")
    expect(say).to_have_text("You call the layer with x = 3.")
    assert values(stage)["y"] == "?"
    stage.get_by_role("button", name="Next").click()
    expect(say).to_have_text("The forward pre-hook sees args = (3,) before forward runs.")
    expect(peg(stage, "forward_pre")).to_have_class(re.compile("sc-fires"))
    expect(stage.locator(".pm-now")).to_have_text("1forward pre-hookargs = (3,)")
    wait_until_still(stage)

    # The slider jumps, and so do Home and End; the notebook stays where it is.
    stage.get_by_role("slider", name="station").fill("3")
    expect(say).to_contain_text("returns 60. From now on, that is the output.")
    figures.told("print(play.index)", "3")
    stage.get_by_role("slider", name="station").focus()
    keys = {"End": 9, "ArrowLeft": 8, "Home": 0, "ArrowRight": 1, "ArrowUp": 0}
    for key, index in keys.items():
        figures.page.keyboard.press(key)
        figures.told("print(play.index)", str(index))
        wait_until_still(stage)

    # Space plays to the end, in flights; the values are there, and what the hook changed is outlined.
    before = int(stage.locator(".sc-scene").get_attribute("data-flights") or 0)
    stage.get_by_role("slider", name="station").focus()
    figures.page.keyboard.press("Space")
    expect(say).to_have_text("The pass is over: y = 60, x.grad = 20, weight.grad = 30.")
    wait_until_still(stage)
    assert int(stage.locator(".sc-scene").get_attribute("data-flights") or 0) == before + 9
    assert values(stage) == {
        "x": "3",
        "forward": "2 · 3",
        "y": "60",
        "grad of y": "1",
        "backward": "10",
        "weight.grad": "30",
        "x.grad": "20",
    }
    expect(stage.locator(".sc-box.sc-changed")).to_have_count(3)
    figures.told("print(play.index, play.values)", "9 {'y': 60.0, 'x.grad': 20.0, 'weight.grad': 30.0}")

    # Paused by Space, on the way.
    figures.kernel("play.speed = 0.01; play.index = 0")
    expect(say).to_have_text("You call the layer with x = 3.")
    stage.get_by_role("slider", name="station").focus()
    figures.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Pause")).to_have_count(1)
    expect(stage.locator(".sc-scene")).to_have_attribute("data-moves", "true")
    figures.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Play")).to_have_count(1)
    figures.kernel("play.speed = 8; play.index = 9")
    expect(say).to_contain_text("The pass is over")


def test_hooks_are_dragged_by_mouse(figures: FigurePage) -> None:
    stage = draw(figures, "PlayingMap")
    figures.kernel(
        "play.hooks = {'forward_pre': 'look', 'forward': 'multiply', 'full_backward': 'look'}; play.index = 9"
    )
    expect(stage.locator(".sc-say")).to_contain_text("The pass is over")

    # To another kind: at the end of a pass one sees at once what becomes of it.
    drag(peg(stage, "forward").locator(".sc-body"), place(stage, "tensor hookon y"), drop=False)
    expect(stage.locator(".sc-near")).to_have_text("tensor hookon y")
    figures.page.mouse.up()
    expect(stage.locator(".sc-say")).to_have_text("The pass is over: y = 6, x.grad = 20, weight.grad = 30.")
    expect(peg(stage, "tensor_y")).to_be_focused()
    expect(stage.locator(".pm-list li").nth(1)).to_have_text("2tensor hook on ygrad = 1 → 10")
    figures.told("print(play.hooks)", "{'forward_pre': 'look', 'tensor_y': 'multiply', 'full_backward': 'look'}")

    # A click changes what a hook does; an order and its numbers follow.
    peg(stage, "tensor_y").click()
    figures.told("print(play.values['x.grad'], play.hooks['tensor_y'])", "2.0 look")

    # Far from every place it goes back; a new hook comes out of the tray, and one that is dragged in is gone.
    x, y = place(stage, "tensor hookon weight")
    drag(peg(stage, "forward_pre").locator(".sc-body"), (x - 120, y))
    figures.told("print(list(play.hooks))", "['forward_pre', 'tensor_y', 'full_backward']")
    drag(peg(stage, "tray").locator(".sc-body"), place(stage, "post-accumulate-grad hook"))
    figures.told("print(list(play.hooks))", "['forward_pre', 'tensor_y', 'post_accumulate_grad', 'full_backward']")
    [tray] = measure_boxes(stage.locator(".sc-tray"))
    drag(peg(stage, "forward_pre").locator(".sc-body"), (tray["x"] + 100, tray["y"] + 20))
    figures.told("print(list(play.hooks))", "['tensor_y', 'post_accumulate_grad', 'full_backward']")
    expect(peg(stage, "forward_pre")).to_have_count(0)


def test_hooks_are_dragged_by_a_finger(figures: FigurePage) -> None:
    """The page must not scroll instead."""
    stage = draw(figures, "PlayingMap")
    figures.kernel("play.hooks = {'forward': 'multiply'}; play.index = 0")
    expect(stage.locator(".sc-peg")).to_have_count(2)
    [box] = measure_boxes(peg(stage, "forward").locator(".sc-body"))
    (x, y), (to_x, to_y) = (box["x"] + 14, box["y"] + 14), place(stage, "tensor hookon weight")
    browser = figures.page.context.new_cdp_session(figures.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": x, "y": y} for x, y in points]
        browser.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    browser.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        touch("touchStart", (x, y))
        for part in range(1, 11):
            touch("touchMove", (x + (to_x - x) * part / 10, y + (to_y - y) * part / 10))
        touch("touchEnd")
        expect(peg(stage, "tensor_weight")).to_have_count(1)
        figures.told("print(play.hooks)", "{'tensor_weight': 'multiply'}")
    finally:
        browser.send("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.detach()


def test_hooks_are_moved_by_keyboard_to_every_place(figures: FigurePage) -> None:
    stage = draw(figures, "PlayingMap")
    figures.kernel("play.hooks = {'forward': 'multiply'}; play.index = 0")
    expect(stage.locator(".sc-peg")).to_have_count(2)
    peg(stage, "forward").focus()
    for key, kind in (
        ("ArrowDown", "full_backward_pre"),
        ("ArrowRight", "retain_grad"),
        ("ArrowRight", "tensor_y"),
        ("ArrowUp", "forward"),
        ("ArrowLeft", "forward_pre"),
        ("ArrowDown", "full_backward"),
        ("ArrowRight", "tensor_weight"),
        ("ArrowDown", "post_accumulate_grad"),
        ("ArrowLeft", "tensor_weight"),
        ("ArrowLeft", "full_backward"),
        ("ArrowLeft", "tensor_x"),
    ):
        figures.page.keyboard.press(key)
        expect(peg(stage, kind)).to_be_focused()
        figures.told("print(list(play.hooks))", f"['{kind}']")
    label = re.compile("tensor hook on x, looks, fires as number 1; arrow keys move it")
    expect(peg(stage, "tensor_x")).to_have_attribute("aria-label", label)  # on its way it kept a gradient
    figures.page.keyboard.press("Enter")
    figures.told("print(play.hooks)", "{'tensor_x': 'multiply'}")
    figures.page.keyboard.press("Space")
    figures.told("print(play.hooks)", "{'tensor_x': 'look'}")
    figures.page.keyboard.press("Delete")
    figures.told("print(play.hooks)", "{}")
    expect(peg(stage, "tray")).to_be_focused()
    figures.page.keyboard.press("Enter")
    expect(peg(stage, "forward_pre")).to_be_focused()
    figures.told("print(play.hooks)", "{'forward_pre': 'look'}")


def test_what_the_page_says_is_what_the_kernel_says(figures: FigurePage) -> None:
    stage = draw(figures, "PlayingMap")
    every = "from hookscope_course.figures.playing_map.one_layer import MULTIPLIERS, PLACES\n"
    for hooks in ("dict.fromkeys(PLACES, 'look')", "dict.fromkeys(MULTIPLIERS, 'multiply') | {'retain_grad': 'look'}"):
        figures.kernel(f"{every}play.hooks = {hooks}; play.index = 0")
        expect(stage.locator(".sc-say")).to_have_text("You call the layer with x = 3.")
        stage.get_by_role("slider", name="station").focus()
        said = figures.kernel("print(*[play._say(station) for station in play.stations], sep='|')").split("|")
        for index, sentence in enumerate(said):
            stage.get_by_role("slider", name="station").fill(str(index))
            expect(stage.locator(".sc-say")).to_have_text(sentence)
        wait_until_still(stage)
        given = figures.kernel("print(*[row['is given'] for row in play.numbers() if row['fires']], sep='|')").split(
            "|"
        )
        for item, seen in zip(stage.locator(".pm-list code").all(), given, strict=True):
            expect(item).to_have_text(re.compile("^" + re.escape(seen)))


def test_guess_which_hook_fires_next(figures: FigurePage) -> None:
    stage = draw(figures, "PlayingMap, guess")
    ask, say = stage.locator(".sc-ask"), stage.locator(".sc-say")
    expect(ask).to_have_text("Which hook fires next? Click it. (1 of 3)")
    assert "fires as number" not in stage.inner_html()
    expect(stage.locator(".sc-badge:visible")).to_have_count(0)
    expect(stage.locator(".pm-list li")).to_have_count(0)
    expect(stage.get_by_role("button", name="Next")).to_have_attribute("aria-disabled", "true")
    expect(stage.locator(".sc-rail polygon:visible, .sc-tray:visible")).to_have_count(0)  # no arrow tells the order
    high = height(stage)

    # Wrong, with the reason, and a second try; then right, and the map goes there.
    peg(stage, "forward").click()
    expect(ask).to_have_text(
        "Not yet. The forward hook is given the output, so it waits until forward has run. Try again."
    )
    expect(say).to_have_text("You call the layer with x = 3.")
    peg(stage, "forward_pre").click()
    expect(say).to_have_text("The forward pre-hook sees args = (3,) before forward runs.")
    wait_until_still(stage)
    expect(ask).to_have_text("Right, the forward pre-hook. Which hook fires next? Click it. (2 of 3)")
    figures.told("print(quiz.index, quiz.guesses)", "1 [['forward', 'forward_pre']]")

    # Twice wrong, by keyboard: the map tells, and goes there.
    peg(stage, "full_backward").focus()
    figures.page.keyboard.press("Enter")
    expect(ask).to_contain_text("Try again.")
    peg(stage, "forward_pre").press("Enter")
    expect(ask).to_contain_text(
        "The forward pre-hook has fired already, and fires once in a pass. It is the forward hook."
    )
    expect(say).to_have_text("The forward hook sees output = 6 after forward has run.")
    wait_until_still(stage)
    peg(stage, "full_backward").click()
    # The last one plays the pass to its end, and from then on the map is free.
    expect(say).to_have_text("The pass is over: y = 6, x.grad = 2, weight.grad = 3.")
    expect(ask).to_have_text(f"Right. 1 of 3 at the first try, 1 at the second. {FREE}")
    wait_until_still(stage)
    figures.told("print(quiz.score)", "(1, 3)")
    expect(stage.locator(".sc-rail polygon:visible")).to_have_count(4)
    assert height(stage) == high
    peg(stage, "forward").click()
    expect(say).to_have_text("The pass is over: y = 60, x.grad = 20, weight.grad = 30.")
    expect(ask).to_have_text(FREE)
    peg(stage, "full_backward").press("ArrowLeft")
    figures.told("print(quiz.hooks)", "{'forward_pre': 'look', 'forward': 'multiply', 'tensor_x': 'look'}")
    stage.get_by_role("button", name="Start over").click()
    expect(say).to_have_text("You call the layer with x = 3.")
    expect(ask).to_have_text(FREE)
    figures.told("print(quiz.hooks)", "{'forward_pre': 'look', 'forward': 'look', 'full_backward': 'look'}")
    stage.get_by_role("button", name="Play").click()
    expect(say).to_have_text("The pass is over: y = 6, x.grad = 2, weight.grad = 3.")
    wait_until_still(stage)

    # From the kernel: a new round.
    figures.kernel("quiz.guesses = []")
    expect(ask).to_have_text("Which hook fires next? Click it. (1 of 3)")
    figures.kernel("quiz.choose('forward_pre')")
    expect(say).to_contain_text("The forward pre-hook sees")


def test_the_pass_shows_its_kinds_only(figures: FigurePage) -> None:
    stage = draw(figures, "hook_pass")
    expect(stage.locator(".sc-slot")).to_have_count(2)
    expect(stage.locator(".sc-tray")).to_have_count(0)
    peg(stage, "full_backward").click()
    figures.told("print(small.hooks['full_backward'])", "multiply")
    peg(stage, "full_backward").press("ArrowRight")
    figures.told("print(list(small.hooks))", "['full_backward_pre', 'full_backward']")
