"""The minutes at the head of a page follow from what is on it; no sitting is longer than 40 minutes."""

from __future__ import annotations

import nbformat
import pytest

from hookscope_course.practice import read_exercises
from lessons.build import chapter_notebook, page_minutes
from lessons.build.page_minutes import Minutes
from tests.shared.parsed_chapters import CHAPTERS


def code(source: str, *tags: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})


def test_words_lines_and_cells_take_time_and_an_exercise_takes_its_own() -> None:
    words = nbformat.v4.new_markdown_cell(
        "word " * 2 * page_minutes.WORDS_A_MINUTE + "\n\n```python\n" + "x = 1\n" * 500 + "```"
    )
    assert page_minutes.estimate_minutes([words], 0) == Minutes(2, 0), "code that is only read counts with its cell"
    lines = [code("x = 1\n\n" * 10)] * 10
    seconds = 10 * (page_minutes.SECONDS_A_CELL + 10 * page_minutes.SECONDS_A_LINE)
    assert page_minutes.estimate_minutes(lines, 0) == Minutes(round(seconds / 60), 0), "blank lines are free"
    parts = [code("x = 1\n" * 500, tag) for tag in ("exercise", "hint", "solution")]
    assert page_minutes.estimate_minutes([*lines, *parts], 7) == Minutes(round(seconds / 60), 7)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_no_sitting_is_longer_than_can_be_borne(chapter: chapter_notebook.Chapter) -> None:
    for number, sitting in enumerate(chapter.sittings, start=1):
        assert sitting.total <= page_minutes.SITTING, (
            f"sitting {number}: {sitting}; cut, or put {{{{stop}}}} between sections"
        )


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_the_head_says_minutes_of_reading_and_of_exercises_and_stops_say_what_follows(
    chapter: chapter_notebook.Chapter,
) -> None:
    given = sum(text.minutes for text in read_exercises(chapter.source.with_name("exercises.md")))
    assert chapter.minutes.exercises == given, "every exercise belongs to a sitting"
    _, head, *cells = chapter.notebook.cells
    assert f"**{chapter.minutes.reading} minutes** to read and run · **{given} minutes** of exercises" in head.source
    stops = [cell.source for cell in cells if "stop" in cell.metadata.get("tags", [])]
    assert len(stops) == len(chapter.sittings) - 1
    for stop, sitting in zip(stops, chapter.sittings[1:], strict=True):
        assert f"The next part takes about {sitting}." in stop
