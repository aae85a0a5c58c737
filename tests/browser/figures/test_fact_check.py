"""The fact check on a bare page: a guess and its reason, the filter, and the claims that are folded."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import FigurePage

# What people type, and the claim that comes first.
ASKED = {"no_grad": "D3.1", "handle.remove": "D0.11", "randint": "D2.12", "D4.7": "D4.7", "self": "D0.12"}


def test_claims_are_found_by_words_and_by_verdict(figures: FigurePage) -> None:
    draw(figures, "FactCheck")
    widget = figures.page.locator(".hookscope")
    box, rows = widget.get_by_role("searchbox", name="Claims about"), widget.locator(".ch-row")
    count = widget.get_by_role("status")
    expect(count).to_have_text("63 of 63")
    for words, claim in ASKED.items():
        box.fill(words)
        figures.settled(widget)
        expect(rows.first.locator("a")).to_have_text(claim)
        expect(rows.first).to_have_attribute("open", "")
    box.fill("")
    widget.get_by_role("button", name="outdated").focus()
    figures.page.keyboard.press("Enter")
    figures.told("print(facts.group)", "outdated")
    expect(count).to_have_text("4 of 63")
    assert {text.strip() for text in rows.locator(".ch-verdict").all_inner_texts()} == {"↺\u00a0outdated"}
