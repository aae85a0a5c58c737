"""The course on its index: a map with a link to each chapter, a table for each part, and the sections for one hour."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from lessons.build import lesson_source, page_minutes, placeholders
from lessons.build.lesson_source import name_of

ROUTES = {
    "I have 90 minutes (single sections)": ("●", {0, 3, 7, 8, 11}),
    "I look into photographs": ("◆", {0, 3, 5, 6, 8, 10, 19}),
    "I debug models": ("■", {0, 2, 3, 7, 11, 12, 20}),
    "I look into language models": ("▲", {0, 3, 4, 14, 15, 16, 21}),
}
"""The ways through the course: sign, chapters."""
# What fits into a column.
_SHORT = {
    1: "the call", 2: "order", 6: "picker", 8: "backward hooks", 9: "grad_input quirks", 14: "transformer",
    15: "patch, ablate", 16: "steer", 17: "parts", 18: "at work", 19: "why a barbell?", 20: "a watchdog",
    21: "whose hat?",
}  # fmt: skip


def read_parts() -> list[dict[str, Any]]:
    """The parts of the course in their order."""
    return list(tomllib.loads((lesson_source.LESSONS / "index" / "course.toml").read_text(encoding="utf-8"))["part"])


def find_next_chapters(number: int) -> dict[int, list[str]]:
    """Return the chapters that follow a chapter in its part and on the routes, each with what it follows in."""
    is_whole = (lesson_source.LESSONS / "index").is_dir()  # a course without an index has no parts
    orders = {part["name"]: part["chapters"] for part in read_parts()} if is_whole else {}
    orders |= {name: sorted(chapters) for name, (sign, chapters) in ROUTES.items() if sign != "●"}
    found: dict[int, list[str]] = {}
    for name, chapters in orders.items():
        if number in chapters[:-1]:
            found.setdefault(chapters[chapters.index(number) + 1], []).append(name)
    return found


def list_finished_routes(number: int) -> list[str]:
    """Return the routes whose last chapter this is."""
    return [name for name, (sign, chapters) in ROUTES.items() if sign != "●" and number == max(chapters)]


def make_cells(minutes_of: Callable[[Path], int]) -> Iterator[NotebookNode]:
    """The map of the course, and a table for each part.

    Args:
        minutes_of: tells a lesson's minutes, given its path.

    """
    paths = {int(name_of(path)[:2]): path for path in lesson_source.chapter_files()}
    yield nbformat.v4.new_markdown_cell(_make_map({number: minutes_of(path) for number, path in paths.items()}))
    for part in read_parts():
        rows = []
        for number in part["chapters"]:
            path = paths[number]
            header = lesson_source.header_of(path)
            title = f"[{number:02} · {header['title']}]({name_of(path)}.ipynb)"
            rows.append((title, header["promise"], str(minutes_of(path))))
        table = placeholders.make_table(("Chapter", "What for", "Minutes"), rows)
        yield nbformat.v4.new_markdown_cell(f"### {part['name']}\n\n{part['after']}\n\n{table}")


def _make_map(minutes: Mapping[int, int]) -> str:
    """A column for each part, a link for each chapter, signs for the routes and how long these take."""
    names = {int(name_of(path)[:2]): name_of(path) for path in lesson_source.chapter_files()}

    def entry(number: int | None) -> str:
        if number is None:
            return ""
        short = _SHORT.get(number, names[number][3:].replace("_", " "))
        signs = "".join(sign for sign, chapters in ROUTES.values() if number in chapters)
        return f"[{number:02} {short}]({names[number]}.ipynb) {signs}".strip()

    columns = read_parts()
    rows = zip_longest(*(part["chapters"] for part in columns))
    table = placeholders.make_table([part["name"] for part in columns], [[*map(entry, row)] for row in rows])
    legend = " · ".join(
        f"{sign} {name}" + ("" if sign == "●" else f": {sum(map(minutes.__getitem__, chapters))} minutes")
        for name, (sign, chapters) in ROUTES.items()
    )
    hours = round(sum(minutes.values()) / 60)
    return (
        f"## The course\n\nAll {len(minutes)} chapters take about {hours} hours. You do not need all of them: "
        f"the signs mark four ways through the course.\n\n{legend}\n\n{table}"
    )


def make_fast_track_cell(
    cells_of: Callable[[Path], list[NotebookNode]], minutes_of_exercise: Callable[[Path], int]
) -> NotebookNode:
    """The sections of the fast track and an exercise for each chapter, with their minutes.

    Args:
        cells_of: gives the cells of a lesson, given its path.
        minutes_of_exercise: tells how long the exercise takes, given the path of its lesson.

    """
    rows, total, exercises = [], 0, 0
    for path in lesson_source.chapter_files():
        marked = lesson_source.header_of(path).get("fast_track", [])
        if not marked:
            continue
        sections = _by_section(cells_of(path))
        opening = sections[0]
        for number in marked:
            minutes = page_minutes.estimate_minutes([*opening, *sections[number]], 0).reading
            opening = []  # it is read once
            (title,) = (head for head in lesson_source.headings(path) if head.startswith(f"{number} · "))
            link = placeholders.make_link(int(name_of(path)[:2]), number)
            rows.append((link, title.partition(" · ")[2], str(minutes)))
            total += minutes
        chapter, time = name_of(path)[:2], minutes_of_exercise(path)
        fragment = placeholders.make_cell_fragment("Exercises")
        rows.append((f"[Exercise {chapter}.1]({name_of(path)}.ipynb#{fragment})", "", str(time)))
        exercises += time
    table = placeholders.make_table(("Section", "What it is about", "Minutes, with the opening of its chapter"), rows)
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        "### I have 90 minutes\n\nTake single sections, not the whole chapters: "
        f"they take {total} minutes, and an exercise of each chapter takes {exercises} more. That leaves time to play "
        "with the figures. The sections are marked "
        "*Fast track* in the chapters. You can then watch and change any layer, and follow a gradient.\n\n"
        f"{table}"
    )
    return cell


def _by_section(found: list[NotebookNode]) -> dict[int, list[NotebookNode]]:
    """The cells of a lesson by the number of their section; 0 before the first."""
    sections: dict[int, list[NotebookNode]] = {0: []}
    number = 0
    for cell in found:
        heads = re.findall(r"^## (\d+)?", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        if heads:
            number = int(heads[-1] or -1)
        sections.setdefault(number, []).append(cell)
    return sections
