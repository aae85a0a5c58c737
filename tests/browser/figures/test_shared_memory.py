"""Names and memory: play the pass, with and without `clone()`."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage


def test_an_in_place_step_changes_the_memory_of_three_names(figures: FigurePage) -> None:
    stage = draw(figures, "SharedMemory")
    said, memories = stage.locator(".sc-say"), stage.locator(".sh-memory")
    stage.get_by_role("button", name="Next").click()
    expect(said).to_have_text("x = relu(x) writes 0, 2 into the memory of x, kept: stem and kept: relu.")
    expect(memories).to_have_count(1)
    stage.get_by_role("button", name="Next").press("End")
    expect(memories).to_have_text(["0, 6", "0, 4", "0, 12"])
    stage.get_by_label("Each hook keeps").select_option("output.detach().clone()")
    expect(memories).to_have_text(["0, 6", "-2, 2", "0, 2", "0, 4", "0, 4", "0, 12", "0, 12"])
