"""The slider through the releases in a real browser: by keyboard, from Python, in both themes, on a narrow page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import PANE, FigurePage


def test_a_learner_travels_through_the_releases(figures: FigurePage) -> None:
    draw(figures, "AuthorSlider")
    page = figures.page
    widget = page.locator(".hookscope")
    release, document = widget.get_by_label("Release", exact=True), widget.get_by_label("Document", exact=True)
    forward_hook = widget.locator(".hi-claims tbody tr", has_text="D4.4")
    expect(forward_hook).to_contain_text("✗ not true")
    expect(release).to_have_attribute("aria-valuetext", "torch 1.2.0")

    # By keyboard: one release back, and JupyterLab stays where it is.
    before = figures.pixels(".hi-chart")
    release.focus()
    page.keyboard.press("ArrowLeft")
    expect(forward_hook).to_contain_text("✓ true")
    expect(forward_hook).to_contain_text("forward hooks should never return any values")
    expect(forward_hook).to_contain_text("(differs)")
    expect(widget.locator(".hi-verdict")).to_contain_text(
        "D4 makes 3 claims that depend on the release of torch. True in torch 1.1.0: 2."
    )
    expect(widget.locator(".hi-claims thead")).to_contain_text("torch 1.1.0, recorded")
    expect(widget.locator(".hi-chart")).to_have_attribute("alt", figures.kernel("print(author.alt)"))
    assert figures.pixels(".hi-chart") != before
    assert figures.kernel("print(author.release)") == "1.1.0"
    page.keyboard.press("End")
    figures.told("print(author.release == author._releases[-1])", "True")
    expect(forward_hook).not_to_contain_text("(differs)")

    # By keyboard: another document.
    document.focus()
    page.keyboard.press("d")  # the next one that begins so
    figures.told("print(author.document)", "D0")
    expect(widget.locator(".hi-claims tbody tr").first).to_contain_text("D0.6")
    figures.kernel("author.release = '1.2.0'")  # true, though what it is about is missing: that is said
    prior = widget.locator(".hi-claims tbody tr", has_text="D0.11")
    expect(prior).to_contain_text("nothing in this release contradicts it")
    expect(widget.locator(".hi-claims tbody")).to_contain_text("this release has no such thing")
    expect(widget.locator(".hi-claims tbody")).not_to_contain_text("missing")
    assert figures.cut(widget, ".hi-wide", PANE[0]) == []

    # From Python.
    figures.kernel("author.document, author.release = 'D3', '2.0.0'")
    expect(release).to_have_attribute("aria-valuetext", "torch 2.0.0")
    expect(document).to_have_value("D3")
    expect(widget.locator(".hi-claims tbody tr", has_text="the explanation")).to_contain_text("✓ true")
