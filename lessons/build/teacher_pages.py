"""Make the teacher's pages: what teaching.md says of a chapter, with minutes, answers and solutions from its sources.

    ## Have ready                     what the teacher needs on the table
    ## 1 · Around one layer           each numbered section of the chapter, under its own heading, with four parts:
    **Ask.**                          a question to the class, beside the Predict
    **If they are wrong.**            what to show next
    **If they are quick.**            what to show next
    **Leave out.**                    what can go when time is short

Behind the question a page lists the wrong guesses and the reply to each, from the chapter's guesses.toml.

Above the first heading stands what the lesson is for. The pages are for teachers alone: they have every answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from hookscope_course.practice.exercise_parser import ExerciseText
from hookscope_course.practice.question import Question, questions_of
from lessons.build import lesson_source, page_minutes, placeholders
from lessons.build.chapter_notebook import Chapter, read_exercises_of
from lessons.build.lesson_source import LessonError, format_location
from lessons.build.page_minutes import Minutes
from lessons.build.placeholders import make_table
from lessons.build.slide_contents import OPENING, find_answer, list_slide_contents

# The chapters' 510 minutes of reading hold 70 Predicts, one every 7 minutes. A class takes about 3.5 minutes more for
# each: one to vote, two to argue with a neighbour, half a one until the last has run the cell. (7 + 3.5) / 7 = 1.5.
CLASS_PACE = 1.5
PARTS = ("Ask", "If they are wrong", "If they are quick", "Leave out")
READY = "Have ready"


def scale_to_class(minutes: int) -> int:
    """How long a class takes for what takes a learner alone these minutes; rounded up."""
    return math.ceil(CLASS_PACE * minutes)


@dataclass(frozen=True)
class Part:
    """What stands below one heading of a chapter, and how long it takes a learner alone."""

    heading: str
    minutes: Minutes

    @property
    def in_class(self) -> Minutes:
        """How long it takes a class."""
        return Minutes(scale_to_class(self.minutes.reading), scale_to_class(self.minutes.exercises))


@dataclass(frozen=True)
class Teaching:
    """A chapter's teaching.md: what the lesson is for, what to have ready, and the parts of each section by name."""

    purpose: str
    ready: str
    sections: dict[str, dict[str, str]]


