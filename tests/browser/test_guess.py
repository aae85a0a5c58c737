"""A guess by click: buttons, a reason for a wrong one, a second try, and the answer only afterwards."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")
CODE = """
from hookscope_course import Guess, ____
guess = Guess(____, about="03.1")
guess
"""


def test_a_wrong_guess_gets_its_reason_and_a_second_try(lab: Lab) -> None:
    lab.scratch("a_guess", CODE)
    page = lab.page
    asked = page.get_by_role("region", name="Your guess")
    expect(asked.get_by_role("status")).to_contain_text("No guess yet.")
    asked.get_by_role("button", name="61", exact=True).click()
    expect(asked.get_by_role("status")).to_contain_text("Your guess: 61")
    expect(asked.get_by_role("button", name="61", exact=True)).to_have_attribute("aria-pressed", "true")
    assert lab.axe(".hookscope") == []
    lab.told("print(guess.guess)", "61")

    lab.screenshot("guess")
    lab.scratch("a_guess_compared", CODE.replace("\nguess\n", "\nguess.choose(61)\nguess.compare(70)\n"))
    again = page.get_by_role("region", name="Second try")
    expect(again.get_by_role("status")).to_contain_text("Hooks run in the order in which you registered them")
    expect(again).not_to_contain_text("It is 70")
    again.get_by_role("button", name="70", exact=True).focus()
    page.keyboard.press("Enter")
    expect(again.get_by_role("status")).to_contain_text("As you guessed: 70")
    expect(again.get_by_role("button", name="Show the answer")).to_be_hidden()


def test_several_can_be_chosen_by_mouse_and_keyboard(lab: Lab) -> None:
    lab.scratch("several", CODE.replace("03.1", "08.3"))
    asked = lab.page.get_by_role("region", name="Your guess")
    for name in ("list", "dict", "tensor"):
        asked.get_by_role("button", name=name, exact=True).click()
    asked.get_by_role("button", name="tensor", exact=True).press("Enter")  # take it back
    expect(asked.get_by_role("button", name="tensor", exact=True)).to_have_attribute("aria-pressed", "false")
    asked.get_by_role("button", name="This is my guess").press("Enter")
    expect(asked.get_by_role("status")).to_contain_text("Your guess: list, dict")
    assert lab.axe(".hookscope") == []
    lab.told("print(guess.guess)", "['list', 'dict']")
