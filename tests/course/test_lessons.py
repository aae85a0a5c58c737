"""Every chapter has the parts of a chapter, in their order, and reads well on a small screen."""

from __future__ import annotations

import re

import nbformat
import pytest

from hookscope_course.practice import read_exercises
from hookscope_course.practice.question import questions_of
from lessons.build import chapter_notebook
from tests.shared.parsed_chapters import CHAPTERS


@pytest.fixture(params=CHAPTERS, ids=lambda chapter: chapter.name)
def chapter(request: pytest.FixtureRequest) -> chapter_notebook.Chapter:
    return request.param


def code_cells(chapter: chapter_notebook.Chapter) -> list[str]:
    return [cell.source for cell in chapter.notebook.cells if cell.cell_type == "code"]


def markdown(chapter: chapter_notebook.Chapter) -> str:
    return "\n\n".join(cell.source for cell in chapter.notebook.cells if cell.cell_type == "markdown")


def test_code_fits_a_small_screen(chapter: chapter_notebook.Chapter) -> None:
    for source in code_cells(chapter):
        lines = source.splitlines()
        assert len(lines) <= 30, f"{len(lines)} lines:\n{source}"
        assert max(map(len, lines)) <= 90, f"a line of {max(map(len, lines))} characters in:\n{source}"


def test_first_code_cell_is_imports_and_nothing_else(chapter: chapter_notebook.Chapter) -> None:
    lines = code_cells(chapter)[0].splitlines()
    assert all(re.match(r"import |from |$", line) for line in lines), lines


def test_sections_predict_run_see_why_in_this_order(chapter: chapter_notebook.Chapter) -> None:
    sections = re.split(r"^## (\d+) · ", markdown(chapter), flags=re.MULTILINE)[1:]
    numbers, texts = sections[::2], [text.split("\n## ")[0] for text in sections[1::2]]
    assert 2 <= len(texts) <= 4 + len(chapter.sittings)
    assert numbers == [str(number) for number in range(1, len(texts) + 1)]
    for text in texts:
        words = re.findall(r"^\*\*(Predict|Run|See|Why)\.\*\*", text, re.MULTILINE)
        assert [word for word in words if word in ("Predict", "Why")] == ["Predict", "Why"], text[:80]
        assert words == [word for word in ("Predict", "Run", "See", "Why") if word in words], text[:80]


def test_a_box_says_what_it_holds(chapter: chapter_notebook.Chapter) -> None:
    for title in re.findall(r"<summary>(.*?)</summary>", markdown(chapter)):
        assert re.fullmatch(r"Details: .{5,}", title), title


def test_every_guess_is_held_against_what_was_seen(chapter: chapter_notebook.Chapter) -> None:
    code = "\n".join(code_cells(chapter))
    asked = re.findall(r'^guess = Guess\(____, about="(.+?)"\)$', code, re.MULTILINE)
    assert len(asked) == code.count("guess.compare(") >= 2
    assert asked == sorted({*asked}), "a section asks one question"
    assert {*asked} <= {*questions_of(int(chapter.number))}
    assert len(asked) == len(questions_of(int(chapter.number)))


def test_parts_come_in_order(chapter: chapter_notebook.Chapter) -> None:
    headings = re.findall(r"^## (\D.*)$", markdown(chapter), re.MULTILINE)
    assert [heading for heading in headings if heading != "What the documents say"] == ["Exercises", "Recap"]
    assert "**Use this when**" in markdown(chapter)


def test_one_to_four_exercises_each_with_question_blank_hint_and_folded_solution(
    chapter: chapter_notebook.Chapter,
) -> None:
    texts = {text.name: text for text in read_exercises(chapter.source.with_name("exercises.md"))}
    names = [name for name, text in texts.items() if not text.in_lab]
    most = {"11": 6}.get(chapter.number, 4)  # in 11 each bug is one
    assert 1 <= len(names) <= most
    cells = chapter.notebook.cells
    lines = "\n".join(code_cells(chapter)).splitlines()
    unpacked = ", ".join(texts) if len(texts) > 1 else f"({', '.join(texts)},)"
    assert f"{unpacked} = exercises({int(chapter.number)})" in lines
    for name, text in texts.items():
        place = next(at for at, cell in enumerate(cells) if f"# {text.heading}\n\n{text.question}" in cell.source)
        question, blank, hint, solution = cells[place : place + 4]
        assert question.cell_type == "markdown"
        assert blank.source == text.starter.strip()
        assert f"{name}.check(" in blank.source
        if name in names:
            assert "____" in blank.source or text.is_bug
            assert hint.source == f"# {name}.hint()"
            assert solution.source == f"# solution\n{text.solution.strip()}"
    solutions = [cell for cell in cells if "solution" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines()[0] for cell in solutions] == ["# solution"] * len(names)
    assert all(cell.metadata["jupyter"] == {"source_hidden": True, "outputs_hidden": True} for cell in solutions)


def test_no_bug_is_told_before_the_learner_has_looked_for_it(chapter: chapter_notebook.Chapter) -> None:
    """The builder runs each cell once, and the first run of untouched code does not tell."""
    built = nbformat.read(chapter.target, as_version=4)
    if built.metadata["hookscope"] != chapter.notebook.metadata["hookscope"]:
        pytest.skip("the notebook is older than the lesson")
    for cell in built.cells:
        if "exercise" in cell.metadata.get("tags", []):
            said = str(cell.outputs)
            assert "Its bug:" not in said
            assert "What goes wrong in it:" not in said


def test_last_cell_shows_that_no_hook_is_left(chapter: chapter_notebook.Chapter) -> None:
    code = [cell for cell in nbformat.read(chapter.target, as_version=4).cells if cell.cell_type == "code"]
    assert re.match(rf"chapter_end\(\s*{int(chapter.number)},", code[-1].source)
    assert code[-1].outputs[0].data["text/plain"].startswith("0 hooks are left on ")


def test_figures_have_alt_text_and_numbers(chapter: chapter_notebook.Chapter) -> None:
    for cell in nbformat.read(chapter.target, as_version=4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "data:image/png" in (html := data.get("text/html", "")):
                assert "image/png" not in data, "a notebook stores each picture once"
                assert html.count("<img ") == len(re.findall(r'<img alt="[^"]{20,}"', html)) == 1
                # What is not solved yet shows names, and no numbers.
                assert "<table>" in data["text/html"] or data["text/plain"].startswith("PlayingMap")
