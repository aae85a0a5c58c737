"""The site as a reader meets it: its links, its search, its folded answers, and widgets without a kernel."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from lessons.site import __main__ as site
from lessons.site import live, sections
from tests.shared import ROOT
from tests.shared.lab import Lab
from tests.shared.printing import printed

pytestmark = pytest.mark.slow
QUESTIONS = tomllib.loads((ROOT / "tests" / "browser" / "site_questions.toml").read_text(encoding="utf-8"))
PAGES = ("index", "03_forward_hooks", "91_chooser", "widgets", "search", "reference/capture_activations_and_gradients")
WIDTHS = (390, 820, 1440)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    assert site.main(out) == 0, "a warning of Sphinx, or a link that leads nowhere"
    return out / "html"


@pytest.fixture(scope="module")
def base(built: Path) -> Iterator[str]:
    serve = functools.partial(_Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def browser(lab: Lab) -> Browser:
    """The one of the other tests: there can be no second in this process."""
    browser = lab.page.context.browser
    assert browser is not None
    return browser


@pytest.fixture
def page(browser: Browser, base: str) -> Iterator[Page]:
    """A page on which nothing may fail, and nothing may come from elsewhere."""
    page = browser.new_page(base_url=base)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith((base, "data:", "blob:")) else wrong.append(asked.url)
    )
    yield page
    page.close()
    assert [each for each in wrong if "favicon" not in each and "404" not in each] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_are_accessible(browser: Browser, base: str, width: int, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=base)
    page = context.new_page()
    for name in PAGES:
        page.goto(f"{name}.html", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
        found = Axe().run(page, options=rules).response["violations"]
        assert [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]] == [], name
    context.close()


def test_the_first_page_shows_a_picker_that_answers_and_leads_on(page: Page) -> None:
    page.goto("index.html")
    picker = page.locator("[data-live=layer_picker] .hookscope")
    picker.get_by_role("option", name="block2, ").click()
    expect(picker.locator(".hs-caption")).to_contain_text("block2 (Sequential): all 24 channels")
    expect(page.locator(".sidebar-tree a", has_text="Pre-hooks")).to_be_visible()
    page.locator("article a", has_text="Chapter 00").click()
    expect(page.locator("h1")).to_contain_text("Start here")


def test_no_answer_stands_open_below_its_question(page: Page, built: Path) -> None:
    for path in sorted(built.glob("[01][0-9]_*.html")):
        page.goto(path.name)
        questions = page.locator("div.cell_input:has-text('guess = Guess(')").count()
        assert page.locator("details.answer > summary:has-text('Run it')").count() == questions, path.name
        assert page.locator("details.answer[open]").count() == 0
        assert not page.locator("text=It is").filter(has_text="No guess this time").locator("visible=true").count()


def test_a_link_into_a_folded_answer_opens_it(page: Page) -> None:
    page.goto("03_forward_hooks.html")
    inside = page.locator("details.answer [id]").first.get_attribute("id")
    page.goto(f"03_forward_hooks.html#{inside}")
    assert page.locator("details.answer[open]").count() == 1


def test_the_cheat_sheet_is_printed_on_one_page(page: Page) -> None:
    page.goto("93_cheat_sheet.html")
    assert printed(page) == [(842, 595)], "one sheet of A4, landscape"


@pytest.mark.parametrize(("part", "share"), [("tuned", 0.95), ("unseen", 0.95), ("public", 0.9)])
def test_a_question_finds_its_page_among_the_first_three(page: Page, part: str, share: float) -> None:
    missed = {}
    for question, pages in QUESTIONS[part].items():
        page.goto("search.html")
        page.get_by_label("Ask in your own words").fill(question)
        links = page.locator("#results > li > a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
        first = list(dict.fromkeys(link.partition("#")[0].removesuffix(".html") for link in links))[:3]
        if not {*pages} & {*first}:
            missed[question] = first
    assert len(missed) <= (1 - share) * len(QUESTIONS[part]) + 1e-9, missed


def test_the_search_says_when_there_is_nothing(page: Page) -> None:
    page.goto("search.html?q=qqzzxx+wwvvkk")
    assert "Nothing about" in page.get_by_role("status").inner_text()


def drawn(page: Page, name: str) -> Locator:
    """Go to where a widget is, and wait until it is drawn; nothing is wrong with it."""
    place = page.locator(f"[data-live='{name}']")
    place.scroll_into_view_if_needed()
    place.locator(".hs-stage").wait_for()
    assert place.get_by_role("alert").locator("visible=true").count() == 0, name
    return place


def test_a_layer_and_a_channel_are_chosen_by_keyboard(page: Page) -> None:
    page.goto("widgets.html")
    picker = drawn(page, "layer_picker")
    before = picker.locator("img.hs-picture").first.get_attribute("src")
    picker.get_by_role("listbox").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "old => document.querySelector('[data-live=layer_picker] img.hs-picture').src !== old", arg=before
    )
    assert picker.get_by_role("alert").locator("visible=true").count() == 0
    picker.get_by_role("button", name="channel 3", exact=False).first.click()
    assert "channel 3" in picker.inner_text()


def test_what_was_not_recorded_is_said(page: Page) -> None:
    page.goto("widgets.html")
    picker = drawn(page, "layer_picker")
    picker.get_by_text("More choices").click()
    expect(picker.locator("details.hs-more")).to_have_attribute("open", "")
    choice = picker.get_by_label("Show", exact=True)
    choice.wait_for()
    before = choice.input_value()
    choice.select_option(index=1)
    assert "not recorded for the page" in picker.get_by_role("alert").inner_text()
    assert choice.input_value() == before, "it shows what the picture shows"


def test_every_recorded_widget_is_drawn_and_answers(page: Page) -> None:
    page.goto("widgets.html")
    for each in live.LIVE:
        drawn(page, each.name)
    slider = page.locator("[data-live=versions]")
    before = slider.inner_text()
    slider.get_by_role("slider").focus()
    page.keyboard.press("Home")
    assert slider.inner_text() != before
    explorer = page.locator("[data-live=grad_input]")
    explorer.get_by_label("layer", exact=False).first.select_option("ReLU")
    explorer.get_by_text("The legacy hook jumps from AddmmBackward0 to ReluBackward0.").first.wait_for()
    explorer.get_by_role("button", name="the same").click()
    explorer.get_by_text("Both hooks get the same here").first.wait_for()


def test_the_widgets_of_the_chapters_are_alive(page: Page, built: Path) -> None:
    """Those of which a recording fits into a page, each in the state in which its chapter shows it."""
    alive = {path.stem for path in (built / "_static" / "live").glob("[0-9]*.js")}
    assert {name[:2] for name in alive} >= {"00", "02", "03", "05", "06", "08", "09", "10"}
    seen = set()
    for chapter in sorted(built.glob("[0-9]*_*.html")):
        names = re.findall(r'data-live="([^"]+)"', chapter.read_text(encoding="utf-8"))
        if names:
            page.goto(chapter.name)
            page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        for name in names:
            drawn(page, name)
            seen.add(name)
    assert seen == alive


def test_it_works_when_it_is_opened_from_a_disk(browser: Browser, built: Path) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto((built / "02_call_order.html").as_uri())
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for name in page.locator("[data-live]").evaluate_all("places => places.map((each) => each.dataset.live)"):
        drawn(page, name)
    page.goto(f"{(built / 'search.html').as_uri()}?q=grad_input is None")
    page.locator("#results li").first.wait_for()
    page.close()
    assert errors == []


def test_what_leads_nowhere_is_found(built: Path, tmp_path: Path) -> None:
    page = tmp_path / "html"
    shutil.copytree(built, page)
    index = page / "index.html"
    text = index.read_text(encoding="utf-8")
    index.write_text(text.replace("</article>", '<a href="nowhere.html">x</a><a href="#no">y</a></article>', 1))
    assert sections.broken_links(page) == ["index.html: nowhere.html", "index.html: #no"]
