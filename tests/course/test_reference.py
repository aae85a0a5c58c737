"""The reference pages: complete, in order, and each entry with a link to where it is taught."""

from __future__ import annotations

import html
import itertools
import re

import mistune
import nbformat
import pytest
import traitlets

from hookscope_course.figures import FactCheck
from hookscope_course.figures.chooser.figure import GROUPS
from hookscope_course.learner.learner_edition import FOLDED
from hookscope_course.notebook_pictures import join_pictures
from lessons.build import lesson_source, placeholders, teacher_pages
from tests.shared.parsed_chapters import REFERENCES, parse_once
from tests.shared.table_checks import for_each

PAGES = {page.name[3:]: page for page in REFERENCES}
TERMS = lesson_source.rows_of("glossary.toml", "term")

# A link into a chapter: a reader must be able to get from each row to where it is run.
CHAPTER = r"\[\d\d(?:, section \d)?\]\((\d\d_\w+)\.ipynb#cell-id=([\w-]+)\)"


def text(name: str) -> str:
    return "\n\n".join(cell.source for cell in PAGES[name].notebook.cells if cell.cell_type == "markdown")


def rows(name: str) -> list[list[str]]:
    """The cells of every table row on a page, without the heads."""
    lines = re.findall(r"^\| (.+) \|$", text(name), re.MULTILINE)
    lines = [html.unescape(re.sub("</?code>", "`", line.replace("<wbr>", ""))) for line in lines]
    return [line.split(" | ") for line in lines if not line.startswith(("---", "I want", "Term", "English"))]