def read_teaching(chapter: Chapter) -> Teaching:
    """Read what to say, ask and leave out.

    Raises:
        LessonError: it lacks a section or a part; says which, with file and line.

    """
    path = chapter.source.with_name("teaching.md")
    if not path.exists():
        raise LessonError(
            f"{format_location(path, 1)}: the teacher's page is missing; to copy: lessons/02_call_order/teaching.md"
        )
    title, *pieces = re.split(r"^## (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    wanted = [READY, *(part.heading for part in list_parts(chapter) if part.heading[0].isdigit())]
    if [*found] != wanted:
        raise LessonError(
            f"{format_location(path, 1)}: the headings are {', '.join(found)}; they must be {', '.join(wanted)}"
        )
    sections = {}
    for heading, text in found.items():
        if heading != READY:
            names = re.split(rf"^\*\*({'|'.join(PARTS)})\.\*\*", text, flags=re.MULTILINE)
            parts = dict(zip(names[1::2], map(str.strip, names[2::2]), strict=True))
            if tuple(parts) != PARTS or names[0].strip() or not all(parts.values()):
                line = path.read_text(encoding="utf-8").split(f"## {heading}\n")[0].count("\n") + 1
                raise LessonError(f"{format_location(path, line)}: a section has, in this order: {', '.join(PARTS)}")
            sections[heading] = parts
    return Teaching(title.partition("\n")[2].strip(), found[READY], sections)


def list_parts(chapter: Chapter) -> list[Part]:
    """The parts of a chapter in their order, from the opening to the recap, each with its minutes."""
    given = {text.number: text.minutes for text in read_exercises_of(chapter.source).values()}
    cells: dict[str, list[NotebookNode]] = {}
    for heading, cell in _pair_with_headings(chapter.notebook.cells):
        cells.setdefault(heading, []).append(cell)
    return [
        Part(
            heading,
            page_minutes.estimate_minutes(
                below, sum(given[c.metadata["exercise"]] for c in below if "exercise" in c.metadata)
            ),
        )
        for heading, below in cells.items()
    ]


def _pair_with_headings(cells: Iterable[NotebookNode]) -> Iterator[tuple[str, NotebookNode]]:
    """Give each cell with the heading it stands below; a cell of text that has a heading inside is cut there."""
    heading = OPENING
    for cell in cells:
        if {"edition", "stop"} & set(cell.metadata.get("tags", [])):
            continue
        if cell.cell_type == "code":
            yield heading, cell
            continue
        for piece in filter(str.strip, re.split(r"^(?=## )", cell.source, flags=re.MULTILINE)):
            if found := re.match(r"## (.+)", piece):
                heading = found[1]
            yield heading, NotebookNode(cell_type="markdown", source=piece, metadata=cell.metadata)


def find_answers(chapter: Chapter) -> dict[str, list[str]]:
    """The answers to the Predicts below each heading, from what the built notebook shows."""
    return _find_answers(chapter.target.read_text(encoding="utf-8")) if chapter.target.exists() else {}


@cache
def _find_answers(notebook: str) -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    for heading, cell in _pair_with_headings(nbformat.reads(notebook, as_version=4).cells):
        if answer := find_answer(cell):
            answers.setdefault(heading, []).append(answer)
    return answers


def make_page(chapter: Chapter) -> str:
    """The teacher's page of a chapter, as Markdown.

    Raises:
        LessonError: teaching.md is not complete, or a section has a question whose answer the notebook does not show.

    """
    teaching, parts, answers = read_teaching(chapter), list_parts(chapter), find_answers(chapter)
    lines = [
        f"# {chapter.number} · {chapter.header['title']}: the teacher's page",
        f"*Made by `make build` from [its sources](../lessons/{chapter.name}); the questions come from `teaching.md`. "
        "Every answer is on this page: keep it from learners, and out of every hand-out. Slides have the numbers that "
        "`make class` and `make slides` show; [the plans](plan.md#at-the-projector) say which keys to press.*",
        teaching.purpose,
        _make_times_table(parts),
        f"## {READY}",
        teaching.ready,
    ]
    for part in parts:
        if part.heading in teaching.sections:
            if not answers.get(part.heading):
                raise LessonError(
                    f"{format_location(chapter.source, 1)}: notebooks/{chapter.target.name} shows no answer in "
                    f"'{part.heading}'"
                )
            lines.append(f"## {part.heading} · {part.in_class.reading} minutes in class")
            lines += _describe_slides(chapter, part.heading)
            for name, text in teaching.sections[part.heading].items():
                lines.append(f"**{name}.**{_get_separator(text)}{text}")
                if name == "Ask":
                    lines.append("**The answer.** " + "; then: ".join(map(_format_code, answers[part.heading])))
                    lines += _list_wrong_guesses(chapter, part.heading)
        elif part.heading in answers:
            lines.append(f"## {part.heading} · {part.in_class.reading} minutes in class")
            lines += _describe_slides(chapter, part.heading)
            lines.append("**The answer** to its Predict. " + "; then: ".join(map(_format_code, answers[part.heading])))
            lines += _list_wrong_guesses(chapter, part.heading)
    lines.append("## Answers to the exercises")
    for exercise in read_exercises_of(chapter.source).values():
        lines.extend(_describe_exercise(exercise))
    return "\n\n".join(lines) + "\n"


def _describe_slides(chapter: Chapter, heading: str) -> Iterator[str]:
    """Which slides a part has, what is on them, and where its pictures are."""
    first, last, seen = list_slide_contents(chapter)[heading]
    address = f"../notebooks/{chapter.target.name}"
    if heading != OPENING:  # which has no heading of its own
        address += f"#{placeholders.make_cell_fragment(heading)}"
    yield f"**On the screen.** Slides {first} to {last}. [Its results are in the notebook]({address})."
    if seen:
        yield "\n".join(f"- {line}" for line in seen)


def _list_wrong_guesses(chapter: Chapter, heading: str) -> Iterator[str]:
    """The wrong guesses of a section or of the opening, and what the page says to each."""
    number = "0" if heading == OPENING else heading.split()[0]
    asked = questions_of(int(chapter.number)).get(f"{chapter.number}.{number}", Question())
    names = {True: "yes", False: "no"}  # as on the buttons
    said = [
        f"- `{names[guess] if isinstance(guess, bool) else repr(guess)}`: {reason}" for guess, reason in asked.wrong
    ]
    said += [f"- any other: {asked.otherwise}"] * bool(asked.otherwise)
    if said:
        yield "**Wrong guesses,** and the reply to each:"
        yield "\n".join(said)


def _make_times_table(parts: list[Part]) -> str:
    rows = [
        (part.heading, str(part.minutes.reading), str(part.minutes.exercises or ""), str(part.in_class.total))
        for part in parts
    ]
    sums = (
        "**all**",
        str(sum(part.minutes.reading for part in parts)),
        str(sum(part.minutes.exercises for part in parts)),
        str(sum(part.in_class.total for part in parts)),
    )
    return make_table(("Part", "Minutes alone", "Exercises", "Minutes in class"), [*rows, sums])


def _describe_exercise(text: ExerciseText) -> Iterator[str]:
    """An exercise with its solution, and what is said to each wrong answer."""
    yield f"### {text.heading}"
    yield text.question
    yield f"**A solution.** {text.why}"
    yield _format_fence(text.solution)
    yield "**Wrong answers,** and a part of the reply to each:"
    for code, message in text.wrong:
        yield _format_fence(code)
        yield f"> {message}"


def _get_separator(text: str) -> str:
    return "\n\n" if text.startswith("- ") else " "


def _format_code(answer: str) -> str:
    return f"`{answer}`"


def _format_fence(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def get_folder() -> Path:
    """Where the pages go."""
    return lesson_source.ROOT / "teaching"


def make_teacher_pages(chapters: Iterable[Chapter]) -> Iterator[tuple[Path, str]]:
    """Every teacher's page and where it goes; of chapters that have a teaching.md and were built."""
    for chapter in chapters:
        if chapter.source.with_name("teaching.md").exists() and chapter.target.exists():
            yield get_folder() / f"{chapter.name}.md", make_page(chapter)
