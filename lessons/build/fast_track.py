"""The fast track: sections that are marked in the header of their chapter, and can be walked by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from lessons.build import lesson_source
from lessons.build.lesson_source import name_of

MINUTES = 90
"""What all of it may take."""
EXERCISE = "q1"
"""The exercise that belongs to it, in each of its chapters: it needs no section that is not marked."""
TAG = "fast_track"
END = (
    "**Fast track.** The fast track ends here; this chapter goes on below. You can now look at any layer, change what "
    "it returns, follow a gradient, and find out why a hook did not fire. With the time that is left, do exercise 1 "
    "of each of these chapters, for example exercise 11.1 below: [all chapters](index.ipynb)."
)
_HEADING = re.compile(r"^## (?:(\d+) · )?.+$", re.MULTILINE)


def list_sections() -> list[tuple[Path, int]]:
    """The marked sections in their order: the lesson, and the number of the section."""
    return [(path, number) for path in lesson_source.chapter_files() for number in list_marked_sections(path)]


def list_marked_sections(path: Path) -> list[int]:
    """The numbers of a lesson's marked sections."""
    return list(lesson_source.header_of(path).get("fast_track", []))


def mark(text: str, marked: list[int]) -> str:
    r"""Write *Fast track* below the headings of sections that belong to it.

    Example:
        >>> mark("## 1 · Both ends\n\nA module …", [1])
        '## 1 · Both ends\n\n*Fast track*\n\nA module …'

    """

    def add(heading: re.Match[str]) -> str:
        return f"{heading[0]}\n\n*Fast track*" if int(heading[1] or 0) in marked else heading[0]

    return _HEADING.sub(add, text)


def split_at_ends(text: str, marked: list[int], section: int) -> Iterator[tuple[int, str]]:
    r"""Cut a text where marked sections end; gives with each part the section that ended before it, or 0.

    Args:
        text: Markdown.
        marked: the numbers of the sections.
        section: the section in which the text begins.

    Example:
        >>> list(split_at_ends("That is why.\n\n## 2 · Next\n\nA module …", [1], section=1))
        [(0, 'That is why.'), (1, '## 2 · Next\n\nA module …')]

    """
    start = ended = 0
    for heading in _HEADING.finditer(text):
        if section in marked:
            if before := text[start : heading.start()].rstrip():
                yield ended, before
            start, ended = heading.start(), section
        section = int(heading[1] or 0)
    yield ended, text[start:]


def find_last_section(text: str, section: int) -> int:
    """The section in which a text ends that begins in section `here`; 0 where that has no number."""
    *_, last = [section, *(int(heading[1] or 0) for heading in _HEADING.finditer(text))]
    return last


def make_pointer_cell(path: Path, number: int) -> NotebookNode:
    """The cell at the end of a marked section: the way to the next one."""
    track = list_sections()
    at = track.index((path, number)) + 1
    if at == len(track):
        words = END
    elif track[at][0] == path:
        words = f"**Fast track.** Go on with section {track[at][1]}."
    else:
        after = track[at][0]
        title = f"{name_of(after)[:2]} · {lesson_source.header_of(after)['title']}"
        link = f"[{title}]({name_of(after)}.ipynb)"
        last = max(section for page, section in track if page == after)
        words = f"**Fast track.** Next: {link}, from the top to the end of section {last}."
    cell: NotebookNode = nbformat.v4.new_markdown_cell(words, metadata={"tags": [TAG]})
    return cell


def select_cells(cells: Iterable[NotebookNode], marked: list[int]) -> Iterator[NotebookNode]:
    """The cells that the fast track needs of a page: what is above section 1, and the marked sections.

    A cell that ends one section and begins the next is cut.
    """
    is_in = True
    for cell in cells:
        if cell.cell_type != "markdown":
            if is_in:
                yield cell
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if heading := _HEADING.match(part):
                is_in = int(heading[1] or 0) in marked
            if is_in and part.strip():
                yield nbformat.v4.new_markdown_cell(part, metadata=cell.metadata)
