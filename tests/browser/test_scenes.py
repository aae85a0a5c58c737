"""The figures in a real JupyterLab: by mouse, by keyboard, played and scrubbed, dark, narrow, and with less motion."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.shared.lab import Lab, places

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

IMPORT = "from hookscope_course.scenes import BothEnds, GradientParts, PlayingMap, TenTimesGame, hook_pass"
MAP = "play = PlayingMap({'forward_pre': 'look', 'forward': 'multiply', 'full_backward': 'look'})\nplay.speed = 8\nplay"
QUIZ = "quiz = PlayingMap(['forward_pre', 'forward', 'full_backward'], guess=True)\nquiz.speed = 8\nquiz"
PASS = "small = hook_pass('full_backward_pre', 'full_backward')\nsmall"
GAME = "game = TenTimesGame()\ngame"
FREE = "Drag a hook to another place. Click a hook, and it multiplies by ten."
ENDS = "ends = BothEnds()\nends"
PARTS = "parts = GradientParts()\nparts"
TWICE = "twice = GradientParts('twice')\ntwice"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Lab:
    """Open and run one notebook for all tests: starting costs most."""
    lab.scratch("scenes", IMPORT, MAP, QUIZ, PASS, GAME, ENDS, PARTS, TWICE)
    return lab


def the_map(lab: Lab, number: int = 0) -> Locator:
    found = lab.page.get_by_role("region", name="The map that plays").nth(number)
    found.scroll_into_view_if_needed()
    return found


def the_game(lab: Lab) -> Locator:
    found = lab.page.get_by_role("region", name="The ten-times table")
    found.scroll_into_view_if_needed()
    return found


def peg(stage: Locator, kind: str) -> Locator:
    return stage.locator(f".sc-peg[data-kind='{kind}']")


def at_rest(stage: Locator) -> None:
    """Wait until nothing plays and nothing flies."""
    expect(stage.locator(".sc-player")).to_have_attribute("data-playing", "false")
    expect(stage.locator(".sc-scene")).not_to_have_attribute("data-moves", "true")


def drag(lab: Lab, what: Locator, to: tuple[float, float], *, drop: bool = True) -> None:
    [box] = places(what.locator(".sc-body"))
    lab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(*to, steps=8)
    if drop:
        lab.page.mouse.up()


def place(stage: Locator, words: str) -> tuple[float, float]:
    """Where the place is that has these words beside it."""
    [box] = places(stage.locator(".sc-slot", has_text=re.compile(f"^{words}$")).locator("circle"))
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def values(stage: Locator) -> dict[str, str]:
    """What the boxes show."""
    texts: list[tuple[str, str]] = stage.locator(".sc-box").evaluate_all(
        "boxes => boxes.map((box) => [...box.querySelectorAll('text')].map((text) => text.textContent))"
    )
    return dict(texts)


def height(stage: Locator) -> float:
    return places(stage)[0]["height"]


def test_step_scrub_and_keys(opened: Lab) -> None:
    lab, stage = opened, the_map(opened)
    say = stage.locator(".sc-say")
    expect(say).to_have_text("You call the layer with x = 3.")
    assert values(stage)["y"] == "?"
    stage.get_by_role("button", name="Next").click()
    expect(say).to_have_text("The forward pre-hook sees args = (3,) before forward runs.")
    expect(peg(stage, "forward_pre")).to_have_class(re.compile("sc-fires"))
    expect(stage.locator(".pm-now")).to_have_text("1forward pre-hookargs = (3,)")
    at_rest(stage)

    # The slider jumps, and so do Home and End; the notebook stays where it is.
    stage.get_by_role("slider", name="station").fill("3")
    expect(say).to_contain_text("returns 60. From now on, that is the output.")
    lab.told("print(play.index)", "3")
    stage.get_by_role("slider", name="station").focus()
    cell = lab.page.evaluate(ACTIVE_CELL)
    keys = {"End": 9, "ArrowLeft": 8, "Home": 0, "ArrowRight": 1, "ArrowUp": 0}
    for key, index in keys.items():
        lab.page.keyboard.press(key)
        lab.told("print(play.index)", str(index))
        at_rest(stage)
    assert lab.page.evaluate(ACTIVE_CELL) == cell

    # Space plays to the end, in flights; the values are there, and what the hook changed is outlined.
    before = int(stage.locator(".sc-scene").get_attribute("data-flights") or 0)
    stage.get_by_role("slider", name="station").focus()
    lab.page.keyboard.press("Space")
    expect(say).to_have_text("The pass is over: y = 60, x.grad = 20, weight.grad = 30.")
    at_rest(stage)
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
    lab.told("print(play.index, play.values)", "9 {'y': 60.0, 'x.grad': 20.0, 'weight.grad': 30.0}")

    # Paused by Space, on the way.
    lab.kernel("play.speed = 0.01; play.index = 0")
    expect(say).to_have_text("You call the layer with x = 3.")
    stage.get_by_role("slider", name="station").focus()
    lab.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Pause")).to_have_count(1)
    expect(stage.locator(".sc-scene")).to_have_attribute("data-moves", "true")
    lab.page.keyboard.press("Space")
    expect(stage.get_by_role("button", name="Play")).to_have_count(1)
    lab.kernel("play.speed = 8; play.index = 9")
    expect(say).to_contain_text("The pass is over")


def test_hooks_are_dragged_by_mouse(opened: Lab) -> None:
    lab, stage = opened, the_map(opened)
    lab.kernel("play.hooks = {'forward_pre': 'look', 'forward': 'multiply', 'full_backward': 'look'}; play.index = 9")
    expect(stage.locator(".sc-say")).to_contain_text("The pass is over")

    # To another kind: at the end of a pass one sees at once what becomes of it.
    drag(lab, peg(stage, "forward"), place(stage, "tensor hookon y"), drop=False)
    expect(stage.locator(".sc-near")).to_have_text("tensor hookon y")
    lab.page.mouse.up()
    expect(stage.locator(".sc-say")).to_have_text("The pass is over: y = 6, x.grad = 20, weight.grad = 30.")
    expect(peg(stage, "tensor_y")).to_be_focused()
    expect(stage.locator(".pm-list li").nth(1)).to_have_text("2tensor hook on ygrad = 1 → 10")
    lab.told("print(play.hooks)", "{'forward_pre': 'look', 'tensor_y': 'multiply', 'full_backward': 'look'}")

    # A click changes what a hook does; an order and its numbers follow.
    peg(stage, "tensor_y").click()
    lab.told("print(play.values['x.grad'], play.hooks['tensor_y'])", "2.0 look")

    # Far from every place it goes back; a new hook comes out of the tray, and one that is dragged in is gone.
    x, y = place(stage, "tensor hookon weight")
    drag(lab, peg(stage, "forward_pre"), (x - 120, y))
    lab.told("print(list(play.hooks))", "['forward_pre', 'tensor_y', 'full_backward']")
    drag(lab, peg(stage, "tray"), place(stage, "post-accumulate-grad hook"))
    lab.told("print(list(play.hooks))", "['forward_pre', 'tensor_y', 'post_accumulate_grad', 'full_backward']")
    [tray] = places(stage.locator(".sc-tray"))
    drag(lab, peg(stage, "forward_pre"), (tray["x"] + 100, tray["y"] + 20))
    lab.told("print(list(play.hooks))", "['tensor_y', 'post_accumulate_grad', 'full_backward']")
    expect(peg(stage, "forward_pre")).to_have_count(0)


def test_hooks_are_dragged_by_a_finger(opened: Lab) -> None:
    """The page must not scroll instead."""
    lab, stage = opened, the_map(opened)
    lab.kernel("play.hooks = {'forward': 'multiply'}; play.index = 0")
    expect(stage.locator(".sc-peg")).to_have_count(2)
    [box] = places(peg(stage, "forward").locator(".sc-body"))
    (x, y), (to_x, to_y) = (box["x"] + 14, box["y"] + 14), place(stage, "tensor hookon weight")
    browser = lab.page.context.new_cdp_session(lab.page)

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
        lab.told("print(play.hooks)", "{'tensor_weight': 'multiply'}")
    finally:
        browser.send("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.detach()


def test_hooks_are_moved_by_keyboard_to_every_place(opened: Lab) -> None:
    lab, stage = opened, the_map(opened)
    lab.kernel("play.hooks = {'forward': 'multiply'}; play.index = 0")
    expect(stage.locator(".sc-peg")).to_have_count(2)
    peg(stage, "forward").focus()
    cell = lab.page.evaluate(ACTIVE_CELL)
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
        lab.page.keyboard.press(key)
        expect(peg(stage, kind)).to_be_focused()
        lab.told("print(list(play.hooks))", f"['{kind}']")
    label = re.compile("tensor hook on x, looks, fires as number 1; arrow keys move it")
    expect(peg(stage, "tensor_x")).to_have_attribute("aria-label", label)  # on its way it kept a gradient
    lab.page.keyboard.press("Enter")
    lab.told("print(play.hooks)", "{'tensor_x': 'multiply'}")
    lab.page.keyboard.press("Space")
    lab.told("print(play.hooks)", "{'tensor_x': 'look'}")
    lab.page.keyboard.press("Delete")
    lab.told("print(play.hooks)", "{}")
    expect(peg(stage, "tray")).to_be_focused()
    lab.page.keyboard.press("Enter")
    expect(peg(stage, "forward_pre")).to_be_focused()
    lab.told("print(play.hooks)", "{'forward_pre': 'look'}")
    assert lab.page.evaluate(ACTIVE_CELL) == cell


def test_what_the_page_says_is_what_the_kernel_says(opened: Lab) -> None:
    lab, stage = opened, the_map(opened)
    every = "from hookscope_course.scenes.one_layer import MULTIPLIERS, PLACES\n"
    for hooks in ("dict.fromkeys(PLACES, 'look')", "dict.fromkeys(MULTIPLIERS, 'multiply') | {'retain_grad': 'look'}"):
        lab.kernel(f"{every}play.hooks = {hooks}; play.index = 0")
        expect(stage.locator(".sc-say")).to_have_text("You call the layer with x = 3.")
        stage.get_by_role("slider", name="station").focus()
        said = lab.kernel("print(*[play._say(station) for station in play.stations], sep='|')").split("|")
        for index, sentence in enumerate(said):
            stage.get_by_role("slider", name="station").fill(str(index))
            expect(stage.locator(".sc-say")).to_have_text(sentence)
        at_rest(stage)
        given = lab.kernel("print(*[row['is given'] for row in play.numbers() if row['fires']], sep='|')").split("|")
        for item, seen in zip(stage.locator(".pm-list code").all(), given, strict=True):
            expect(item).to_have_text(re.compile("^" + re.escape(seen)))


def test_guess_which_hook_fires_next(opened: Lab) -> None:
    lab, stage = opened, the_map(opened, 1)
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
    at_rest(stage)
    expect(ask).to_have_text("Right, the forward pre-hook. Which hook fires next? Click it. (2 of 3)")
    lab.told("print(quiz.index, quiz.guesses)", "1 [['forward', 'forward_pre']]")

    # Twice wrong, by keyboard: the map tells, and goes there.
    peg(stage, "full_backward").focus()
    lab.page.keyboard.press("Enter")
    expect(ask).to_contain_text("Try again.")
    peg(stage, "forward_pre").press("Enter")
    expect(ask).to_contain_text(
        "The forward pre-hook has fired already, and fires once in a pass. It is the forward hook."
    )
    expect(say).to_have_text("The forward hook sees output = 6 after forward has run.")
    at_rest(stage)
    lab.look(stage, "map-guess")
    peg(stage, "full_backward").click()
    # The last one plays the pass to its end, and from then on the map is free.
    expect(say).to_have_text("The pass is over: y = 6, x.grad = 2, weight.grad = 3.")
    expect(ask).to_have_text(f"Right. 1 of 3 at the first try, 1 at the second. {FREE}")
    at_rest(stage)
    lab.told("print(quiz.score)", "(1, 3)")
    expect(stage.locator(".sc-rail polygon:visible")).to_have_count(4)
    assert height(stage) == high
    peg(stage, "forward").click()
    expect(say).to_have_text("The pass is over: y = 60, x.grad = 20, weight.grad = 30.")
    expect(ask).to_have_text(FREE)
    peg(stage, "full_backward").press("ArrowLeft")
    lab.told("print(quiz.hooks)", "{'forward_pre': 'look', 'forward': 'multiply', 'tensor_x': 'look'}")
    stage.get_by_role("button", name="Start over").click()
    expect(say).to_have_text("You call the layer with x = 3.")
    expect(ask).to_have_text(FREE)
    lab.told("print(quiz.hooks)", "{'forward_pre': 'look', 'forward': 'look', 'full_backward': 'look'}")
    stage.get_by_role("button", name="Play").click()
    expect(say).to_have_text("The pass is over: y = 6, x.grad = 2, weight.grad = 3.")
    at_rest(stage)

    # From the kernel: a new round.
    lab.kernel("quiz.guesses = []")
    expect(ask).to_have_text("Which hook fires next? Click it. (1 of 3)")
    lab.kernel("quiz.choose('forward_pre')")
    expect(say).to_contain_text("The forward pre-hook sees")


def test_with_less_motion_nothing_flies(opened: Lab) -> None:
    lab, stage = opened, the_map(opened, 2)
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        lab.kernel("small.speed = 8")
        stage.get_by_role("button", name="Play").click()
        expect(stage.locator(".sc-say")).to_contain_text("The pass is over")
        at_rest(stage)
        expect(stage.locator(".sc-scene")).to_have_attribute("data-flights", "0")
    finally:
        lab.page.emulate_media(reduced_motion="null")
    lab.told("print(small.index)", "8")


def test_the_pass_shows_its_kinds_only(opened: Lab) -> None:
    lab, stage = opened, the_map(opened, 2)
    expect(stage.locator(".sc-slot")).to_have_count(2)
    expect(stage.locator(".sc-tray")).to_have_count(0)
    peg(stage, "full_backward").click()
    lab.told("print(small.hooks['full_backward'])", "multiply")
    peg(stage, "full_backward").press("ArrowRight")
    lab.told("print(list(small.hooks))", "['full_backward_pre', 'full_backward']")
    lab.look(stage, "map-pass")


def test_the_game(opened: Lab) -> None:
    lab, stage = opened, the_game(opened)

    def cell(column: str, hook: str) -> Locator:
        return stage.get_by_role("button", name=f"the {hook} changes {column}", exact=True)

    reasons = stage.locator(".tt-reason")
    expect(reasons).to_have_count(0)
    high = height(stage)
    cell("y", "forward pre-hook").click()
    cell("x.grad", "forward pre-hook").click()
    expect(cell("y", "forward pre-hook")).to_have_attribute("aria-pressed", "true")
    stage.get_by_role("button", name="Run the forward pre-hook").click()
    expect(reasons).to_have_text(
        [
            "✓ y becomes 60: forward gets 30 instead of 3, so y is 2 · 30 = 60.",
            "✓ x.grad becomes 20: x is multiplied by 10 on its way in, so x.grad is 10 · 2 = 20.",
            "✗ weight.grad becomes 30: weight is multiplied by what forward got, which is 30, so weight.grad is 30.",
        ]
    )
    assert height(stage) == high, "the reasons move no row"
    expect(stage.locator(".tt-known[aria-pressed='true']")).to_have_count(2)  # the marks stay
    expect(stage.locator(".sc-say")).to_have_text("0 of 1 rows right so far. Mark the next row, then run it.")
    lab.told("print(game.marks, game.revealed)", "{'forward_pre': ['y', 'x.grad']} ['forward_pre']")

    # By keyboard: the next row has the focus; arrows go from cell to cell.
    for key in ("Space", "ArrowRight", "Space", "ArrowRight", "Enter", "ArrowRight", "Enter"):
        lab.page.keyboard.press(key)
    expect(stage.locator(".sc-say")).to_have_text("1 of 2 rows right so far. Mark the next row, then run it.")
    lab.told("print(game.score)", "1 of 2 rows")
    lab.look(stage, "ten-times")
    # The rows that she did not mark are shown, and not counted.
    stage.get_by_role("button", name="Run all rows").click()
    expect(stage.locator(".sc-say")).to_have_text("1 of 2 rows right; 4 not guessed.")
    expect(stage.locator(".tt-result")).to_have_text(["2 of 3 why?", "3 of 3 why?", *["no guess why?"] * 4])
    expect(stage.locator(".tt-cell .tt-good, .tt-cell .tt-bad")).to_have_count(6)
    lab.told("print(game.score)", "1 of 2 rows; 4 not guessed")
    expect(stage.locator(".tt-cell.sc-changed")).to_have_count(12)
    stage.get_by_role("button", name="Why, for the full backward hook").click()
    expect(reasons.nth(2)).to_contain_text(re.compile("^weight.grad stays 3: the layer makes it from grad_output"))
    lab.look(stage, "ten-times-run")
    stage.get_by_role("button", name="Start over").click()
    lab.told("print(game.marks, game.revealed)", "{} []")
    lab.kernel("game.mark('full_backward', 'x.grad'); game.run('full_backward')")
    expect(stage.locator(".sc-say")).to_contain_text("1 of 1 rows right so far.")


def both_ends(lab: Lab) -> Locator:
    found = lab.page.get_by_role("region", name="Both ends of a module")
    found.scroll_into_view_if_needed()
    return found


def test_both_ends_by_mouse(opened: Lab) -> None:
    lab, stage = opened, both_ends(opened)
    say, why = stage.locator(".sc-say"), stage.locator(".be-why")
    gate, end = "[data-gate='{}']".format, "[data-end='{}']".format
    expect(say).to_have_text(
        "Click a gate to close it. Which gradients are 0 or None then? Click them: they turn dark. Then run backward."
    )
    expect(stage.locator(".be-sign:not(:empty)")).to_have_count(0)
    stage.locator(gate("stop_input")).click()
    expect(stage.get_by_role("switch", name="stop_input closed")).to_be_checked()
    for name in ("x1.grad", "W.grad"):
        stage.locator(end(name)).click()
        expect(stage.locator(end(name))).to_have_attribute("aria-pressed", "true")
    stage.get_by_role("button", name="Run backward").click()
    expect(say).to_have_text("stop_input is closed: x1.grad is 0, x2.grad is 0 and W.grad is 6.")
    expect(why).to_have_text(
        "1 of 3 right."
        "x2.grad: what stop_input returns goes on to x2, and it returns zeros."
        "W.grad: W.grad is computed from grad_output; stop_input changes only what leaves the module."
    )
    lab.told("print(ends.stops, ends.marks, ends.ran)", "['stop_input'] ['x1.grad', 'W.grad'] True")
    lab.look(stage, "both-ends")

    # A gate is dragged down, and the gradients are hidden again.
    [box] = places(stage.locator(gate("stop_output")).locator(".be-bar"))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    lab.page.mouse.move(x, y)
    lab.page.mouse.down()
    lab.page.mouse.move(x, y + box["height"], steps=6)
    lab.page.mouse.up()
    lab.told("print(ends.stops, ends.marks, ends.ran)", "['stop_input', 'stop_output'] [] False")
    expect(stage.locator(end("x1.grad"))).to_contain_text("?")
    stage.get_by_label("x2 requires grad").uncheck()
    stage.get_by_role("button", name="Run backward").click()
    expect(say).to_have_text("Both gates are closed: x1.grad is 0, x2.grad is None and W.grad is 0.")
    stage.get_by_role("button", name="Start over").click()
    lab.told("print(ends.stops, ends.plain, ends.ran)", "[] [] False")


def test_the_gates_look_like_what_can_be_clicked(opened: Lab) -> None:
    lab, stage = opened, both_ends(opened)
    lab.kernel("ends.start_over()")
    for name in ("stop_input", "stop_output"):
        button, gate = stage.locator(f"[data-button='{name}']"), stage.locator(f"[data-gate='{name}']")
        expect(button).to_have_text(f"Close {name}")
        expect(gate.locator(".be-handle")).to_have_count(1)
        for each in (button, gate):
            assert each.evaluate("each => getComputedStyle(each).cursor") == "pointer"
        at_rest = gate.locator(".be-bar").evaluate("bar => getComputedStyle(bar).strokeWidth")
        button.hover()  # the gate lights up, too
        expect(gate.locator(".be-bar")).not_to_have_css("stroke-width", at_rest)
        button.click()
        expect(button).to_have_text(f"Open {name}")
        expect(stage.get_by_role("switch", name=f"{name} closed")).to_be_checked()
        expect(gate).to_be_focused()
    lab.told("print(ends.stops)", "['stop_input', 'stop_output']")
    stage.locator("[data-button='stop_output']").click()
    lab.told("print(ends.stops)", "['stop_input']")
    lab.kernel("ends.start_over()")


def test_both_ends_by_keyboard_and_with_less_motion(opened: Lab) -> None:
    lab, stage = opened, both_ends(opened)
    lab.kernel("ends.start_over()")
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        cell = lab.page.evaluate(ACTIVE_CELL)
        stage.get_by_role("switch", name="stop_output closed").focus()
        for key in ("ArrowDown", "Tab", "Tab", "Space", "Tab", "Enter", "Tab", "Space", "Tab", "Enter"):
            lab.page.keyboard.press(key)
        expect(stage.locator(".sc-say")).to_have_text(
            "stop_output is closed: x1.grad is 0, x2.grad is 0 and W.grad is 0."
        )
        expect(stage.locator(".be-why")).to_contain_text("3 of 3 right.")
        lab.told("print(ends.stops, ends.marks, ends.ran)", "['stop_output'] ['x1.grad', 'x2.grad', 'W.grad'] True")
        assert lab.page.evaluate(ACTIVE_CELL) == cell
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_what_the_page_says_of_both_ends_is_what_the_kernel_says(opened: Lab) -> None:
    lab, stage = opened, both_ends(opened)
    for stops in ([], ["stop_input"], ["stop_output"], ["stop_input", "stop_output"]):
        for plain in ([], ["x1"], ["x2"], ["x1", "x2"]):
            told = lab.kernel(f"ends.stops, ends.plain = {stops}, {plain}; ends.run(); print(*ends.gradients.values())")
            for name, value in zip(("x1.grad", "x2.grad", "W.grad"), told.split(), strict=True):
                said = value if value == "None" else f"{float(value):g}"
                expect(stage.locator(f"[data-end='{name}'] .sc-box")).to_have_text(f"{name}{said}")


def test_both_ends_on_each_page(opened: Lab) -> None:
    lab, stage = opened, both_ends(opened)
    lab.kernel("ends.stops, ends.plain = ['stop_input'], []; ends.mark('W.grad'); ends.run()")
    for width, height, name in ((1280, 720, "ends-720"), (390, 844, "ends-390")):
        lab.page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            lab.command("application:toggle-left-area")
        stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
        lab.settled(stage)
        assert touching(stage) == [], name
        [box] = places(stage.locator(".sc-figure"))
        assert box["width"] <= width
        if width > 1000:
            [pane] = places(lab.page.locator(".jp-WindowedPanel-outer").first)
            assert box["height"] <= pane["height"]
        lab.screenshot(name)
    lab.command("application:toggle-left-area")
    lab.page.set_viewport_size({"width": 1280, "height": 800})


def parts(lab: Lab, name: str = "Parts of a gradient") -> Locator:
    found = lab.page.get_by_role("region", name=name)
    found.scroll_into_view_if_needed()
    return found


def asks(stage: Locator, **guesses: str) -> None:
    for name, text in guesses.items():
        stage.locator(f"[data-asks='{name.replace('_', '.')}']").fill(text)


def test_parts_by_mouse(opened: Lab) -> None:
    lab, stage = opened, parts(opened)
    run = stage.get_by_role("button", name="Run backward")
    expect(stage.locator("[data-part='out step 2']")).to_have_text("?")
    expect(run).to_have_attribute("aria-disabled", "true")
    asks(stage, w_grad="18")
    run.click()
    expect(stage.locator(".sc-say")).to_have_text(
        "The parts of the three steps add up: 4 + 8 + 6 = 18.", timeout=20_000
    )
    expect(stage.locator(".pt-why")).to_contain_text("1 of 1 right.")

    peg_ = stage.locator("[data-peg='main']")
    [slot] = places(stage.locator("[data-place='h2'] circle"))
    drag(lab, peg_, (slot["x"] + slot["width"] / 2, slot["y"] + slot["height"] / 2))
    lab.told("print(parts.place, parts.effect, parts.ran)", "h2 look False")
    stage.get_by_label("The hook", exact=True).select_option("double")
    asks(stage, got="4", w_grad="30")
    run.click()
    expect(stage.locator(".sc-say")).to_have_text(
        "The hook on h2 fires once. It gets 2, and returns 4. w.grad is 8 + 16 + 6 = 30.", timeout=20_000
    )
    expect(stage.locator(".pt-why")).to_have_text(
        "1 of 2 right.the hook gets 2: the gradient of h2 is w, 2, times that of h3, 1."
    )
    lab.told("print(parts.guesses, parts.ran)", "{'got': '4', 'w.grad': '30'} True")
    lab.look(stage, "parts")


def test_parts_by_keyboard_and_with_less_motion(opened: Lab) -> None:
    lab, stage = opened, parts(opened)
    lab.kernel("parts.start_over()")
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        peg_ = stage.locator("[data-peg='main']")
        peg_.focus()
        cell = lab.page.evaluate(ACTIVE_CELL)
        for key in ("ArrowUp", "ArrowLeft", "Enter"):
            lab.page.keyboard.press(key)
        lab.told("print(parts.place, parts.effect)", "step 2 double")
        lab.kernel("parts.place = 'w'")
        expect(peg_).to_have_attribute("aria-label", re.compile("hook on w, doubles"))
        asks(stage, got="18", w_grad="36")
        stage.locator("[data-asks='w.grad']").press("Enter")
        expect(stage.locator(".pt-why")).to_contain_text("2 of 2 right.")
        assert lab.page.evaluate(ACTIVE_CELL) == cell
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_a_derivative_of_a_derivative(opened: Lab) -> None:
    lab, stage = opened, parts(opened, "A gradient of a gradient")
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        for effect, second in (("look", "12"), ("double", "40"), ("removed", "24"), ("detach", "8")):
            stage.get_by_label("The hook", exact=True).select_option(effect)
            asks(stage, first="4" if effect == "look" else "8", second=second)
            stage.get_by_role("button", name="Differentiate twice").click()
            expect(stage.locator(".pt-why")).to_contain_text("2 of 2 right.")
            lab.told("print(twice.gradients['second'])", f"{second}.0")
    finally:
        lab.page.emulate_media(reduced_motion="null")


def test_parts_on_each_page(opened: Lab) -> None:
    lab = opened
    lab.kernel("parts.start_over(); parts.place = 'h2'; parts.effect = 'double'; parts.run()")
    for name, file in (("Parts of a gradient", "parts"), ("A gradient of a gradient", "twice")):
        stage = parts(lab, name)
        for width, tall in ((1280, 720), (390, 844)):
            lab.page.set_viewport_size({"width": width, "height": tall})
            if width < 1000:
                lab.command("application:toggle-left-area")
            stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
            lab.settled(stage)
            assert touching(stage) == [], (name, width)
            [box] = places(stage.locator(".sc-figure"))
            assert box["width"] <= width
            lab.screenshot(f"{file}-{width}")
            if width < 1000:
                lab.command("application:toggle-left-area")
        lab.page.set_viewport_size({"width": 1280, "height": 800})


def test_looks(opened: Lab) -> None:
    lab, stage = opened, the_map(opened)
    lab.kernel(
        "from hookscope_course.scenes.one_layer import PLACES\n"
        "play.hooks = dict.fromkeys(PLACES, 'look') | {'forward': 'multiply'}; play.index = 10"
    )
    expect(stage.locator(".sc-say")).to_contain_text("The tensor hook on weight")
    lab.look(stage, "map")

    # All of it is in sight at 1280×720 with the file browser open, and no words touch.
    for width, height, name in ((1280, 720, "map-720"), (390, 844, "map-390")):
        lab.page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            lab.command("application:toggle-left-area")
        stage.evaluate("stage => stage.scrollIntoView({ block: 'start' })")
        lab.settled(stage)
        assert touching(stage) == [], name
        [box] = places(stage.locator(".sc-figure"))
        assert box["width"] <= width
        if width > 1000:
            expect(lab.page.locator(".jp-FileBrowser")).to_be_visible()
            [pane] = places(lab.page.locator(".jp-WindowedPanel-outer").first)
            assert box["height"] <= pane["height"]
        lab.screenshot(name)
    lab.command("application:toggle-left-area")


def touching(stage: Locator) -> list[str]:
    """Return the words in the scene that overlap others, a hook, or the edge."""
    found: list[str] = stage.locator(".sc-scene").evaluate(
        """(scene) => {
            const rect = (element) => element.getBoundingClientRect();
            const seen = ":scope > text, .sc-slot tspan, .sc-box text, g[aria-hidden] > text:not(.sc-sign)";
            const alone = (text) => !text.closest(".sc-token, .sc-peg") && !text.querySelector("tspan + tspan");
            const texts = [...scene.querySelectorAll(seen)].filter((text) => text.textContent && alone(text));
            const hooks = [...scene.querySelectorAll(".sc-body, .sc-badge circle")]
                .filter((hook) => rect(hook).width);
            const lie = (a, b, c, d) => a < d - 1 && c < b - 1;
            const over = (a, b) =>
                lie(a.left, a.right, b.left, b.right) && lie(a.top, a.bottom - 1, b.top, b.bottom - 1);
            const bad = [];
            texts.forEach((text, at) => {
                const a = rect(text);
                for (const other of texts.slice(at + 1)) {
                    if (text.parentNode === other.parentNode || text.contains(other)) continue;
                    if (over(a, rect(other))) bad.push(`${text.textContent} × ${other.textContent}`);
                }
                for (const hook of hooks) {
                    const b = rect(hook);
                    const [x, y] = [(b.left + b.right) / 2, (b.top + b.bottom) / 2];
                    const across = Math.max(a.left - x, 0, x - a.right);
                    const down = Math.max(a.top + 3 - y, 0, y - a.bottom + 3);
                    if (Math.hypot(across, down) < b.width / 2) bad.push(`${text.textContent} × a hook`);
                }
                const out = a.left < rect(scene).left - 1 || a.right > rect(scene).right + 1;
                if (out) bad.push(`${text.textContent} × the edge`);
            });
            return [texts.length > 20 ? [] : ["few words"], ...bad].flat();
        }"""
    )
    return found
