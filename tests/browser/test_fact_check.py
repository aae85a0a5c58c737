"""The fact check in a real JupyterLab: a guess and its reason, the filter, and the claims that are folded."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

# What people type, and the claim that comes first.
ASKED = {"no_grad": "D3.1", "handle.remove": "D0.11", "randint": "D2.12", "D4.7": "D4.7", "self": "D0.12"}


def test_claims_are_found_by_words_and_by_verdict(lab: Lab) -> None:
    lab.scratch("facts", "from hookscope_course.reference import FactCheck\nfacts = FactCheck()\nfacts")
    widget = lab.page.locator(".hookscope")
    box, rows = widget.get_by_role("searchbox", name="Claims about"), widget.locator(".ch-row")
    count = widget.get_by_role("status")
    expect(count).to_have_text("63 of 63")
    for words, claim in ASKED.items():
        box.fill(words)
        lab.settled(widget)
        expect(rows.first.locator("a")).to_have_text(claim)
        expect(rows.first).to_have_attribute("open", "")
    box.fill("")
    widget.get_by_role("button", name="outdated").focus()
    lab.page.keyboard.press("Enter")
    lab.told("print(facts.group)", "outdated")
    expect(count).to_have_text("4 of 63")
    assert {text.strip() for text in rows.locator(".ch-verdict").all_inner_texts()} == {"↺\u00a0outdated"}
    lab.look(widget, "fact_check")


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
