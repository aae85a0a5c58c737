"""The learner's edition of every notebook: no result, no solution, no answer above its question."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from hookscope_course.kernel_settings import open_over_files
from hookscope_course.learner.copies import list_chapters, make_edition
from hookscope_course.learner.learner_edition import FOLDED, REASON
from hookscope_course.learner.why_texts import read_reason
from hookscope_course.paths import NOTEBOOKS
from hookscope_course.practice import ExerciseText, read_exercises
from hookscope_course.practice.question import label, question
from lessons.build import lesson_source
from tests.shared import PATIENCE

PAGES = list_chapters(NOTEBOOKS)
# By chapter: answers whose words or digits stand above their question, and why they give nothing away there.
NOT_GIVEN_AWAY = {
    "00": {"block1, block2, block3": "the order in the model, which the text above names"},
    "02": {"2": "the weight of the layer, and its gradient"},
    "08": {
        "(root)": "it is the last one if the input requires grad",
    },
    "09": {"A": "the name of one of the two pictures"},
    "10": {
        "0.14": "the probability before; the question is what becomes of it",
        "8": "what the network read before; the question is what it reads without five patches",
    },
    "11": {
        "latest": "one of the four hooks that the question is about; the text above names them all",
        "record": "one of the four questions to choose from; the table above names them all",
    },
    "12": {"0": "what a channel is set to, and where the strength begins"},
    "14": {"[CLS]": "one of the tokens to choose from; the text above says what they are"},
    "15": {"1": "the number of a block", "bank": "one of the words of the sentence to choose from"},
    "16": {"1.0": "an index", "output[:, -1]": "one of the five hooks to choose from; the text above names them all"},
    "19": {"0": "the gray of a cover, and what a channel is set to"},
    "20": {
        "inf": "one of the three watchdogs to choose from; the text above names them all",
        "look_at_some": "one of the three hooks to choose from; the cell above has them all",
    },
}


@pytest.fixture(params=PAGES, ids=lambda path: path.stem)
def name(request: pytest.FixtureRequest) -> str:
    return getattr(request.param, "stem", request.param)


@pytest.fixture
def edition(name: str) -> nbformat.NotebookNode:
    return nbformat.reads(make_edition(NOTEBOOKS / f"{name}.ipynb").decode(), as_version=4)


@pytest.fixture
def texts(name: str) -> list[ExerciseText]:
    file = lesson_source.LESSONS / name / "exercises.md"
    return read_exercises(file) if file.exists() else []


def test_it_is_a_valid_notebook_that_was_never_run(edition: nbformat.NotebookNode) -> None:
    nbformat.validate(edition)
    for cell in edition.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_a_reason_is_a_cell_that_waits_for_its_guess(edition: nbformat.NotebookNode, name: str) -> None:
    """It shows the text that the built page has there; no code is hidden with it, and no cell is folded."""
    asked, reasons = "", []
    for cell in edition.cells:
        assert FOLDED not in cell.metadata or name.startswith("90"), "who opens no fold has not run the cells in it"
        if found := re.search(r'about="(\d\d\.\d+)"', cell.source):
            asked = found[1]
        if cell.source == REASON:
            assert (cell.cell_type, cell.metadata.jupyter.source_hidden) == ("code", True)
            reasons.append(asked)
    solved = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    texts = [re.split(r"^#{1,6} ", text, flags=re.M)[0] for cell in solved.cells if cell.cell_type == "markdown"
             for text in re.split(r"^(?=\*\*Why\.\*\* )", cell.source, flags=re.M)[1:]]  # fmt: skip
    assert [read_reason(about) for about in reasons] == [text.strip() for text in texts]
    assert len({*reasons}) == len(reasons)


def test_links_to_headings_still_lead_there(edition: nbformat.NotebookNode, name: str) -> None:
    built = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    kept = {cell.id: cell for cell in edition.cells}
    assert len(kept) == len(edition.cells)
    for cell in built:
        if heading := re.search(r"^#{1,3} .+$", cell.source, re.M) if cell.cell_type == "markdown" else None:
            assert heading[0] in kept[cell.id].source


def test_no_label_stands_where_it_has_nothing_to_say(edition: nbformat.NotebookNode) -> None:
    for cell in edition.cells:
        assert cell.source.strip() not in ("**Run.**", "**See.**")
        assert "<summary>Details</summary>" not in cell.source, "say what is in it"


def test_every_question_and_its_starter_is_there(edition: nbformat.NotebookNode, texts: list[ExerciseText]) -> None:
    sources = [cell.source for cell in edition.cells]
    for text in texts:
        assert text.question in "\n".join(sources)
        place = sources.index(text.starter.strip())
        assert "raises-exception" in edition.cells[place].metadata.tags, "an error in it stops the cells below"
        assert (sources[place + 1] == f"# {text.name}.hint()\n# {text.name}.solution()") != text.in_lab
    assert "make lab" not in sources[0], "the note about the other edition"


def test_no_line_that_only_a_solution_has_is_in_its_bytes(name: str, texts: list[ExerciseText]) -> None:
    solved = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    rest = "\n".join(cell.source for cell in solved.cells if not cell.source.startswith("# solution"))
    lines = {line.strip() for text in texts if not text.in_lab for line in text.solution.splitlines()}
    secret = [line for line in lines if len(line) > 8 and line not in rest]
    assert len(secret) >= bool(texts), "else this test would find nothing"
    page = make_edition(NOTEBOOKS / f"{name}.ipynb").decode()
    for line in secret:
        assert json.dumps(line, ensure_ascii=False)[1:-1] not in page


def test_no_answer_to_a_guess_stands_above_the_cell_that_shows_it(edition: nbformat.NotebookNode) -> None:
    """Between a Predict and its Run there is the question only, and the reason is not in the file."""
    for cell in edition.cells:
        assert not re.search(r"^\*\*Why\.\*\*", cell.source, re.M), cell.source[:80]
        if cell.source.startswith("**Predict.**"):
            assert not re.search(r"\*\*(Run|See)\.\*\*", cell.source), cell.source[:80]
    for at, cell in enumerate(edition.cells):
        if cell.source.startswith("guess = Guess("):
            assert re.match(r"guess = Guess\((____)", cell.source), f"a guess is filled in: {cell.source}"
            below = "\n".join(later.source for later in edition.cells[at + 1 :])
            assert "guess.compare(" in below


def test_a_text_for_who_cannot_see_a_figure_is_folded(edition: nbformat.NotebookNode) -> None:
    for cell in edition.cells:
        if cell.cell_type == "code" and re.search(r"\balt\s*=", cell.source):
            assert cell.metadata.jupyter.source_hidden


def test_the_answer_to_a_guess_is_read_nowhere_above_it_in_its_section(
    edition: nbformat.NotebookNode, name: str
) -> None:
    """The saved outputs say what comes out; nothing above the question may, nor the words between it and its cell."""
    solved = {cell.source: cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells}
    read, section, guessed, above = set(), [""], 0, ""
    for cell in edition.cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.M):
            section = []
        if cell.source.startswith("guess = Guess("):
            asked = max(place for place, text in enumerate(section) if "**Predict.**" in text)
            before, _, _ = section[asked].partition("**Predict.**")  # the question may name what to choose from
            above = "\n".join([*section[:asked], before, *section[asked + 1 :]])
            guessed = len(section)
        if "guess.compare(" in cell.source:
            (said,) = (output.data["text/plain"] for output in solved[cell.source].outputs[-1:])
            answer = re.fullmatch(r"The answer: (.+)\.", said)
            assert answer, said
            between = [text for text in section[guessed:] if text.startswith("**")]  # not the code that finds it out
            words = re.sub(r"^## \d+ · ", "", "\n".join([above, *between]), flags=re.M)
            if answer[1] not in ("yes", "no") and standing(answer[1]).search(words):
                read.add(answer[1])
        section.append(cell.source)
    assert read == {*NOT_GIVEN_AWAY.get(name[:2], {})}


def test_the_line_that_a_closed_cell_shows_has_no_answer(edition: nbformat.NotebookNode, name: str) -> None:
    """JupyterLab shows the first line of a closed cell, so the ones below an open question are on the screen."""
    solved = {cell.source: cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells}
    for section in sections(edition.cells):
        for compares in (cell for cell in section if "guess.compare(" in cell.source):
            said = solved[compares.source].outputs[-1].data["text/plain"]
            answer = said.removeprefix("The answer: ").removesuffix(".")
            guessed = next(at for at, cell in enumerate(section) if cell.source.startswith("guess = Guess("))
            asked = re.search(r'about="(.+?)"', section[guessed].source)
            choices = [label(choice) for choice in question(asked[1]).choices] if asked else []
            for cell in section[guessed:]:
                if cell.cell_type == "code" and cell.metadata.get("jupyter", {}).get("source_hidden"):
                    first = cell.source.partition("\n")[0]
                    named = [choice for choice in {answer, *choices} if standing(choice).search(first)]
                    assert named != [answer] or len(answer) == 1, first  # one digit can be an index


def sections(cells: list[nbformat.NotebookNode]) -> list[list[nbformat.NotebookNode]]:
    """The cells of each part that begins with a heading of level 2."""
    found: list[list[nbformat.NotebookNode]] = [[]]
    for cell in cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.M):
            found.append([])
        found[-1].append(cell)
    return found


def standing(answer: str) -> re.Pattern[str]:
    """What finds an answer in a text: its words or numbers in their order, 5 for 5.0, up to four words between."""
    parts = [re.escape(part.removesuffix(".0")) for part in answer.split(", ")]
    numbers = [rf"{part}(?:\.0)?" if part[-1:].isdigit() else part for part in parts]
    return re.compile(r"(?<![\w.])" + r"\W+(?:[^\W\d]+\W+){0,4}".join(numbers) + r"(?!\w|\.\d)", re.IGNORECASE)


SOME = ("00", "02", "07")  # in every `make test`, in which nbval runs the cells of all chapters


@pytest.mark.parametrize(
    "name",
    [pytest.param(page.stem, marks=[pytest.mark.slow] * (page.stem[:2] not in SOME), id=page.stem) for page in PAGES],
    indirect=True,
)
def test_run_all_runs_to_the_end_and_solves_nothing(
    edition: nbformat.NotebookNode, name: str, texts: list[ExerciseText], tmp_path: Path
) -> None:
    """Browser tests do the same in a real JupyterLab, with chapter 00, and in `make test-all` with all."""
    NotebookClient(
        edition,
        timeout=PATIENCE,
        kernel_name="python3",
        config=open_over_files(),
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    said = [str(output.get("text", output.get("data", {}).get("text/plain"))) for output in outputs(edition)]
    kinds = {(output.output_type, output.get("name")) for output in outputs(edition)}
    assert not kinds & {("error", None), ("stream", "stderr")}
    blank = [words for words in said if words.startswith("Not attempted:")]
    assert len(blank) == sum("exercise" in cell.metadata.get("tags", []) for cell in edition.cells) >= len(texts)
    assert not any(words.startswith("Right.") for words in said)
    assert not texts or said[-1].startswith("0 hooks")
    drawn = "application/vnd.jupyter.widget-view+json"
    solved = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    counts = [sum(drawn in output.get("data", {}) for output in outputs(each)) for each in (edition, solved)]
    assert counts[0] == counts[1]


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]
