"""A guess by click: buttons, a reason for a wrong one, a second try, and the answer only afterwards."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import expect

from hookscope_course.learner.learner_edition import REASON
from hookscope_course.missing_names import RESTARTED
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
import pathlib, sys
if "forgotten" not in globals():
    for name in ("tries.json", "guesses.json"):
        pathlib.Path(".hookscope", name).unlink(missing_ok=True)
    if guessing := sys.modules.get("hookscope_course.practice.guess"):
        sys.modules["hookscope_course.practice.guess_widget"]._unfinished_guesses.clear()
        guessing.guess_results._tries.clear()
        guessing.guess_results._outcomes.clear()
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
    expect(late).not_to_contain_text("The answer:")
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


OPEN = """
import pathlib
from hookscope_course.practice import guess_results
for name in ("tries.json", "guesses.json"):
    pathlib.Path(".hookscope", name).unlink(missing_ok=True)
guess_results._tries.clear()
guess_results._outcomes.clear()
from hookscope_course import Guess, ____
"""


def test_nothing_tells_the_answer_until_it_is_given_and_a_restart_keeps_all(lab: Lab) -> None:
    """What a learner does: a wrong guess, Shift+Enter on each cell, clicks on closed cells; then the answer."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [
        code(OPEN),
        code('guess = Guess(____, about="04.1")\nguess'),
        code("print('it is a', 'list')"),
        code("guess.compare('list')"),
        code("{'the': 'list'}", metadata={"jupyter": {"source_hidden": True}}),
        code(REASON, metadata={"jupyter": {"source_hidden": True}}),
        text("## 2"),
        code('guess = Guess(____, about="04.2")\nguess'),
        code("'the next question ' + 'is open'"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), lab.folder / "a_gate.ipynb")
    lab.open("a_gate.ipynb", again=True)
    page = lab.page
    page.locator(".jp-Cell").first.click()
    go_on(lab, 1)
    go_on(lab, 2)
    asked = page.get_by_role("region", name="Your guess").first
    asked.get_by_role("button", name="Tensor", exact=True).click()
    lab.settled()
    for cell in range(3, 9):
        page.locator(".jp-Cell").nth(cell - 1).locator(".jp-InputPrompt").click()
        go_on(lab, cell)
    outputs = page.locator(".jp-OutputArea-output")
    again = page.get_by_role("region", name="Try again")
    expect(again).to_contain_text("What does forward get, then?")
    for told in ("it is a list", "{'the': 'list'}", "creates a new tuple", "wraps anything else in a tuple"):
        expect(outputs.filter(has_text=told)).to_have_count(0)
    waiting = outputs.filter(has_text="This output appears when the question is answered")
    expect(waiting).to_have_count(3)
    for closed in page.locator(".jp-Placeholder-content").all():
        closed.click()
    expect(outputs.filter(has_text="wraps anything else in a tuple")).to_have_count(0)
    lab.screenshot("guess_open")
    again.get_by_role("button", name="list", exact=True).click()
    expect(waiting).to_have_count(0)
    for told in ("it is a list", "{'the': 'list'}", "wraps anything else in a tuple"):
        expect(outputs.filter(has_text=told)).to_be_visible()
    lab.screenshot("guess_answered")

    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    page.locator(".jp-Cell").nth(5).locator(".jp-InputPrompt").click()
    page.keyboard.press("Shift+Enter")
    failed = page.locator(".jp-Cell").nth(5).locator(".jp-OutputArea-output", has_text=RESTARTED)
    expect(failed).to_be_visible()
    expect(asked).to_contain_text(RESTARTED)  # the figure says the same
    lab.told("from hookscope_course import Guess, ____; print(Guess(____, about='04.1').guess)", "list")
    lab.told("print(Guess(____, about='04.1').compare('list').card.heading)", "Right, at the second try.")
