"""The site as a reader meets it: its links, its search, its folded answers, and widgets without a kernel."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Response, expect

from hookscope_course.figures import history_chart
from hookscope_course.figures.fact_check.figure import read_claims
from lessons.site import __main__ as site
from lessons.site import search_index, widget_recordings
from tests.browser.paper_sizes import print_page
from tests.shared import ROOT
from tests.shared.lab import Lab

pytestmark = pytest.mark.slow
QUESTIONS = tomllib.loads((ROOT / "tests" / "browser" / "site_questions.toml").read_text(encoding="utf-8"))
PAGES = ("index", "03_forward_hooks", "91_chooser", "widgets", "search", "reference/capture_activations_and_gradients")
WIDTHS = (390, 820, 1440)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("HOOKSCOPE_BUILT_SITE"):  # the folder "html" of a site that was just built
        return Path(given).resolve()
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
    page.on(
        "console",
        lambda said: wrong.append(f"{said.text} {said.location.get('url')}") if said.type == "error" else None,
    )
    page.on(
        "request", lambda asked: None if asked.url.startswith((base, "data:", "blob:")) else wrong.append(asked.url)
    )
    yield page
    page.close()
    assert wrong == []


def axe(page: Page, part: str = "html") -> list[str]:
    """What axe-core finds on a page."""
    rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
    found = Axe().run(page, context=part, options=rules).response["violations"]
    return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_are_accessible(browser: Browser, base: str, width: int, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=base)
    page = context.new_page()
    for name in PAGES:
        page.goto(f"{name}.html", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert axe(page) == [], name
    context.close()


def test_no_answer_is_to_be_seen_before_its_guess(page: Page, built: Path) -> None:
    for path in sorted(built.glob("[0-9][0-9]_*.html")):
        page.goto(path.name)
        questions = page.locator("[data-guess]").count()
        assert page.locator("details.answer > summary:has-text('Run it')").count() >= questions, path.name
        assert page.locator("details.answer[open]").count() == 0
        if not questions:
            continue
        expect(page.locator("[data-guess] .hs-stage")).to_have_count(questions)
        answers = page.evaluate(
            """Object.values(hookscopeGuesses).map(({ shown, texts }) =>
                shown.slice(0, 2).map((at) => texts[at].replaceAll("`", "")))"""
        )
        assert len(answers) == questions, path.name
        seen = page.locator("article").inner_text()
        for answer in answers:
            assert not [each for each in answer if each and each in seen], path.name


def asked(page: Page, about: str) -> Locator:
    """The question of a section, drawn; nothing is said to it yet."""
    place = page.locator(f"[data-guess='{about}']")
    expect(place.locator(".gs-said")).to_contain_text("You have not guessed yet.")
    return place


def test_a_guess_is_answered_and_kept_until_it_is_forgotten(page: Page) -> None:
    page.goto("03_forward_hooks.html")
    question, answer = asked(page, "03.1"), page.locator("[data-answer='03.1']")
    score = page.locator(".score")
    expect(score).to_contain_text("Your guesses on this page: none yet, of 5.")
    question.get_by_role("button", name="7", exact=True).click()
    expect(question.get_by_role("status")).to_contain_text(
        "Not 7. You expected torch to tell a new output from a message."
    )
    expect(question.get_by_role("status")).to_contain_text("Try once more, or show the answer.")
    expect(answer).not_to_have_attribute("open", "")
    question.get_by_role("button", name="not a number: True").focus()
    page.keyboard.press("Enter")
    expect(question.get_by_role("status")).to_contain_text(
        "Right, at the second try. The answer is not a number: True."
    )
    expect(answer).to_have_attribute("open", "")
    expect(answer.locator(".told")).to_be_hidden()
    expect(score).to_contain_text("1 of 5, 0 right at once, 1 at the second try")
    page.reload()
    expect(question.get_by_role("status")).to_contain_text("Right, at the second try.")
    expect(answer).to_have_attribute("open", "")
    page.goto("index.html")
    expect(page.locator(".card", has_text="Forward hooks")).to_contain_text("Your guesses: 1 of 5")
    page.goto("03_forward_hooks.html")
    score.get_by_role("button", name="Forget my guesses").click()
    asked(page, "03.1")
    expect(answer).not_to_have_attribute("open", "")
    expect(score).to_contain_text("none yet, of 5")
    question.get_by_role("button", name="Show the answer").click()
    expect(question.get_by_role("status")).to_contain_text("The answer is not a number: True.")
    expect(score).to_contain_text("1 of 5, 0 right at once")


def test_every_kind_of_question_is_answered_by_keyboard(page: Page) -> None:
    keys = page.keyboard
    page.goto("02_call_order.html")
    cards = asked(page, "02.1")
    for name in ("everywhere", "silence", "keep"):
        cards.get_by_role("button", name=name, exact=True).focus()
        keys.press("Enter")
    expect(cards.get_by_role("status")).to_contain_text("As you guessed: everywhere, silence, keep.")
    page.goto("04_pre_hooks.html")
    slider = asked(page, "04.5")
    slider.get_by_role("slider").focus()
    keys.press("Home")
    for _ in range(12):
        keys.press("ArrowRight")
    slider.get_by_role("button", name="This is my guess").press("Enter")
    expect(slider.locator(".gs-said")).to_contain_text("Close: you guessed 12, it is 10.")
    page.goto("11_pitfalls.html")
    several = asked(page, "11.3")
    several.get_by_role("button", name="stem").press("Enter")
    several.get_by_role("button", name="This is my guess").press("Enter")
    expect(several.get_by_role("status")).to_contain_text("Try once more")
    several.get_by_role("button", name="relu").press("Enter")
    several.get_by_role("button", name="This is my guess").press("Enter")
    expect(several.get_by_role("status")).to_contain_text("Right, at the second try. The answer is relu, stem.")
    page.goto("14_inside_a_transformer.html")
    field = asked(page, "14.2")
    field.get_by_role("textbox").fill("2 5 9")
    keys.press("Enter")
    expect(field.get_by_role("status")).to_contain_text("Not 2 5 9. You began the stream with 0.")
    field.get_by_role("textbox").fill("[3,6, 10]")
    keys.press("Enter")
    expect(field.get_by_role("status")).to_contain_text("Right, at the second try. The answer is 3, 6, 10.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_questions_are_accessible_before_and_after_a_guess(browser: Browser, base: str, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900}, color_scheme=scheme, base_url=base)
    page = context.new_page()
    page.goto("02_call_order.html")
    asked(page, "02.0").get_by_role("button", name="Yes").click()
    asked(page, "02.2").get_by_role("button").first.click()
    asked(page, "02.1").get_by_role("button", name="keep").click()
    assert axe(page, "article") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()


def test_without_scripts_a_page_can_be_read(browser: Browser, base: str) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=base)
    page = context.new_page()
    page.goto("03_forward_hooks.html")
    expect(page.locator("[data-guess='03.1']")).to_have_text("Your guess: 6 · 7 · not a number: True · an error")
    answer = page.locator("[data-answer='03.1']")
    expect(answer.locator(".told")).to_be_hidden()
    answer.locator("summary").first.click()
    expect(answer.locator(".told")).to_have_text("The answer is not a number: True.")
    context.close()


def test_a_link_into_a_folded_answer_opens_it(page: Page) -> None:
    page.goto("03_forward_hooks.html")
    inside = page.locator("details.answer [id]").first.get_attribute("id")
    page.goto(f"03_forward_hooks.html#{inside}")
    assert page.locator("details.answer[open]").count() == 1


@pytest.mark.parametrize(("paper", "size"), [("A4", (843, 596)), ("Letter", (792, 612))])
def test_the_cheat_sheet_is_printed_on_one_page_in_type_of_eight_points(
    page: Page, paper: str, size: tuple[int, int]
) -> None:
    page.goto("93_cheat_sheet.html")
    sheets, smallest = print_page(page, paper)
    assert sheets == [size], "one sheet, landscape"
    assert smallest >= 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_cheat_sheet_needs_no_sideways_move_on_a_phone(browser: Browser, base: str, scheme: Any) -> None:
    """Each row is a block of its own there; only the drawing moves, in its own box."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme, base_url=base)
    page = context.new_page()
    page.goto("93_cheat_sheet.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.locator("article td").evaluate_all("all => all.filter((td) => td.scrollWidth > td.clientWidth).length")
    assert (wide, page.locator("article td").last.is_visible()) == (0, True)
    assert page.locator(".sheet-box").evaluate("box => box.scrollWidth > box.clientWidth && box.tabIndex === 0")
    assert axe(page) == []
    context.close()


def test_the_charts_of_the_time_machine_can_be_read_on_a_phone(browser: Browser, base: str) -> None:
    """Their letters keep their size; the chart moves in its own box, and a line says so. The claims are not cut."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, base_url=base)
    page = context.new_page()
    page.goto("94_time_machine.html")
    slider = page.locator("[data-live]")
    slider.scroll_into_view_if_needed()
    slider.locator(".hs-stage").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    charts = page.locator(".live img.hi-chart, .cell_output figure > img")
    shares = charts.evaluate_all("all => all.map((image) => image.clientWidth / image.naturalWidth)")
    assert len(shares) == 2
    assert min(shares) * history_chart._WORDS >= 10
    expect(slider.get_by_text("Move the chart to the side")).to_be_visible()
    hint = "all => all.map((box) => getComputedStyle(box, '::before').content)"
    assert "Move the chart" in page.locator(".cell_output .text_html:has(> figure > img)").evaluate_all(hint)[0]
    cut = "all => all.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length"
    assert slider.locator(".hi-claims tbody :is(th, td)").evaluate_all(cut) == 0
    context.close()


@pytest.mark.parametrize(("part", "share"), [("tuned", 0.95), ("unseen", 0.85), ("public", 0.9), ("door", 0.93)])
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


@pytest.mark.parametrize(("part", "share"), [("short_tuned", 0.95), ("short_aside", 0.88), ("door", 0.83)])
def test_what_people_type_finds_its_page_first(page: Page, part: str, share: float) -> None:
    missed = {}
    page.goto("search.html")
    for question, pages in QUESTIONS[part].items():
        page.get_by_label("Ask in your own words").fill(question)
        link = page.locator("#results > li > a").first.get_attribute("href") or ""
        if (name := link.partition("#")[0].removesuffix(".html")) not in pages:
            missed[question] = name
    assert len(missed) <= (1 - share) * len(QUESTIONS[part]) + 1e-9, missed


def test_an_excerpt_is_prose(page: Page) -> None:
    page.goto("search.html?q=register_forward_hook")
    excerpts = page.locator("#results > li > p").all_inner_texts()
    assert excerpts
    assert not [each for each in excerpts if re.search(r"^\s*(with|def|import|>>>)\b.*[=(:]|\w = \w+\(", each)]


def test_the_search_says_when_there_is_nothing(page: Page) -> None:
    page.goto("search.html?q=qqzzxx+wwvvkk")
    assert "Nothing about" in page.get_by_role("status").inner_text()
    expect(page.locator("#elsewhere a:visible")).to_have_count(3)
    page.goto("search.html?q=integrated+gradients")
    assert "No page has the word “integrated”." in page.get_by_role("status").inner_text()
    expect(page.locator("#elsewhere a:visible")).to_have_count(0)


@pytest.mark.parametrize(
    ("typo", "meant"), [("foward hok", "forward hook"), ("regster_forward_hook", "register_forward_hook")]
)
def test_the_search_forgives_a_letter(page: Page, typo: str, meant: str) -> None:
    found = []
    for question in (typo, meant):
        page.goto(f"search.html?q={question}")
        found.append(page.locator("#results > li > a").first.get_attribute("href"))
    assert found[0] == found[1]


@pytest.mark.parametrize("question", ["hook order", "forward hook", "hook parameters", "tensor hook", "Variable"])
def test_a_claim_stands_behind_its_verdict(page: Page, question: str) -> None:
    page.goto(f"search.html?q={question}")
    links = page.locator("#results > li > a[href^='90_claims.html#D']").all_inner_texts()
    assert all(re.match("(True|Partly true|Outdated|False|Unclear): “", link) for link in links)
    claims = [row["text"] for row in read_claims()["claims"].values() if row["verdict"] != "holds"]
    excerpts = page.locator("#results > li > p").all_inner_texts()
    assert not [each for each in excerpts if any(each.strip(" .") in claim for claim in claims if len(each) > 20)]


def test_no_excerpt_is_debris(page: Page) -> None:
    for question in ("intermediate output", "saliency map", "with_kwargs", "remove a hook"):
        page.goto(f"search.html?q={question}")
        for excerpt in page.locator("#results > li > p").all_inner_texts():
            assert not re.match(r"\d+ |·|or earlier", excerpt)
            assert "Also asked as" not in excerpt
            assert " · since torch" not in excerpt


def test_teachers_pages_are_no_results_and_not_in_the_list_of_pages(page: Page) -> None:
    page.goto("search.html?q=retain_grad")
    assert page.locator("#results a[href^='teaching/'], #results a[href^='deploy/']").count() == 0
    assert page.locator(".sidebar-tree a[href^='teaching/']:visible").count() == 0


def test_the_first_screen_answers_a_click_and_is_light(page: Page) -> None:
    loaded: list[Response] = []
    page.on("response", lambda response: loaded.append(response))
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto("index.html")
    figure = page.locator("[data-live=switch_off]")
    figure.locator(".hs-stage").wait_for()
    page.wait_for_load_state("networkidle")
    assert sum(len(response.body()) for response in loaded if response.ok) < 700_000
    expect(figure).to_contain_text("the model reads an 8")
    channel = figure.locator(".so-tile").nth(6)
    channel.focus()
    page.keyboard.press("Enter")
    expect(figure).to_contain_text("With channel 6 of block1 silenced, the model reads a 1 (71.1 %) instead of an 8.")
    expect(channel).to_have_attribute("aria-pressed", "true")
    box = figure.bounding_box()
    assert box
    assert box["y"] + box["height"] < 900, "it is on the first screen"
    page.locator("article a.door").click()
    expect(page.locator("h1")).to_contain_text("Start here")


def test_on_a_phone_the_switch_and_what_it_does_are_on_the_first_screen(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("index.html")
    figure = page.locator("[data-live=switch_off]")
    figure.locator(".hs-stage").wait_for()
    channel, told = figure.locator(".so-tile").nth(6), figure.get_by_role("status").first
    channel.click()
    expect(told).to_have_text("With channel 6 of block1 silenced, the model reads a 1 (71.1 %) instead of an 8.")
    assert page.evaluate("scrollY") == 0, "the click did not have to scroll"
    boxes = [told.bounding_box(), channel.bounding_box()]
    assert all(box and box["y"] > 0 and box["y"] + box["height"] <= 844 for box in boxes)
    wide = figure.locator(".so-tile img").first.evaluate("image => image.clientWidth")
    assert wide >= 64, "a map is large enough to see"


def test_an_address_without_a_page_leads_on(page: Page) -> None:
    page.goto("404.html")
    assert page.get_by_role("searchbox").is_visible()
    assert page.get_by_role("link").count() == 3


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
    for each in widget_recordings.LIVE_WIDGETS:
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
    assert search_index.find_broken_links(page) == ["index.html: nowhere.html", "index.html: #no"]
