"""The fact check in a real JupyterLab: its claims are folded, and links lead to them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")


@pytest.mark.slow  # it runs the whole page
def test_the_page_begins_with_a_guess_and_its_claims_are_folded(lab: Lab) -> None:
    lab.open("90_claims.ipynb")
    page = lab.page
    hidden = page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter((cell) => cell.isHidden && cell.model.type === "code").length"""
    )
    assert hidden > 63, "the run of each claim"
    lab.screenshot("fact_check-begins", page.locator(".jp-WindowedPanel-outer"))
    lab.run_all()
    facts = page.locator(".hookscope", has=page.get_by_role("searchbox", name="Claims about"))
    facts.scroll_into_view_if_needed()
    facts.get_by_role("searchbox").fill("randint")
    facts.get_by_role("link", name="D2.12").click()
    expect(page.locator("[data-jupyter-id='D2.12']")).to_be_in_viewport()
    lab.screenshot("fact_check-claims", page.locator(".jp-WindowedPanel-outer"))
