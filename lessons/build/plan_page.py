"""Make the plan page: which sections fill a lesson, a day, a term, with the minutes that the chapters say.

`lessons/plan.toml` names sections and exercises, as in "02: opening, 1, 2, q1"; the minutes are computed. A unit of a
plan that would not fit into its time is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lessons.build import lesson_source
from lessons.build.chapter_notebook import Chapter, read_exercises_of
from lessons.build.lesson_source import LessonError, format_location
from lessons.build.placeholders import make_table
from lessons.build.slide_contents import OPENING
from lessons.build.teacher_pages import Part, get_folder, list_parts, make_teacher_pages, scale_to_class

_NAMED = {"opening": OPENING, "documents": "What the documents say", "recap": "Recap"}


@dataclass(frozen=True)
class Piece:
    """One thing to do: a part of a chapter or an exercise, with its minutes alone and in class."""

    name: str
    alone: int
    in_class: int


def get_plan_path() -> Path:
    """Where the plans are written."""
    return lesson_source.LESSONS / "plan.toml"


class Planner:
    """Knows the minutes of every section and exercise.

    Args:
        chapters: all that there are.

    """

    def __init__(self, chapters: Iterable[Chapter]) -> None:
        self.chapters = {one.number: one for one in chapters if one.header.get("kind") != "reference"}
        self.parts: dict[str, list[Part]] = {number: list_parts(one) for number, one in self.chapters.items()}
        self.exercises = {number: read_exercises_of(one.source) for number, one in self.chapters.items()}

    def pieces(self, line: str) -> list[Piece]:
        """What a line such as "02: opening, 1, q1" stands for.

        Raises:
            LookupError: there is no such chapter, section or exercise; says which.

        """
        number, _, names = line.partition(": ")
        if number not in self.chapters:
            raise LookupError(f"'{line}': there is no chapter '{number}'")
        return [self._piece(number, name.strip()) for name in names.split(",")]

    def _piece(self, number: str, name: str) -> Piece:
        if re.fullmatch(r"q\d+", name):
            text = self.exercises[number].get(name)
            if text is None:
                raise LookupError(f"chapter {number} has no exercise '{name}'")
            return Piece(f"exercise {text.number}", text.minutes, scale_to_class(text.minutes))
        for part in self.parts[number]:
            if part.heading == _NAMED.get(name) or part.heading.startswith(f"{name} · "):
                # Of a section that has exercises in it, only the section: exercises are named one by one.
                return Piece(f"{number} {part.heading}", part.minutes.reading, part.in_class.reading)
        raise LookupError(f"chapter {number} has no section '{name}'; there are numbers, {', '.join(_NAMED)}")


def make_plan_page(chapters: Iterable[Chapter]) -> str:
    """The plan page, as Markdown.

    Raises:
        LessonError: plan.toml names what is not there, or a unit takes longer than it may.

    """
    chapters = list(chapters)
    planner = Planner(chapters)
    data = tomllib.loads(get_plan_path().read_text(encoding="utf-8"))
    lines = ["# Plans for a class", data["text"].strip()]
    lines.append(
        "The teacher's pages: "
        + " · ".join(f"[{one.number} {one.header['title']}]({one.name}.md)" for one in planner.chapters.values())
    )
    lines += ["## At the projector", data["projector"].strip()]
    for plan in data["plan"]:
        lines += [f"## {plan['name']}", plan["text"].strip()]
        rows = [_make_row(planner, unit, plan["minutes"]) for unit in plan["unit"]]
        lines.append(make_table(("", "In class", "Minutes", "At home", "Minutes"), rows))
    lines += ["## Exercises that are graded", data["grading"].strip()]
    return "\n\n".join(lines) + "\n"


def _make_row(planner: Planner, unit: dict[str, object], limit: int) -> tuple[str, str, str, str, str]:
    def of(kind: str) -> list[Piece]:
        found = unit.get(kind, [])
        assert isinstance(found, list)
        return [piece for line in found for piece in planner.pieces(line)]

    try:
        now, later = of("class"), of("home")
    except LookupError as error:
        raise LessonError(f"{format_location(get_plan_path(), 1)}: {error.args[0]}") from None
    total = sum(piece.in_class for piece in now)
    if total > limit:
        raise LessonError(
            f"{format_location(get_plan_path(), 1)}: '{unit['name']}' takes {total} minutes, and has {limit}"
        )
    return (
        str(unit["name"]),
        "<br>".join(f"{piece.name} ({piece.in_class})" for piece in now),
        f"{total} of {limit}",
        "<br>".join(f"{piece.name} ({piece.alone})" for piece in later),
        str(sum(piece.alone for piece in later) or ""),
    )


def make_pages(chapters: Iterable[Chapter]) -> dict[Path, str]:
    """Every page in teaching/, and what should be in it."""
    chapters = list(chapters)
    plan = {get_folder() / "plan.md": make_plan_page(chapters)} if get_plan_path().exists() else {}
    return dict(make_teacher_pages(chapters)) | plan


def list_stale_pages(chapters: Iterable[Chapter]) -> list[str]:
    """The names of the pages that are out of step, missing, or of no chapter."""
    wanted = make_pages(chapters)
    wrong = [path.name for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    return wrong + [path.name for path in sorted(get_folder().glob("*.md")) if path not in wanted]


def write(chapters: Iterable[Chapter]) -> None:
    """Bring the pages up to date."""
    for path, text in make_pages(chapters).items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
