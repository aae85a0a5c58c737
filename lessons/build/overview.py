"""Draw the course on its index: five parts, their chapters, and three routes through them."""

from __future__ import annotations

import base64
import io
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from nbformat import NotebookNode

from lessons.build import filling, reading
from lessons.build.reading import name_of

ROUTES = {
    "I have 90 minutes": ("#0b5cad", "o", {0, 3, 7, 8, 11}),
    "I debug models": ("#a34700", "s", {0, 2, 3, 7, 11, 12}),
    "I look into language models": ("#5b3a8c", "^", {0, 3, 4, 14, 15, 16}),
}
"""The ways through the course: color, sign, chapters."""
ALT = (
    "The course as a map: five rows, one for each part, with its chapters as boxes. A sign on a box says that it is on "
    "one of three routes: 90 minutes, debugging, language models. The list below names the chapters of each route."
)
# What fits into a box.
_SHORT = {
    1: "the call", 2: "order", 6: "picker", 8: "backward hooks", 9: "grad_input quirks", 14: "transformer",
    15: "patch, ablate", 16: "steer", 17: "parts", 18: "at work",
}  # fmt: skip


def parts() -> list[dict[str, Any]]:
    """The parts of the course in their order."""
    return list(tomllib.loads((reading.LESSONS / "index" / "course.toml").read_text(encoding="utf-8"))["part"])


def cells(minutes_of: Callable[[Path], int]) -> Iterator[NotebookNode]:
    """The map of the course, and a table for each part.

    Args:
        minutes_of: tells a lesson's minutes, given its path.

    """
    picture = nbformat.v4.new_markdown_cell(f"![{ALT}](attachment:course.png)")
    picture["attachments"] = {"course.png": {"image/png": base64.b64encode(_png()).decode()}}
    yield picture
    paths = {int(name_of(path)[:2]): path for path in reading.chapter_files()}
    for part in parts():
        rows = []
        for number in part["chapters"]:
            path = paths[number]
            header = reading.header_of(path)
            title = f"[{number:02} · {header['title']}]({name_of(path)}.ipynb)"
            rows.append((title, header["promise"], str(minutes_of(path))))
        table = filling.table(("Chapter", "What for", "Minutes"), rows)
        yield nbformat.v4.new_markdown_cell(f"### {part['name']}\n\n{part['after']}\n\n{table}")


@cache
def _png() -> bytes:
    """The map as a picture: a row for each part, a box for each chapter, signs for the routes."""
    rows = parts()
    figure = Figure(figsize=(8.6, 0.56 * len(rows) + 0.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 8.6), ylim=(-len(rows) + 0.45, 0.95))
    axes.axis("off")
    for across, (name, (color, sign, _)) in enumerate(ROUTES.items()):
        axes.plot(1.75 + 2.1 * across, 0.68, sign, color=color, markersize=8)
        axes.text(1.92 + 2.1 * across, 0.68, name, color=color, fontsize=10, fontweight="bold", va="center")
    names = {int(name_of(path)[:2]): name_of(path)[3:].replace("_", " ") for path in reading.chapter_files()}
    for down, part in enumerate(rows):
        axes.text(0.05, -down, part["name"], va="center", fontsize=10.5, fontweight="bold", color="#222222")
        for across, number in enumerate(part["chapters"]):
            left = 1.62 + 1.4 * across
            box = FancyBboxPatch(
                (left, -down - 0.3), 1.26, 0.6, "round,pad=0,rounding_size=0.08", fc="white", ec="#777777"
            )
            axes.add_patch(box)
            words = f"{number:02}\n{_SHORT.get(number, names[number])}"
            axes.text(left + 0.07, -down - 0.02, words, va="center", fontsize=8.5, color="#222222", linespacing=1.25)
            for shift, (color, sign, chapters) in enumerate(ROUTES.values()):
                if number in chapters:
                    axes.plot(left + 0.72 + 0.2 * shift, -down + 0.13, sign, color=color, markersize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
