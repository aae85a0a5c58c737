"""Cut a chapter into slides: a question stands alone until the teacher goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hookscope_course.learner.learner_edition import KEPT_METADATA, get_tags, make_learner_cell

__all__ = ["order_slides", "split_into_slides"]

_STARTS = re.compile(r"^(?=#{1,2} |\*\*(?:Predict|Run|See|Why)\.\*\*)", re.MULTILINE)
"""Where a slide begins in the text: at a heading, and at each of the four steps."""
_ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?!\w+:)[^)]*\)")
"""A link to another page of the course, which is not in the folder of a class."""
_LEADS_AWAY = re.compile(
    r"^(?:← .*|\*Fast track\*|\[all chapters\]\([^)]*\).*)$| \[Run it on [^\]]*\]\([^)]*\)\.", re.MULTILINE
)
"""What is nothing but such links, and what only people need who learn alone: the mark of the fast track."""
_EXERCISES = re.compile(r"^q1\b.* = exercises\(.*\)\n*")
"""What brings the exercises, at the top of a cell that may do more."""
_KEYS = (
    "*Keys: Page Down or a clicker runs the next cell or moves on; Page Up moves back. Arrows and Space do so, too, "
    "until a figure has the focus.*"
)
_LINES = 22
"""As many lines of code as can be read from the last row at once."""


def order_slides(notebook: dict[str, Any]) -> dict[str, Any]:
    r"""Make the edition for the projector of a built notebook, as JSON: no outputs, and each step a slide of its own.

    The exercises are left out: they are what learners do by themselves. Of a guess only its cell is there, blank.

    Example:
        >>> text = {"cell_type": "markdown", "metadata": {}, "source": "# 02 · Order\n\n**Predict.** Which?"}
        >>> made = order_slides({"cells": [text], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        >>> [cell["metadata"]["slideshow"]["slide_type"] for cell in made["cells"]]
        ['slide', 'slide']

    """
    cells = []
    for slide in split_into_slides(notebook["cells"]):
        for index, cell in enumerate(slide):
            known = {name: value for name, value in cell["metadata"].items() if name != "slideshow"}
            # What has no type goes on with the slide before it; jupyterlab-slideshow would not show a "-".
            starts = {"slideshow": {"slide_type": "slide"}} if index == 0 else {}
            cell = {**cell, "metadata": known | starts}
            cells.append(make_learner_cell(cell) if cell["cell_type"] == "code" else cell)
    cells[0] = {**cells[0], "source": f"{cells[0]['source']}\n\n{_KEYS}"}
    metadata = {name: value for name, value in notebook["metadata"].items() if name in KEPT_METADATA}
    return {**notebook, "cells": cells, "metadata": metadata | {"hookscope": {"edition": "class"}}}


def split_into_slides(cells: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the cells of each slide; a cell of text that goes over several is cut.

    What a cell puts out gets the rest of its slide, and text that tells of it comes on the next one.
    """
    slide: list[dict[str, Any]] = []
    for cell in _split_cells(cells):
        is_text = cell["cell_type"] == "markdown"
        begins = is_text and _STARTS.match(cell["source"])
        after = slide and slide[-1]["cell_type"] == "code" and (is_text or slide[-1].get("outputs"))
        if slide and (begins or after or _count_lines(slide) + _count_lines([cell]) > _LINES):
            yield slide
            slide = []
        slide.append(cell)
    if slide:
        yield slide


def _split_cells(cells: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The cells that a class sees, text cut where a slide begins; each with an id of its own."""
    exercises = False
    for cell in cells:
        source = "".join(cell["source"])
        if {"solution", "edition", "exercise", "question", "hint", "stop", "fast_track"} & set(get_tags(cell)):
            continue
        if cell["cell_type"] == "code":
            asks = _EXERCISES.match(source)
            # Behind an exercise, a cell may run the learner's answer, which a class does not have.
            if (asks or not exercises) and (source := _EXERCISES.sub("", source)):
                yield {**cell, "source": source}
            continue
        source = _ELSEWHERE.sub(r"\1", _LEADS_AWAY.sub("", source))
        for number, part in enumerate(filter(str.strip, _STARTS.split(source))):
            if part.startswith(("# ", "## ")):
                exercises = part.startswith("## Exercises")
            if exercises:
                continue
            identity = {"id": f"{cell['id']}-{number}" if number else cell["id"]} if "id" in cell else {}
            yield {**cell, **identity, "source": part.strip()}


def _count_lines(slide: list[dict[str, Any]]) -> float:
    """How much of a screen cells take, in lines of code."""
    lines = 0.0
    for cell in slide:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            lines += 1 + len(source.splitlines())
        else:
            lines += sum(1.4 * (1 + len(line) // 85) for line in source.splitlines() if line.strip())
    return lines
