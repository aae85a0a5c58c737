"""The ten-times table: marked, run, and explained."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.figures.scene import height
from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def test_the_game(figures: FigurePage) -> None:
    stage = draw(figures, "TenTimesGame")

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
    figures.told("print(game.marks, game.revealed)", "{'forward_pre': ['y', 'x.grad']} ['forward_pre']")

    # By keyboard: the next row has the focus; arrows go from cell to cell.
    for key in ("Space", "ArrowRight", "Space", "ArrowRight", "Enter", "ArrowRight", "Enter"):
        figures.page.keyboard.press(key)
    expect(stage.locator(".sc-say")).to_have_text("1 of 2 rows right so far. Mark the next row, then run it.")
    figures.told("print(game.score)", "1 of 2 rows")
    # The rows that she did not mark are shown, and not counted.
    stage.get_by_role("button", name="Run all rows").click()
    expect(stage.locator(".sc-say")).to_have_text("1 of 2 rows right; 4 not guessed.")
    expect(stage.locator(".tt-result")).to_have_text(["2 of 3 why?", "3 of 3 why?", *["no guess why?"] * 4])
    expect(stage.locator(".tt-cell .tt-good, .tt-cell .tt-bad")).to_have_count(6)
    figures.told("print(game.score)", "1 of 2 rows; 4 not guessed")
    expect(stage.locator(".tt-cell.sc-changed")).to_have_count(12)
    stage.get_by_role("button", name="Why, for the full backward hook").click()
    expect(reasons.nth(2)).to_contain_text(re.compile("^weight.grad stays 3: the layer makes it from grad_output"))
    stage.get_by_role("button", name="Start over").click()
    figures.told("print(game.marks, game.revealed)", "{} []")
    figures.kernel("game.mark('full_backward', 'x.grad'); game.run('full_backward')")
    expect(stage.locator(".sc-say")).to_contain_text("1 of 1 rows right so far.")
