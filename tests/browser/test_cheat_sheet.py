"""The cheat sheet in a real JupyterLab: its drawing, its names, and printed; test_site.py prints the site."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.paper_sizes import print_page
from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")
SHEET = "93_cheat_sheet.ipynb"


def test_it_is_printed_on_one_page(lab: Lab) -> None:
    """File → Print… prints what nbconvert makes of the notebook, here of a learner's copy."""
    browser = lab.page.context.browser
    assert browser is not None
    page = browser.new_page()
    page.goto(f"{lab.url}/nbconvert/html/{SHEET}?token={lab.token}")
    expect(page.get_by_role("heading", name="The cheat sheet")).to_be_visible()
    sheets, smallest = print_page(page)
    assert sheets == [(843, 596)], "one sheet of A4, landscape"
    assert smallest >= 8
    page.close()


def test_the_drawing_is_shown_and_each_name_stands_on_one_line(lab: Lab) -> None:
    lab.open(SHEET)
    drawing = lab.page.locator("img.sheet")
    assert str(drawing.get_attribute("alt")).startswith("One training step of a layer")
    assert drawing.evaluate("image => image.complete && image.naturalWidth") == 1000
    names = lab.page.locator("td code", has_text="register_").evaluate_all(
        "all => all.map((code) => [code.textContent, code.getClientRects().length])"
    )
    assert len(names) >= 12
    assert [name for name, lines in names if name.endswith(")") and lines > 1] == []
    wide, seen = lab.page.locator(".jp-RenderedMarkdown table").first.evaluate(
        "table => [table.scrollWidth, table.parentElement.clientWidth]"
    )
    assert wide <= seen, "its last column is cut off"
    for dark in (True, False):
        lab.theme(dark)
        lab.screenshot(f"cheat_sheet-{'dark' if dark else 'light'}", lab.page.locator(".jp-WindowedPanel-outer"))