def test_there_are_five() -> None:
    assert list(PAGES) == ["claims", "chooser", "glossary", "cheat_sheet", "time_machine"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_for_and_leads_to_the_start_and_the_others(name: str) -> None:
    head = PAGES[name].notebook.cells[1].source
    title, promise, ways = head.split("\n\n")
    assert title == f"# {PAGES[name].header['title']}"
    assert promise.endswith(".")
    others = [page.name for other, page in PAGES.items() if other != name]
    assert re.findall(r"\((\w+)\.ipynb\)", ways) == ["00_start_here", *others, "index"]


@pytest.mark.parametrize("path", lesson_source.chapter_files(), ids=lesson_source.name_of)
def test_a_chapter_never_goes_on_to_a_reference_page(path) -> None:
    head = parse_once(path).notebook.cells[1].source
    assert not [page for page in PAGES.values() if page.name in head]


@pytest.mark.parametrize("name", PAGES)
def test_code_fits_a_small_screen(name: str) -> None:
    for cell in PAGES[name].notebook.cells:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            assert len(lines) <= 30
            assert max(map(len, lines)) <= 90


@pytest.mark.parametrize("name", ["claims", "chooser"])
def test_last_cell_shows_that_no_hook_is_left(name: str) -> None:
    last = nbformat.read(PAGES[name].target, as_version=4).cells[-1]
    assert last.source.splitlines()[-1].startswith("hookscope.census(")
    assert last.outputs[0].data["text/plain"].startswith("0 ")


def test_figures_have_alt_text_and_numbers() -> None:
    pictures = 0
    for cell in nbformat.read(PAGES["claims"].target, as_version=4).cells:
        for output in join_pictures(cell.get("outputs", [])):
            if "data:image/png" in output.get("data", {}).get("text/html", ""):
                pictures += 1
                assert re.search(r'<img alt="[^"]{20,}"', output.data["text/html"])
                assert "<table>" in output.data["text/html"]
    assert pictures >= 1


def test_each_claim_is_folded_with_its_run_its_verdict_and_its_chapter() -> None:
    cells = PAGES["claims"].notebook.cells
    places = {
        cell.source.partition("\n")[0][4:]: at for at, cell in enumerate(cells) if cell.source.startswith("### D")
    }
    claims = lesson_source.claims()["claims"]
    assert sorted(places) == sorted(claims)
    for name, at in places.items():
        claim = claims[name]
        assert cells[at].metadata[FOLDED]
        assert cells[at].source == f"### {name}\n\n{placeholders.claim(name)}"
        below = itertools.takewhile(lambda cell: not cell.source.startswith("#"), cells[at + 1 :])
        inside = "\n".join(cell.source for cell in below)
        assert f"{placeholders.verdict(name)} " in inside
        assert f"**What torch does.** {claim['does']} Taught in [chapter {claim['chapter']:02}](" in inside


def test_the_filter_has_every_claim() -> None:
    claims = lesson_source.claims()["claims"]
    shown = {row["id"]: row for row in FactCheck("no_grad")._rows}
    assert shown.keys() == claims.keys()
    for name, row in shown.items():
        assert (row["text"], row["does"], row["group"]) == tuple(
            claims[name][key] for key in ("text", "does", "verdict")
        )
        assert row["sign"].replace("\u00a0", " ").endswith(row["group"]), "in a word, not only a sign"
    assert [*shown][:2] == ["D0.1", "D0.2"]
    assert len(FactCheck().numbers()) == len(claims)
    with pytest.raises(traitlets.TraitError):
        FactCheck().group = "nothing"


# The sentences that open the fact check: what each is from. Not asked: these three are not about hooks.
NOT_ASKED = {"D2.3", "D2.12", "D3.14"}
ANSWERS = {"true": "holds", "false": "wrong", "true in some versions": "outdated"}


def test_the_fourteen_are_the_claims_that_are_wrong_or_outdated_and_three_that_hold() -> None:
    sections = re.split(r"^## \d+ · ", text("claims"), flags=re.MULTILINE)[1:]
    sections[-1] = sections[-1].partition("\n## ")[0]
    assert len(sections) == 14
    assert PAGES["claims"].header["title"].startswith("Fourteen things")
    claims, answers = lesson_source.claims()["claims"], teacher_pages.find_answers(PAGES["claims"])
    cited = {section.partition("\n")[0]: re.findall(r"\(#(D\d\.\d+)\)", section) for section in sections}
    for number, (heading, names) in enumerate(cited.items(), 1):
        (answer,) = answers[f"{number} · {heading}"]
        assert {claims[name]["verdict"] for name in names} == {ANSWERS[answer]}, heading
    asked = {name for names in cited.values() for name in names}
    assert {name for name, row in claims.items() if row["verdict"] in ("wrong", "outdated")} - asked == NOT_ASKED
    given = [answers[f"{number} · {heading}"][0] for number, heading in enumerate(cited, 1)]
    assert {answer: given.count(answer) for answer in ANSWERS} == {"true": 3, "false": 8, "true in some versions": 3}


@pytest.mark.parametrize("name", PAGES)
def test_no_underscore_in_a_name_is_read_as_emphasis(name: str) -> None:
    page = re.sub(r"^```.*?^```", "", text(name), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"<code>.*?</code>", str(mistune.create_markdown(escape=False, plugins=["table"])(page))):
        assert "<em>" not in code


def heading_at(link: str) -> str:
    """The heading to which a link into a chapter leads."""
    found = re.fullmatch(CHAPTER, link)
    assert found, link
    chapter = next(path for path in lesson_source.chapter_files() if lesson_source.name_of(path) == found[1])
    (cell,) = [cell for cell in parse_once(chapter).notebook.cells if cell.id == found[2]]
    return re.findall(r"^## (.+)$", cell.source, re.MULTILINE)[-1]


def test_each_document_is_introduced_before_its_claims() -> None:
    for document in lesson_source.claims()["documents"].values():
        (section,) = [
            cell.source
            for cell in PAGES["claims"].notebook.cells
            if cell.source.startswith(f"## {document['id']}: {document['title']}\n")
        ]
        head = section
        for field in ("kind", "author", "language", "date", "summary"):
            assert document[field].strip() in head
        assert document.get("name", "") in head


def test_what_a_fragment_of_the_ledger_needs_is_imported_before_it() -> None:
    first = next(cell.source for cell in PAGES["claims"].notebook.cells if cell.cell_type == "code")
    names: dict[str, object] = {}
    exec(first, names)
    needed = {"torch", "nn", "F", "hookscope", "samples", "warnings", "copy", "inspect", "OrderedDict", "DataLoader"}
    needed |= {"TensorDataset"}
    assert needed <= {*names}


def test_the_ledger_counts_its_verdicts() -> None:
    intro = text("claims").split("## D0")[0]
    verdicts = [claim["verdict"] for claim in lesson_source.claims()["claims"].values()]
    assert f"{len(verdicts)} claims of 5 documents" in intro
    assert len(verdicts) == 63
    said = {word: int(count) for word, count in re.findall(r"[✓◐↺✗?]\s(\w+(?:\u00a0\w+)?) (\d+)", intro)}
    assert said == {verdict.replace(" ", "\u00a0"): verdicts.count(verdict) for verdict in placeholders.VERDICTS}


def test_the_chooser_has_for_each_want_an_answer_lines_and_a_folded_proof() -> None:
    wants = lesson_source.rows_of("chooser.toml", "want")
    cells = PAGES["chooser"].notebook.cells
    group = ""
    for want in wants:
        place = next(i for i, cell in enumerate(cells) if cell.source.startswith(f"### {want['want']}\n"))
        if want["group"] != group:
            group = want["group"]
            assert cells[place - 1].source == f"## {GROUPS[group]}"
        assert f"{want['answer']}\n\n```python\n{want['lines']}```" in cells[place].source
        assert cells[place + 1].source == f"# The proof\n{want['snippet'].strip()}"
        assert cells[place + 1].metadata["jupyter"] == {"source_hidden": True}
        saved = nbformat.read(PAGES["chooser"].target, as_version=4).cells[place + 1]
        assert saved.outputs[0].text.strip() == want["prints"]


def test_the_glossary_is_sorted_without_doubles() -> None:
    english = [term["english"] for term in TERMS]
    assert english == sorted(set(english), key=str.lower)
    assert 35 <= len(english) <= 70
    assert [row[0].strip("*") for row in rows("glossary") if len(row) == 3 and row[0].startswith("**")] == english
    folded = text("glossary").partition("<details>")[2]
    assert all(term.get("korean", "") in folded and term.get("chinese", "") in folded for term in TERMS)


@for_each(TERMS)
def test_a_term_has_a_sentence_a_place_and_words_in_their_own_script(term: dict) -> None:
    assert re.fullmatch(r"\S.*\.", term["meaning"])
    where = next(row[2] for row in rows("glossary") if row[0] == f"**{term['english']}**")
    if "want" in term:
        found = re.fullmatch(r"\[chooser\]\(91_chooser\.ipynb#cell-id=([\w-]+)\)", where)
        assert found, where
        (cell,) = [cell for cell in PAGES["chooser"].notebook.cells if cell.id == found[1]]
        assert cell.source.startswith(f"### {term['want']}\n")
    else:
        where = where.replace("\u00a0§\u00a0", ", section ")
        assert where == placeholders.make_link(term["chapter"], term["section"])
        heading = heading_at(where)
        assert heading == term["section"] or heading.startswith(f"{term['section']} · ")
    assert re.search(r"[\uac00-\ud7a3]", term.get("korean", "가"))
    assert re.fullmatch(r"[\u4e00-\u9fff]+", term.get("chinese", "钩"))


@pytest.mark.parametrize(
    ("what", "name", "message"),
    [
        ("verse", "", "there is no placeholder 'verse'; there are: claim, verdict"),
        ("document", "D7", "claims.toml has no document 'D7'"),
        ("verdict", "D0.77", "claims.toml has no claim 'D0.77'"),
    ],
)
def test_a_placeholder_that_stands_for_nothing_is_named(what: str, name: str, message: str) -> None:
    with pytest.raises(LookupError, match=re.escape(message)):
        placeholders.fill(what, name)


@pytest.mark.parametrize(
    ("chapter", "section", "message"), [(77, 1, "no chapter 77"), (3, 9, "chapter 03 has no section '9'")]
)
def test_a_link_to_no_chapter_or_section_is_named(chapter: int, section: int, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        placeholders.make_link(chapter, section)
