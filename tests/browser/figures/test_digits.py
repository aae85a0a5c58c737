"""The figures of the digits in a real browser: mouse, keyboard, both themes, a narrow page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage, measure_boxes


def test_sent_and_received(figures: FigurePage) -> None:
    draw(figures, "SentReceived")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, best = widget.locator(".dg-sentence"), widget.locator(".dg-best")
    door, layer = (widget.get_by_role("button", name=name, exact=True) for name in ("DigitReader", "network.block1"))
    images = [widget.locator(f".se-{name} .se-pick") for name in ("sent", "received")]
    # It asks first, and tells nothing.
    expect(said).to_have_text("Which image must block1 receive, so that the model reads a 5? Click it.")
    expect(best.first).to_be_hidden()
    images[1].click()
    expect(said).to_contain_text("No, the other one. You sent a white digit on black. block1 received a black digit")
    expect(best).to_have_text(["5100.0 %", "099.5 %"])
    expect(best.first).to_be_visible()
    expect(widget.locator("img").nth(1)).to_have_attribute("alt", "What block1 received: a black digit on white.")
    figures.told("print(figure.picked)", "received")
    sent, received = (f".se-{name} img" for name in ("sent", "received"))
    assert figures.pixels(sent) != figures.pixels(received)

    # The hook sits where the output of block1 comes out; what went in comes to it from the entrance.
    def sits_at_the_exit_of(frame: int) -> None:
        around, peg, brought = measure_boxes(
            *(widget.locator(name) for name in (f".sc-frame >> nth={frame}", ".se-peg", ".se-look >> nth=0"))
        )
        assert peg["x"] + peg["width"] / 2 == pytest.approx(around["x"] + around["width"], abs=2)
        assert brought["x"] == pytest.approx(around["x"], abs=3)

    sits_at_the_exit_of(1)

    # On the whole model, by mouse: the same image, and the same wrong answer.
    door.click()
    sits_at_the_exit_of(0)
    expect(said).to_have_text("DigitReader received exactly what you sent, and the model reads a 0 (99.5 %).")
    expect(best).to_have_text(["099.5 %", "099.5 %"])
    expect(door).to_have_attribute("aria-pressed", "true")
    assert figures.pixels(sent) == figures.pixels(received)
    figures.told("print(figure.place)", "door")
    # Back by keyboard; and another guess.
    door.focus()
    page.keyboard.press("Shift+Tab")
    expect(layer).to_be_focused()
    page.keyboard.press("Enter")
    expect(said).to_contain_text("From your image, it would read a 5")
    figures.kernel("figure.picked = ''")
    expect(said).to_contain_text("Click it.")
    images[0].focus()
    page.keyboard.press("Enter")
    expect(said).to_contain_text("Right. You sent a white digit on black.")
    figures.kernel("figure.place = 'door'")
    expect(door).to_have_attribute("aria-pressed", "true")
    figures.kernel("figure.place = 'layer'")


def test_silence_a_channel(figures: FigurePage) -> None:
    draw(figures, "SilenceChannel")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, code, read = (widget.locator(name) for name in (".dg-sentence", ".hs-code", ".si-read"))
    channel = [widget.locator(".si-tile").nth(n) for n in range(16)]
    factor = widget.get_by_label("factor", exact=True)
    expect(widget.locator(".si-tile")).to_have_count(16)
    expect(said).to_have_text("Nothing is changed: the model reads an 8 (65.0 %).")
    expect(read).to_have_text("8")

    # By mouse.
    channel[6].click()
    before = figures.pixels(".si-changed")
    widget.get_by_role("button", name="Silence").click()
    expect(said).to_have_text("With channel 6 of block1 silenced, the model reads a 1 (71.1 %) instead of an 8.")
    expect(read).to_have_text("1")
    expect(widget.locator(".dg-best")).to_have_text("171.1 %")
    expect(code).to_contain_text("changed[:, 6] *= 0\n")
    expect(channel[6]).to_have_attribute("aria-label", re.compile("channel 6, .*; silenced: reads 1"))
    assert figures.pixels(".si-changed") != before
    figures.told("print(figure.channel, figure.factor, figure.tried)", "6 0.0 {'6': 1}")
    # What is shown is what the copied code gives.
    widget.get_by_role("button", name="Copy").click()
    expect(widget.locator(".dg-code [role=status]")).to_have_text("Copied.")
    assert figures.kernel("model, digit = net, one; exec(figure.code); print(int(scores.argmax()))") == "1"
    assert figures.kernel("import hookscope; print(len(hookscope.census(net)))") == "0"

    # By keyboard: the arrow keys go through the maps, and JupyterLab stays where it is.
    channel[6].focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(channel[15]).to_be_focused()
    expect(channel[15]).to_have_attribute("aria-checked", "true")
    expect(said).to_contain_text("channel 15 of block1 silenced, the model still reads an 8 (98.4 %)")
    page.keyboard.press("ArrowRight")  # the last one
    figures.told("print(figure.channel)", "15")
    page.keyboard.press("Tab")
    expect(factor).to_be_focused()
    page.keyboard.press("End")
    expect(said).to_contain_text("channel 15 of block1 times 2, the model reads a 1")
    expect(factor).to_have_attribute("aria-valuetext", "× 2")
    page.keyboard.press("ArrowLeft")
    expect(code).to_contain_text("changed[:, 15] *= 1.9\n")
    # From Python.
    figures.kernel("figure.channel, figure.factor = 6, 0")
    expect(read).to_have_text("1")

    # A model that raises: a sentence, and the figure goes on.
    figures.kernel("broken = net.block2.register_forward_pre_hook(lambda *_: 1 / 0)")
    channel[0].click()
    expect(widget.locator(".hs-problem")).to_contain_text("ZeroDivisionError: division by zero")
    figures.kernel("broken.remove()")
    channel[1].click()
    expect(widget.locator(".hs-problem")).to_be_hidden()
    expect(said).to_contain_text("channel 1 of block1 silenced")


def test_the_square_that_fools(figures: FigurePage) -> None:
    draw(figures, "FoolingSquare")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, code, pad, score = (widget.locator(name) for name in (".dg-sentence", ".hs-code", ".sq-pad", ".sq-score"))
    expect(said).to_have_text("Nothing is covered: the model reads a 9 (100.0 %).")
    expect(score).to_have_text("Squares tried: 0. Smallest that gives a 4: none yet.")
    expect(widget.locator(".sq-outline")).to_be_hidden()

    # By mouse: a square of 7 × 7 under the pointer.
    pad.scroll_into_view_if_needed()
    [box] = measure_boxes(pad)
    page.mouse.move(box["x"] + box["width"] * 13.5 / 28, box["y"] + box["height"] * 13.5 / 28)
    page.mouse.down()
    page.mouse.up()
    figures.told("print(figure.size, figure.row, figure.column, figure.tries)", "7 10 10 1")
    expect(said).to_contain_text("A 7 × 7 square covers 49 pixels")

    # By keyboard, to the one place where a square of 5 × 5 gives a 4.
    for key in ["-"] * 2 + ["ArrowUp"] * 6 + ["ArrowRight"] * 3:
        page.keyboard.press(key)
    expect(said).to_have_text("A 5 × 5 square covers 25 pixels: the model reads a 4 (50.2 %).")
    expect(score).to_contain_text("Smallest that gives a 4: 5 × 5, 25 pixels.")
    expect(widget.locator(".sq-read")).to_have_class(re.compile("sq-reached"))
    expect(code).to_contain_text("x[..., 4:9, 13:18] = 0")
    expect(pad).to_be_focused()
    figures.told("print(figure.size, figure.row, figure.column)", "5 4 13")

    # The hint, and the map.
    hint = widget.get_by_role("button", name="How small can it be?")
    hint.click()
    expect(widget.locator(".sq-hint")).to_have_text("It can be as small as 5 × 5, in only one place of 576.")
    widget.get_by_role("button", name="Try it in all places").click()
    expect(widget.locator(".sq-cells span")).to_have_count(64)
    expect(widget.locator(".sq-cells")).to_have_attribute("aria-label", re.compile("A 5 by 5 square in 64 places"))
    widget.get_by_label("Make it read a").select_option("5")
    expect(widget.locator(".sq-hint")).to_have_text("It can be as small as 3 × 3, in 8 places of 676.")
    widget.get_by_role("button", name="Uncover").click()
    expect(said).to_have_text("Nothing is covered: the model reads a 9 (100.0 %).")
    assert figures.kernel("import hookscope; print(len(hookscope.census(net)))") == "0"


def test_nothing_moves_while_the_square_is_used(figures: FigurePage) -> None:
    draw(figures, "FoolingSquare")
    widget, page = figures.page.locator(".hookscope"), figures.page
    names = (".dg-sentence", ".sq-pad", ".sq-left input", ".sq-left .hs-row >> nth=1", ".sq-read", ".dg-bars")

    def stands() -> list[list[float]]:
        around, *parts = measure_boxes(widget, *(widget.locator(name) for name in (*names, ".dg-code")))
        inside = [[round(p["x"] - around["x"]), round(p["y"] - around["y"]), p["width"]] for p in parts]
        return [[around["width"], around["height"]], *inside]

    before = stands()
    pad, hint = widget.locator(".sq-pad"), widget.locator(".sq-hint")
    pad.focus()
    page.keyboard.press("+")  # the first square: one more line of code
    expect(widget.locator(".hs-code")).to_contain_text("x[..., 0:7, 0:7] = 0")
    assert stands() == before
    figures.kernel("figure.size = 28")
    expect(widget.locator(".sq-left .hs-value")).to_have_text("28 × 28")
    assert stands() == before
    widget.get_by_role("button", name="How small can it be?").click()
    expect(hint).to_have_text("It can be as small as 5 × 5, in only one place of 576.")
    assert stands() == before
    figures.kernel(
        "figure.best, figure.goal = {'8': 28, '5': 12}, 5; figure.size, figure.row, figure.column = 12, 11, 11"
    )
    expect(widget.locator(".sq-score")).to_contain_text("Smallest that gives a 5: ")
    widget.get_by_role("button", name="Try it in all places").click()
    expect(widget.locator(".sq-cells span").first).to_be_visible()
    assert stands() == before
    widget.get_by_role("button", name="Uncover").click()
    expect(widget.locator(".dg-sentence")).to_contain_text("Nothing is covered")
    assert stands() == before


def test_the_sliding_filter(figures: FigurePage) -> None:
    draw(figures, "SlidingFilter")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, digit, canvas = widget.locator(".dg-sentence"), widget.locator(".sf-pad").first, widget.locator(".sf-canvas")
    tile = [widget.locator(".sf-tile").nth(n) for n in range(16)]
    play, fill, best = (widget.get_by_role("button", name=name) for name in ("Play", "Fill the map", "To the highest"))
    painted = "c => new Uint32Array(c.getContext('2d').getImageData(0, 0, 28, 28).data.buffer).filter(Boolean).length"

    # Before the guess nothing is told: by keyboard.
    expect(said).to_have_text(
        "Where will the map have its highest value? Click there on the digit, before anything is computed."
    )
    for button in (play, fill, best):
        expect(button).to_be_disabled()
    expect(widget.locator(".sf-product td")).to_have_text(["?"] * 25)
    assert canvas.evaluate(painted) == 0
    verdict = widget.locator(".sf-total .sf-verdict")  # beside the sum, where the learner looks
    expect(verdict).to_have_text("")
    digit.focus()
    for key in ["ArrowUp"] * 3 + ["ArrowLeft", "Enter"]:
        page.keyboard.press(key)
    expect(widget.locator(".sf-mark").first).to_be_visible()
    figures.told("print(figure.answer, figure.row, figure.column)", "[11, 13] 11 13")
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    assert canvas.evaluate(painted) == 1
    expect(verdict).to_have_text(figures.kernel("print(figure.verdict)"))
    expect(verdict).to_contain_text("The highest: 0.838.")

    # The patch has the grays of the digit: black is 0, white is 1.
    grays = "cells => cells.map((cell) => getComputedStyle(cell).backgroundColor.match(/\\d+/g).map(Number))"
    patch = widget.locator(".sf-patch td").evaluate_all(grays)
    drawn = figures.kernel("print(*(255 * five[0, 0, 9:14, 11:16]).flatten().tolist())").split()
    assert [level for level, *_ in patch] == pytest.approx([float(each) for each in drawn], abs=1.1)
    assert all(red == green == blue for red, green, blue in patch)

    # The arrow keys move the filter; products, sum and map follow, and are those of torch.
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_attribute("aria-label", re.compile("3 of 784 values"))
    figures.told("print(figure.row, figure.column)", "12 14")
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    numbers = [float(text.replace("−", "-")) for text in widget.locator(".sf-product td").all_inner_texts()]
    exact = [float(text) for text in figures.kernel("print(*figure.products[12 * 28 + 14].flatten().tolist())").split()]
    assert numbers == pytest.approx(exact, abs=0.0051)
    value = float(figures.kernel("print(figure.sums[12, 14].item())"))
    expect(widget.locator(".sf-sum strong")).to_have_text(f"= {value:.3f}".replace("-", "−"))

    # By mouse: the center of the filter is under the pointer.
    digit.scroll_into_view_if_needed()
    [box] = measure_boxes(digit)
    page.mouse.move(box["x"] + box["width"] * 5.5 / 28, box["y"] + box["height"] * 6.5 / 28)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 20.5 / 28, box["y"] + box["height"] * 6.5 / 28, steps=4)
    page.mouse.up()
    figures.told("print(figure.row, figure.column, figure.answer)", "6 20 [11, 13]")

    # Play fills the map from the top; with reduced motion it goes a row at a time.
    page.emulate_media(reduced_motion="no-preference")
    play.click()
    expect(widget.get_by_role("button", name="Pause")).to_be_visible()
    expect(canvas).to_have_attribute("aria-label", re.compile(r" [3-9]\d of 784 values"))
    widget.get_by_role("button", name="Pause").click()
    page.emulate_media(reduced_motion="reduce")
    many = canvas.evaluate(painted)
    row = int(figures.kernel("print(figure.row)"))
    widget.get_by_role("button", name=re.compile("Play|Next row")).click()
    assert canvas.evaluate(painted) > many
    figures.told("print(figure.row, figure.column)", f"{row + 1} 0")
    page.emulate_media(reduced_motion="no-preference")
    best.click()
    figures.told("print(figure.filled, (figure.row, figure.column) == figure.highest)", "True True")
    assert canvas.evaluate(painted) == 784
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    expect(said).to_contain_text("Where you clicked, it is ")

    # Another filter asks again; without the question it is a toy.
    tile[10].focus()
    page.keyboard.press("ArrowRight")
    expect(tile[11]).to_be_focused()
    expect(said).to_contain_text("Where will the map have its highest value?")
    expect(verdict).to_have_text("")
    assert canvas.evaluate(painted) == 0
    widget.get_by_role("button", name="Skip the question").click()
    tile[3].click()
    expect(tile[3]).to_have_attribute("aria-checked", "true")
    fill.click()
    figures.told("print(figure.channel, figure.filled, figure.asks)", "3 True False")
    assert canvas.evaluate(painted) == 784
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    assert figures.kernel("import hookscope; print(len(hookscope.census(net)))") == "0"


def test_where_it_looks(figures: FigurePage) -> None:
    draw(figures, "WhereItLooks")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, cells, code = (widget.locator(name) for name in (".dg-sentence", ".lk-cells", ".hs-code"))
    step = widget.get_by_label("length of the step", exact=True)
    expect(said).to_have_text("Nothing has moved: the model reads 8 (65.0 %).")
    expect(widget.locator(".lk-cells span")).to_have_count(49)
    framed = "spans => spans.flatMap((span, at) => (span.classList.contains('lk-highest') ? [at] : []))"
    highest = "print([int(figure.positions.argmax())])"
    assert str(widget.locator(".lk-cells span").evaluate_all(framed)) == figures.kernel(highest)

    # By mouse: another class, another map.
    colors = "spans => spans.map((span) => span.style.background)"
    before = widget.locator(".lk-cells span").evaluate_all(colors)
    widget.get_by_role("button", name="1", exact=True).click()
    expect(cells).to_have_attribute("aria-label", re.compile("Red positions raise the logit of 1, blue ones lower it"))
    expect(widget.get_by_role("button", name="1", exact=True)).to_have_attribute("aria-pressed", "true")
    assert widget.locator(".lk-cells span").evaluate_all(colors) != before
    expect(cells).to_have_attribute("aria-label", re.compile(r"It is in row \d of 7, column \d of 7\.$"))
    assert str(widget.locator(".lk-cells span").evaluate_all(framed)) == figures.kernel(highest)
    figures.told("print(figure.target, figure.step)", "1 0")

    # By keyboard: the step, and the class turns.
    step.focus()
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("by 0.2 % of its norm: the model reads 8")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("by 0.4 % of its norm: the model reads 1")
    expect(said).to_contain_text("no longer 8.")
    expect(code).to_contain_text("output - 0.004 * output.norm()")
    page.keyboard.press("End")
    expect(step).to_have_attribute("aria-valuetext", "4.0 % of the norm of the output")
    expect(widget.locator(".dg-best")).to_contain_text("99.8 %")
    figures.told("print(figure.target, figure.step, figure.read)", "1 20 1")
    assert figures.kernel("import hookscope; print(len(hookscope.census(net)))") == "0"


def test_digits_by_layer(figures: FigurePage) -> None:
    draw(figures, "DigitsByLayer")
    widget, page = figures.page.locator(".hookscope"), figures.page
    said, scatter, letters = widget.locator(".dl-sentence"), widget.locator(".dl-scatter"), widget.locator(".dl-letter")
    layer = widget.get_by_label("Layer", exact=True)
    untrained = widget.get_by_role("button", name="untrained", exact=True)
    trained = widget.get_by_role("button", name="trained", exact=True)
    expect(widget.locator(".dl-digit")).to_have_count(360)
    expect(said).to_have_text(
        "In the pixels, before any layer, 48 of 360 digits are nearest to the center of their class. "
        "Of the 29 fives, 0 are."
    )
    expect(widget.locator(".dl-wrong")).to_have_count(29)

    # By keyboard: the layer, and the sentence is that of Python.
    page.emulate_media(reduced_motion="reduce")
    lie = "dots => dots.map((dot) => dot.style.transform)"
    before = widget.locator(".dl-digit").evaluate_all(lie)
    layer.focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    figures.told("print(figure.names[figure.depth])", "block3.relu")
    expect(layer).to_have_attribute("aria-valuetext", "block3.relu")
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    expect(widget.locator(".dl-right")).to_have_count(24)
    assert widget.locator(".dl-digit").evaluate_all(lie) != before
    untrained.focus()
    page.keyboard.press("Enter")
    expect(untrained).to_have_attribute("aria-pressed", "true")
    figures.told("print(figure.network)", "untrained")
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    widget.get_by_role("button", name="eights", exact=True).press("Enter")
    figures.told("print(figure.digit)", "8")
    expect(said).to_contain_text("Of the 28 eights, ")
    follow = widget.get_by_role("button", name="Follow an 8")
    follow.press("Enter")
    figures.told("print(figure.picked >= 0 and int(test.labels[figure.picked]))", "8")
    picked = int(figures.kernel("print(figure.picked)"))
    expect(letters).to_have_text([*figures.kernel("print(''.join(each[figure.picked] for each in "
                                              "figure._data['reads']['untrained']))")])  # fmt: skip
    widget.get_by_role("button", name="Next 8").click()
    figures.told(f"print(figure.picked > {picked})", "True")
    expect(widget.get_by_role("img", name="The 8 that is picked")).to_be_visible()

    # By mouse: a center, a digit, a place in the chart.
    trained.click()
    widget.locator(".dl-anchor", has_text="1").click()
    figures.told("print(figure.digit, figure.picked)", "1 -1")
    place = figures.kernel(
        "import base64, numpy as np\n"
        "n = int((test.labels == 1).nonzero()[3])\n"
        "places = np.frombuffer(base64.b64decode(figure._data['places']['trained'][figure.depth]), '<i2')\n"
        "print(*places[2 * n:2 * n + 2] / 10)"
    )
    x, y = map(float, place.split())
    [box] = measure_boxes(scatter)
    page.mouse.click(box["x"] + box["width"] * (126 + x) / 252, box["y"] + box["height"] * (126 + y) / 252)
    expect(widget.locator(".dl-ring")).to_be_visible()
    figures.told("print(figure.picked >= 0)", "True")
    [chart] = measure_boxes(widget.locator(".dl-chart"))
    page.mouse.click(chart["x"] + chart["width"] * 50 / 450, chart["y"] + chart["height"] * 40 / 236)
    figures.told("print(figure.depth, figure.network)", "0 trained")

    # The word stands behind the dotted line, and on no mark of the chart.
    word, dotted = measure_boxes(widget.locator(".dl-word"), widget.locator(".dl-pixels"))
    marks = ".dl-chart :is(.dl-first, .dl-second) :is(circle, rect)"
    ends = widget.locator(marks).evaluate_all("all => all.map((mark) => mark.getBoundingClientRect().right)")
    assert word["x"] > max(*ends, dotted["x"] + dotted["width"])
    [chart] = measure_boxes(widget.locator(".dl-chart"))
    assert word["x"] + word["width"] <= chart["x"] + chart["width"]

    # From Python.
    figures.kernel("figure.depth, figure.network, figure.digit = 8, 'untrained', 3")
    expect(said).to_have_text(figures.kernel("print(figure.sentence)"))
    moves = "parts => parts.filter((part) => parseFloat(getComputedStyle(part).transitionDuration) > 0).length"
    assert widget.locator(".dl-digit").evaluate_all(moves) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert widget.locator(".dl-digit").evaluate_all(moves) == 360
