"""A guess by click: buttons, a reason for a wrong one, a second try, and the answer only afterwards."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")
CODE = """
from hookscope_course import Guess, ____
guess = Guess(____, about="01.3")
guess
"""


def test_a_wrong_guess_gets_its_reason_and_a_second_try(lab: Lab) -> None:
    lab.scratch("a_guess", CODE)
    page = lab.page
    asked = page.get_by_role("region", name="Your guess")
    expect(asked.get_by_role("status")).to_contain_text("No guess yet.")
    asked.get_by_role("button", name="3", exact=True).click()
    expect(asked.get_by_role("status")).to_contain_text("Your guess: 3")
    expect(asked.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-pressed", "true")
    assert lab.axe(".hookscope") == []
    lab.told("print(guess.guess)", "3")

    lab.screenshot("guess")
    lab.scratch("a_guess_compared", CODE.replace("\nguess\n", "\nguess.choose(3)\nguess.compare(2)\n"))
    again = page.get_by_role("region", name="Second try")
    expect(again.get_by_role("status")).to_contain_text("Which of the three handles is in the variable handle?")
    expect(again).not_to_contain_text("It is 2")
    again.get_by_role("button", name="2", exact=True).focus()
    page.keyboard.press("Enter")
    expect(again.get_by_role("status")).to_contain_text("At the second try: 2")
    expect(again.get_by_role("button", name="Show the answer")).to_be_hidden()


# The kernel is that of the test before, and remembers what was clicked there. Only once: a rerun of the cell keeps.
FORGET = """
import sys
guessing = sys.modules.get("hookscope_course.practice.guess")
if guessing and "forgotten" not in globals():
    guessing._clicked.clear()
    guessing.score._wrong.clear()
    forgotten = True
"""


def active_cell(lab: Lab) -> int:
    return int(lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"))


def go_on(lab: Lab, cell: int) -> None:
    """Press Shift+Enter wherever the focus is, and wait until a cell is active and what ran is done."""
    lab.page.keyboard.press("Shift+Enter")
    lab.page.wait_for_function(
        """(cell) => {
            const panel = window.jupyterapp.shell.currentWidget;
            const idle = panel.sessionContext.session.kernel.status === "idle";
            const ran = panel.content.widgets[cell - 1].model.executionState !== "running";
            return idle && ran && panel.content.activeCellIndex === cell;
        }""",
        arg=cell,
    )
    lab.settled()


def test_shift_and_enter_keep_a_clicked_guess_and_go_on(lab: Lab) -> None:
    lab.scratch("a_guess_kept", FORGET + CODE, "guess.compare(2)", "print(guess.guess)", "1")
    page = lab.page
    late = page.get_by_role("region", name="Guess now")
    expect(late.get_by_role("status")).to_contain_text("You have not guessed yet.")
    expect(late).not_to_contain_text("No guess this time")
    expect(late.get_by_role("button", name="Show the answer")).to_be_visible()

    asked = page.get_by_role("region", name="Your guess")
    expect(asked).to_contain_text("Click your guess, or type it in place of ____. Then go on with Shift+Enter.")
    asked.get_by_role("button", name="3", exact=True).click()
    lab.settled()
    assert active_cell(lab) == 0
    go_on(lab, 1)
    expect(asked.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(asked.get_by_role("status")).to_contain_text("Your guess: 3.")
    go_on(lab, 2)
    again = page.get_by_role("region", name="Second try")
    expect(again.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-disabled", "true")
    high = again.evaluate("of => of.offsetHeight")
    again.get_by_role("button", name="2", exact=True).click()
    expect(again.get_by_role("status")).to_contain_text("At the second try: 2.")
    lab.settled()
    assert again.evaluate("of => of.offsetHeight") == high, "what is below jumps"
    assert again.evaluate("of => of.contains(document.activeElement)"), "Shift+Enter is dead"
    go_on(lab, 2)
    lab.run_all()
    lab.told("print(guess.guess)", "2")
    expect(page.locator(".jp-OutputArea", has_text="At the second try: 2.")).to_be_visible()


def test_several_can_be_chosen_by_mouse_and_keyboard(lab: Lab) -> None:
    lab.scratch("several", CODE.replace("01.3", "08.3"))
    asked = lab.page.get_by_role("region", name="Your guess")
    for name in ("list", "dict", "tensor"):
        asked.get_by_role("button", name=name, exact=True).click()
    asked.get_by_role("button", name="tensor", exact=True).press("Enter")  # take it back
    expect(asked.get_by_role("button", name="tensor", exact=True)).to_have_attribute("aria-pressed", "false")
    asked.get_by_role("button", name="This is my guess").press("Enter")
    expect(asked.get_by_role("status")).to_contain_text("Your guess: list, dict")
    assert lab.axe(".hookscope") == []
    lab.told("print(guess.guess)", "['list', 'dict']")
