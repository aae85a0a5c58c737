"""List the chapters and the reference pages in docs/course.md, between its marks, from the headers of the lessons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lessons.build import lesson_source
from lessons.build.chapter_notebook import Chapter
from lessons.build.placeholders import make_table


def make_lists(chapters: Iterable[Chapter]) -> dict[str, str]:
    """What stands between the marks: the table of the chapters, and the list of the reference pages."""
    of_kind: dict[str, list[Chapter]] = {"chapters": [], "reference": []}
    for chapter in chapters:
        of_kind["reference" if chapter.header.get("kind") == "reference" else "chapters"].append(chapter)
    rows = [
        (
            f"[{chapter.number}](../notebooks/{chapter.name}.ipynb)",
            str(chapter.header["title"]),
            str(chapter.header["finds_out"]),
            f"{chapter.minutes.reading} + {chapter.minutes.exercises}",
        )
        for chapter in of_kind["chapters"]
    ]
    pages = [
        f"- [{page.header['title']}](../notebooks/{page.name}.ipynb): {page.header['finds_out']}"
        for page in of_kind["reference"]
    ]
    return {
        "chapters": make_table(("", "Chapter", "You find out", "Minutes + exercises"), rows),
        "reference": "\n".join(pages),
    }


def replace_lists(text: str, chapters: Iterable[Chapter]) -> str:
    """The page's text with the lists as they should be."""
    for name, block in make_lists(chapters).items():
        pattern = rf"(<!-- {name}, made by make build -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, rf"\g<1>\n{block}\n\n\g<2>", text, flags=re.DOTALL)
    return text


def get_page_path() -> Path:
    """Where the lists are."""
    return lesson_source.ROOT / "docs" / "course.md"


def is_up_to_date(chapters: Iterable[Chapter]) -> bool:
    """Whether docs/course.md lists what there is."""
    text = get_page_path().read_text(encoding="utf-8")
    return replace_lists(text, chapters) == text


def write(chapters: Iterable[Chapter]) -> None:
    """Bring docs/course.md up to date."""
    path = get_page_path()
    text = path.read_text(encoding="utf-8")
    if (new := replace_lists(text, chapters)) != text:
        path.write_text(new, encoding="utf-8")
