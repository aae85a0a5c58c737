"""Say what a class sees on which slide of a chapter: its questions, their answers, pictures and tables."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from functools import cache

import nbformat
from nbformat import NotebookNode

from hookscope_course.classroom.slide_order import split_into_slides
from hookscope_course.notebook_pictures import join_pictures
from hookscope_course.practice.guess import THE_ANSWER
from lessons.build.chapter_notebook import Chapter

OPENING = "Opening"
_ANSWER = re.compile(rf"^{re.escape(THE_ANSWER)} (.*)\.$", re.DOTALL)
_REVEALED = re.compile(r"^\d+ +(\S.*?) +missing$", re.MULTILINE)
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SHORT = 110  # letters of what a picture shows


def find_answer(cell: NotebookNode) -> str | None:
    """The answer to a Predict that a cell of a built notebook shows, if it shows one."""
    for output in cell.get("outputs", []) if cell.cell_type == "code" else []:
        text = _get_plain_text(output)
        if found := _ANSWER.match(text):
            return found[1]
        if ".reveal(" in cell.source and (places := _REVEALED.findall(text)):
            return ", then ".join(places)
    return None


def list_slide_contents(chapter: Chapter) -> dict[str, tuple[int, int, list[str]]]:
    """The first and last slide of each part of a chapter by its heading, and a line for what there is to see."""
    return _list_contents(chapter.target.read_text(encoding="utf-8"))


@cache
def _list_contents(notebook: str) -> dict[str, tuple[int, int, list[str]]]:
    heading, found = OPENING, dict[str, tuple[int, int, list[str]]]()
    for number, slide in enumerate(split_into_slides(nbformat.reads(notebook, as_version=4).cells), 1):
        for cell in map(NotebookNode, slide):
            if cell.cell_type == "markdown" and (begins := re.match(r"## (.+)", cell.source)):
                heading = begins[1]
            first, _, lines = found.get(heading, (number, number, []))
            seen = [f"slide {number}: {line}" for line in _describe_outputs(cell)]
            found[heading] = (first, number, [*lines, *(line for line in seen if line not in lines)])
    return found


def _describe_outputs(cell: NotebookNode) -> Iterator[str]:
    if cell.cell_type == "markdown":
        return
    if re.search(r"^guess = Guess\(", cell.source, re.MULTILINE):
        yield "the question"
        return
    if answer := find_answer(cell):
        yield f"the answer, `{answer}`"
        return
    for output in join_pictures(cell.outputs):
        data = output.get("data", {})
        page = "".join(data.get("text/html", ""))
        kind = "a widget" if _WIDGET in data else "a picture"
        if found := re.search(r'<img [^>]*?alt="([^"]*)"', page):
            yield f"{kind}. {_shorten(found[1])}"
        elif found := re.search(r"<caption[^>]*>(.*?)</caption>", page, re.DOTALL):
            yield f"a table. {_shorten(re.sub('<[^>]+>', '', found[1]))}"


def _shorten(text: str) -> str:
    """The first sentence, if that is not too long, on one line and safe in Markdown."""
    first = re.split(r"(?<=\w\w)\. |;", html.unescape(text))[0].strip()
    said = textwrap.shorten(first, _SHORT, placeholder=" …").rstrip(".")
    return re.sub(r"([*_`<\[|])", r"\\\1", said) + "." * (not said.endswith("…"))


def _get_plain_text(output: NotebookNode) -> str:
    return "".join(output.get("data", {}).get("text/plain", ""))
