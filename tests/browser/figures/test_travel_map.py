"""The travel map in a real browser: one click per station, a journey, the keyboard, both themes, a narrow page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def test_a_hook_is_guessed_by_clicks_and_then_travels(figures: FigurePage) -> None:
    stage = draw(figures, "TravelMap")
    say, score, why = stage.locator(".sc-say"), stage.locator(".tm-score"), stage.locator(".tm-why")
    fates = stage.locator(".tm-fates button")
    expect(say).to_contain_text("one click each")
    expect(why).to_be_empty()
    for at in (1, 2, 0, 0, 2, 1):  # all but the exported one are right
        fates.nth(at).click()
    expect(score).to_have_text("6 of 6 guessed")
    figures.told("print(len(journey.guesses), journey.guesses['export'])", "6 left")

    card = stage.get_by_role("button", name="prune.")
    card.focus()
    card.press("ArrowRight")
    card = stage.get_by_role("button", name="compile. ")
    expect(card).to_be_focused()
    card.press("Enter")
    expect(fates.first).to_be_focused()
    stage.get_by_role("button", name="Travel there").press("Enter")
    expect(score).to_have_text("1 of 9 visited, 1 of 1 guesses right")
    expect(why).to_contain_text("It returns 60, the hook is called 1×, and after handle.remove() it returns 6.")
    expect(card).to_have_attribute("aria-pressed", "true")

    figures.kernel("_ = journey.visit('deepcopy', 'export')")
    expect(score).to_have_text("3 of 9 visited, 2 of 3 guesses right")
    expect(stage.locator('[data-station="export"]')).to_contain_text("only ×10 stays · you: left")
    figures.kernel("_ = journey.visit('state_dict', 'prune', 'quantize', 'checkpoint', 'autocast', 'scaler')")
    expect(say).to_have_text("The journey is complete.")
    stage.get_by_role("button", name="Start over").click()
    figures.told("print(journey.visited, journey.guesses)", "[] {}")
