"""Which exercises are done: a small file in the learner's copy, and nowhere else."""

from __future__ import annotations

import html
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hookscope_course.learner.copies import STATE_FOLDER, list_chapters, replace_text
from hookscope_course.learner.running_kernels import describe_kernels
from hookscope_course.paths import NOTEBOOKS, format_command

NOTEBOOK_FOLDER = Path.cwd()
"""Where the notebook is, if this is a kernel; a learner's own code may go elsewhere later."""


LEGEND = "● is an exercise that you have solved, ○ one that you have not. If you reset a chapter, it keeps its ●."


@dataclass(frozen=True)
class ChapterProgress:
    """A chapter: its title, file and minutes, the names of its exercises, and those that are done."""

    title: str
    file: str
    minutes: int
    exercises: tuple[str, ...]
    done: frozenset[str]


class Progress:
    """The chapters with their minutes, and which of their exercises are done, as text and as a table with links.

    Args:
        copy: the folder of the learner's copy.
        source: the folder of the built notebooks, which say what exercises there are.

    """

    def __init__(self, copy: Path, source: Path = NOTEBOOKS) -> None:
        done = read_solved(copy)
        self.is_kept = (copy / STATE_FOLDER).is_dir()
        self.kernels = describe_kernels(copy) if self.is_kept else ""
        self.pages = [page for path in list_chapters(source) if (page := _read_page(path, done)).exercises]

    @property
    def next(self) -> str:
        """The title of the next chapter with an exercise that is not done; empty when all are.

        Who takes one of the ways through the course skips chapters, so it begins at the last chapter with one that is.
        """
        last = max((at for at, page in enumerate(self.pages) if page.done), default=0)
        order = [*self.pages[last:], *self.pages[:last]]
        return next((page.title for page in order if len(page.done) < len(page.exercises)), "")

    @property
    def heading(self) -> str:
        """The sentence above the table."""
        if not self.is_kept:
            return (
                "This is not your copy of the course, so no progress is saved here. "
                f"`{format_command('lab')}` opens your copy."
            )
        done, total = sum(len(page.done) for page in self.pages), sum(len(page.exercises) for page in self.pages)
        said = f"Next: {self.next}." if self.next else "You have solved all of them."
        return f"{done} of {total} exercises solved. {said} {self.kernels}".rstrip()

    def __repr__(self) -> str:
        if not self.is_kept:
            return self.heading
        wide = max((len(page.exercises) for page in self.pages), default=0)
        lines = [f"{_draw_signs(page):{wide}}  {page.minutes:3} minutes  {page.title}" for page in self.pages]
        return "\n".join([self.heading, *lines, LEGEND])

    def _repr_html_(self) -> str:
        heading = "".join(
            f"<code>{html.escape(part)}</code>" if at % 2 else html.escape(part)
            for at, part in enumerate(self.heading.split("`"))
        )
        if not self.is_kept:
            return f"<p>{heading}</p>"
        rows = "".join(
            f'<tr><th scope="row" style="text-align: left"><a href="{page.file}">{html.escape(page.title)}</a></th>'
            f'<td style="text-align: right">{page.minutes}</td>'
            f'<td style="text-align: left; white-space: nowrap">{len(page.done)} of {len(page.exercises)}</td>'
            f'<td style="text-align: left" aria-hidden="true">{_draw_signs(page)}</td></tr>'
            for page in self.pages
        )
        heads = "".join(
            f'<th {span}scope="col" style="text-align: left">{words}</th>'
            for words, span in (("Chapter", ""), ("Minutes", ""), ("Exercises done", 'colspan="2" '))
        )
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        folded = f"<details><summary>All chapters</summary>{table}<p>{LEGEND}</p></details>"
        return f"<p>{heading}</p>{folded}"


def progress() -> Progress:
    """Show the chapters and which of their exercises are done, in the copy of the course in which the notebook is.

    Example:
        >>> print(progress())  # in a notebook of the course itself
        This is not your copy of the course, so no progress is saved here. `make lab` opens your copy.

    """
    return Progress(NOTEBOOK_FOLDER)


def record_solved(number: str, copy: Path | None = None) -> str:
    """Keep that an exercise is done.

    Args:
        number: which one, e.g. "02.1".
        copy: the folder of the learner's copy; by default the one in which the notebook is, if it is in one.

    Returns:
        What went wrong, in a sentence; nothing when it is kept, or when this is not a learner's copy.

    """
    folder = (copy or NOTEBOOK_FOLDER) / STATE_FOLDER
    if not folder.is_dir():
        return ""
    try:
        from filelock import FileLock  # `check` runs where it is not installed

        with FileLock(folder / "progress.lock", timeout=5):
            done = read_solved(copy or NOTEBOOK_FOLDER)
            if number not in done:
                done[number] = f"{datetime.now():%Y-%m-%d %H:%M}"
                replace_text(folder / "progress.json", json.dumps(done, indent=1, sort_keys=True))
    except OSError as error:  # filelock's Timeout is one, too
        return f"Your progress could not be saved: {error.strerror or error}."
    return ""


def read_solved(copy: Path) -> dict[str, str]:
    """The exercises that are done, by number, and when each was first right."""
    file = copy / STATE_FOLDER / "progress.json"
    with suppress(OSError, ValueError, RecursionError):
        # Never wait for a FIFO, nor read without end.
        done: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if isinstance(done, dict):
            return {str(number): str(when) for number, when in done.items()}
    return {}


def _read_page(path: Path, done: dict[str, str]) -> ChapterProgress:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    head = next("".join(cell["source"]) for cell in cells if "".join(cell["source"]).startswith("# "))
    names = tuple(cell["metadata"]["exercise"] for cell in cells if "exercise" in cell["metadata"])
    title, *facts = head.splitlines()
    minutes = sum(map(int, re.findall(r"\*\*(\d+) minutes\*\*", "\n".join(facts))))  # to read, and of exercises
    return ChapterProgress(title.removeprefix("# "), path.name, minutes, names, frozenset(names) & done.keys())


def _draw_signs(page: ChapterProgress) -> str:
    return "".join("●" if name in page.done else "○" for name in page.exercises)
