"""A learner who is quicker than the kernel: in the end every widget shows what was asked last, and Python knows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.widget_cells import ALL_WIDGETS
from tests.shared.lab import Lab

pytestmark = [pytest.mark.usefixtures("nothing_goes_wrong_unseen"), pytest.mark.slow]

# Every answer takes as long as on a machine with much to do, each time another time.
SLOW = """
import itertools, time
from hookscope.widgets.base import HookWidget
pauses, hear = itertools.cycle([0.02, 0.15, 0.05, 0.3]), HookWidget.set_state
def slowly(self, state):
    time.sleep(next(pauses))
    hear(self, state)
    time.sleep(next(pauses))
HookWidget.set_state = slowly
""".strip()
ROUNDS = 2


@pytest.fixture(scope="module")
def slow(lab: Lab) -> Iterator[Lab]:
    lab.scratch("quick", SLOW, *ALL_WIDGETS)
    expect(lab.page.locator(".hookscope")).to_have_count(len(ALL_WIDGETS) - 1)
    yield lab
    lab.kernel("HookWidget.set_state = hear")


@pytest.fixture(autouse=True, params=["idle", "in a cell"])
def kernel_does(slow: Lab, request: pytest.FixtureRequest) -> None:
    """Let each test run beside a cell that takes its time, too: the kernel answers widgets in another thread."""
    if request.param == "in a cell":
        slow.start("start = time.time()", "while time.time() < start + 5: sum(range(10_000))")


def press(lab: Lab, at: Locator, keys: str, times: int = 1) -> None:
    at.focus()
    for key in keys.split() * times:
        lab.page.keyboard.press(key)


def test_gradient_playground(slow: Lab) -> None:
    stage = slow.stage("Gradient playground")
    kind = {name: stage.get_by_label(f"what is put on {name}", exact=True) for name in "abcd"}
    factor = stage.get_by_label("factor of the hook on d", exact=True)
    value = stage.get_by_label("value of c", exact=True)
    for _ in range(ROUNDS):
        for name in "dcba":
            kind[name].select_option("hook")
        kind["d"].select_option("nothing")
        kind["c"].select_option("nothing")
        kind["d"].select_option("hook")
        kind["b"].select_option("retain_grad, then hook")
        slow.settled(stage)
        said = "print(playing.choices)"
        assert slow.kernel(said) == "{'a': 'hook', 'b': 'retain_grad, then hook', 'd': 'hook'}"
        for name, chosen in {"a": "hook", "b": "retain_grad, then hook", "c": "nothing", "d": "hook"}.items():
            expect(kind[name]).to_have_value(chosen, timeout=1)
        press(slow, factor, "ArrowDown", 4)
        press(slow, value, "ArrowUp", 4)
        slow.settled(stage)
        expect(factor).to_have_value("-2", timeout=1)
        expect(value).to_have_value("8", timeout=1)
        row = stage.locator(".gp-numbers tbody tr", has=slow.page.locator("th:text-is('d')"))
        expect(row.locator("td").nth(6)).to_have_text("-16", timeout=1)
        assert slow.kernel("print(playing.factors['d'], playing.values['c'])") == "-2.0 8.0"
        run = stage.get_by_role("button", name="Run backward")
        for _ in range(3):
            run.click()
        slow.settled(stage)
        expect(stage.locator(".gp-times")).to_have_text("after 4 backward passes", timeout=1)
        press(slow, factor, "ArrowUp", 4)
        press(slow, value, "ArrowDown", 4)
        for name in "abd":
            kind[name].select_option("nothing")
        slow.settled(stage)
        assert slow.kernel("print(playing.choices, playing.runs, playing.grads['a'])") == "{} 1 12.0"


def test_layer_picker(slow: Lab) -> None:
    stage, image = slow.stage("Layer picker"), ".hs-grid > .hs-picture"
    layers, caption = stage.get_by_role("listbox", name="Layers"), stage.locator(".hs-caption")
    if not stage.get_by_role("button", name="Run again").is_visible():  # open already in the second round
        stage.get_by_text("More choices").click()
    seen = set()
    for _ in range(ROUNDS):
        press(slow, layers, "Home ArrowDown ArrowDown ArrowDown ArrowDown")
        stage.get_by_role("button", name="channel 3,").click()
        stage.get_by_role("button", name="Run again").click()
        press(slow, layers, "ArrowUp ArrowUp")
        slow.settled(stage)
        layer = slow.kernel("print(picker.layer)")
        assert str(layers.locator("[aria-selected=true]").get_attribute("aria-label")).startswith(f"{layer}, ")
        expect(caption).to_contain_text(f"{layer} (", timeout=1)
        assert slow.kernel("print(picker.channel, repr(picker.problem))") == "-1 ''"
        seen.add((layer, slow.pixels(image)))
    assert len(seen) == 1


def test_grad_input_explorer(slow: Lab) -> None:
    stage = slow.stage("The graph with both hooks in it")
    layer, shape, bias = (stage.get_by_label(name, exact=True) for name in ("Layer", "Input shape", "bias"))
    for _ in range(ROUNDS):
        layer.select_option("Conv2d")
        layer.select_option("ReLU")
        layer.select_option("Linear")
        slow.settled(stage)
        # A layer begins with its own choices, but a trip away and back that is quicker than a message is no change.
        was = bias.is_checked()
        bias.click()
        bias.click()
        bias.click()
        press(slow, shape, "ArrowDown ArrowDown ArrowUp ArrowDown")
        slow.settled(stage)
        expect(bias).to_be_checked(checked=not was, timeout=1)
        expect(shape).to_have_value("2,3,4", timeout=1)
        said = "print(explorer.layer, explorer.bias, explorer.input_shape)"
        assert slow.kernel(said) == f"Linear {not was} (2, 3, 4)"
        stage.get_by_role("button", name="different", exact=True).click()
        expect(stage.locator(".gi-verdict")).to_contain_text("(6, 5)", timeout=1000)


def test_patch_map(slow: Lab) -> None:
    stage = slow.stage("Patch map")
    grid = stage.get_by_role("grid")
    for _ in range(ROUNDS):
        stage.get_by_role("gridcell", name="1, position 2 'sat':").click()
        press(slow, grid, "Home ArrowUp ArrowRight ArrowDown ArrowRight ArrowLeft")
        slow.settled(stage)
        assert slow.kernel("print(patches.layer, patches.column, patches.cell.name)") == "1 1 1, position 1 'cat'"
        expect(stage.locator(".pm-caption")).to_contain_text("1, position 1 'cat':", timeout=1)
        expect(stage.locator("[aria-selected=true]")).to_have_attribute("data-place", "1", timeout=1)
        assert stage.locator(".pm-words").inner_text() == slow.kernel("print(patches.cell.words)")


def test_token_picker(slow: Lab) -> None:
    stage = slow.stage("Token picker")
    shows, head = stage.get_by_label("Show", exact=True), stage.get_by_label("Head", exact=True)
    cells, chosen = ".tk-map", ".tk-token[aria-selected=true]"
    for _ in range(ROUNDS):
        press(slow, stage.locator(chosen), "Home ArrowRight ArrowRight")
        press(slow, stage.locator(cells), "ArrowDown ArrowUp ArrowLeft ArrowRight ArrowRight")  # the upper row, token 3
        shows.select_option("norm")
        slow.settled(stage)  # the heads of another layer are not known before
        press(slow, head, "End")
        stage.get_by_label("as", exact=True).select_option("map")
        shows.select_option("change")
        stage.get_by_label("as", exact=True).select_option("lines")
        slow.settled(stage)
        said = "print(reads.layer, reads.token, reads.show, reads.head, reads.look, repr(reads.problem))"
        assert slow.kernel(said) == "1.0 3 change 3 lines ''"
        expect(stage.locator(".tk-told")).to_contain_text("1.0, token 3 on:", timeout=1)
        expect(stage.locator(chosen)).to_have_text("3on", timeout=1)
        assert stage.locator(f"{cells} img").get_attribute("alt") == slow.kernel("print(reads.alt)")
        press(slow, stage.locator(cells), "ArrowDown")
        slow.settled(stage)
        assert slow.kernel("print(reads.layer, reads.head)") == "1.1 1"  # it has two heads


def test_a_cell_and_the_page_at_once(slow: Lab) -> None:
    """A cell sets what the page does not, while the page sets the rest: neither loses what the other said."""
    stage = slow.stage("what the pre-hook returns")
    brightness, code = stage.get_by_label("brightness", exact=True), stage.locator(".ph-code")
    for turn in range(ROUNDS):
        slow.start("for n in range(60): playground.noise = n / 100")
        press(slow, brightness, "Home" if turn % 2 else "End")
        press(slow, brightness, "ArrowLeft ArrowRight", 6)
        slow.kernel("")
        slow.settled(stage)
        shown = code.inner_text()
        assert "standard deviation 0.59" in shown
        assert slow.kernel("print(playground.code)") == shown.strip()
        assert stage.get_by_label("noise", exact=True).input_value() == "0.59"
    stage.get_by_role("button", name="Reset").click()
    slow.settled(stage)
