"""A guess by click: buttons, a reason for a wrong one, a second try, and the answer only afterwards."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import expect

from hookscope_course.learner.edition import FOLD_HEADING, FOLDED
from tests.shared.lab import KERNEL, Lab

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
    again = page.get_by_role("region", name="Try again")
    expect(again.get_by_role("status")).to_contain_text("Which of the three handles is in the variable handle?")
    expect(again).not_to_contain_text("It is 2")
    again.get_by_role("button", name="2", exact=True).focus()
    page.keyboard.press("Enter")
    expect(again.get_by_role("status")).to_contain_text("Right, at the second try. The answer is 2.")
    expect(again.get_by_role("button", name="Show the answer")).to_be_hidden()


# The kernel is that of the test before, and remembers what was clicked there. Only once: a rerun of the cell keeps.
FORGET = """
import sys
guessing = sys.modules.get("hookscope_course.practice.guess")
if guessing and "forgotten" not in globals():
    guessing._clicked_guesses.clear()
    sys.modules["hookscope_course.practice.guess_widget"]._unfinished_guesses.clear()
    guessing.guess_results._wrong_guesses.clear()
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
    assert active_cell(lab) == 1, "the press is wasted on the cell that has just been answered"
    expect(asked.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(asked.get_by_role("status")).to_contain_text("Your guess: 3.")
    go_on(lab, 2)
    again = page.get_by_role("region", name="Try again")
    expect(again.get_by_role("button", name="3", exact=True)).to_have_attribute("aria-disabled", "true")
    high = again.evaluate("of => of.offsetHeight")
    again.get_by_role("button", name="2", exact=True).click()
    expect(again.get_by_role("status")).to_contain_text("Right, at the second try. The answer is 2.")
    lab.settled()
    assert again.evaluate("of => of.offsetHeight") == high, "what is below jumps"
    assert active_cell(lab) == 2
    asked.hover()
    page.wait_for_function("([of, high]) => of.offsetHeight < high", arg=[again.element_handle(), high])
    go_on(lab, 3)
    lab.run_all()
    lab.told("print(guess.guess)", "2")
    expect(page.locator(".jp-OutputArea", has_text="Right, at the second try.")).to_be_visible()


def test_by_keyboard_the_focus_stays_and_shift_and_enter_go_on(lab: Lab) -> None:
    lab.scratch("a_guess_by_key", FORGET + CODE, "guess.compare(2)", "1", run=False)
    page = lab.page
    page.locator(".jp-Cell").first.click()
    go_on(lab, 1)
    button = page.get_by_role("region", name="Your guess").get_by_role("button", name="3", exact=True)
    button.press("Enter")
    lab.settled()
    assert button.evaluate("of => of === document.activeElement")
    go_on(lab, 1)
    go_on(lab, 2)
    again = page.get_by_role("region", name="Try again")
    again.get_by_role("button", name="2", exact=True).press("Enter")
    expect(again.get_by_role("status")).to_contain_text("Right, at the second try.")
    lab.settled()
    assert again.evaluate("of => of.contains(document.activeElement)"), "Shift+Enter is dead"
    go_on(lab, 2)


def test_cards_in_their_places_stay_when_the_cell_runs_again(lab: Lab) -> None:
    lab.scratch("some_cards", FORGET + CODE.replace("01.3", "02.1"), "1")
    asked = lab.page.get_by_role("region", name="Your guess")
    asked.get_by_role("button", name="everywhere", exact=True).click()
    lab.settled()
    assert active_cell(lab) == 0, "the choice is not complete"
    go_on(lab, 1)
    expect(asked.locator(".gs-placed")).to_have_text(["everywhere"])


def test_several_can_be_chosen_by_mouse_and_keyboard(lab: Lab) -> None:
    lab.scratch("several", CODE.replace("01.3", "08.3"))
    asked = lab.page.get_by_role("region", name="Your guess")
    expect(asked.get_by_role("button", name="This is my guess")).to_have_count(0)
    tuples = asked.get_by_role("button", name="tuple", exact=True)
    tuples.click()
    expect(asked.get_by_role("status")).to_contain_text("Your guess: tuple")
    tuples.click()
    expect(asked.get_by_role("status")).to_contain_text("No guess yet.")
    for name in ("list", "dict", "tensor"):
        asked.get_by_role("button", name=name, exact=True).click()
    asked.get_by_role("button", name="tensor", exact=True).press("Enter")  # take it back
    expect(asked.get_by_role("button", name="tensor", exact=True)).to_have_attribute("aria-pressed", "false")
    expect(asked.get_by_role("status")).to_contain_text("Your guess: dict, list")
    assert lab.axe(".hookscope") == []
    lab.told("print(guess.guess)", "['dict', 'list']")


def test_a_reason_and_its_code_open_when_shift_and_enter_come_to_them(lab: Lab) -> None:
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    fold = text(FOLD_HEADING, metadata={FOLDED: True})
    cells = [code(FORGET + CODE), code("guess.compare(2)"), fold, text("It is so:"), code("'shown'"), text("## 2")]
    notebook = nbformat.v4.new_notebook(cells=[*cells, *(code("1") for _ in range(30))], metadata=KERNEL)
    nbformat.write(notebook, lab.folder / "a_fold.ipynb")
    lab.open("a_fold.ipynb", again=True)
    page = lab.page
    page.locator(".jp-Cell").first.click()
    go_on(lab, 1)
    expect(page.get_by_role("region", name="Your guess")).to_be_visible()
    go_on(lab, 2)
    expect(page.get_by_role("region", name="Guess now")).to_be_visible()
    reason, shown = page.locator("p", has_text="It is so:"), page.locator(".cm-line", has_text="shown")
    expect(reason).to_be_hidden()
    expect(shown).to_be_hidden()
    go_on(lab, 3)
    expect(reason).to_be_visible()
    expect(reason).to_be_in_viewport()
    expect(shown).to_be_visible()
