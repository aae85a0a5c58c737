"""The learner's edition of a notebook: questions and starter code, and nothing that gives an answer away."""

from __future__ import annotations

import json
import re
from typing import Any

from hookscope_course.learner.why_texts import cut_reasons

KEPT_METADATA = ("kernelspec", "language_info")  # of a notebook's metadata


def make_learner_edition(notebook: dict[str, Any]) -> dict[str, Any]:
    """Make the learner's edition of a built notebook, as JSON; the notebook itself stays as it is.

    It leaves out the outputs, the solutions, the bare labels Run and See, and the note that names the other edition.
    The tags of the cells tell them apart. In Run All, an error in an exercise does not stop the cells below it.

    Example:
        >>> cell = {"cell_type": "code", "metadata": {"tags": ["solution"]}, "source": "42", "outputs": []}
        >>> make_learner_edition({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})["cells"]
        []

    """
    cells = []
    for cell in notebook["cells"]:
        if {"solution", "edition"} & set(get_tags(cell)) or is_bare_label(cell):
            continue
        if cell["cell_type"] == "markdown":
            cells += _split_cell(cell, cut_reasons("".join(cell["source"])))
        else:
            cells.append(make_learner_cell(cell))
    metadata = {name: value for name, value in notebook["metadata"].items() if name in KEPT_METADATA}
    # Not the fingerprint: it changes with every line of the package, and the page does not.
    metadata["hookscope"] = {
        "edition": "learner",
        "lesson": notebook["metadata"].get("hookscope", {}).get("lesson", ""),
    }
    return {**notebook, "cells": cells, "metadata": metadata}


def make_learner_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """A code cell as a learner first meets it."""
    if cell["cell_type"] != "code":
        return cell
    source = "".join(cell["source"])
    cell = {**cell, "outputs": [], "execution_count": None}
    if "hint" in get_tags(cell):
        cell["source"] = [f"{source}\n", source.replace(".hint()", ".solution()")]
    if "exercise" in get_tags(cell):
        cell["metadata"] = {**cell["metadata"], "tags": [*get_tags(cell), "raises-exception"]}
    elif re.search(r"\balt\s*=", source):  # what a figure will show is told there to who cannot see it
        cell["metadata"] = {**cell["metadata"], "jupyter": {"source_hidden": True}}
    return cell


def is_bare_label(cell: dict[str, Any]) -> bool:
    """Whether a cell is a "Run." or a "See." with nothing to say; in a class it begins a slide."""
    return cell["cell_type"] == "markdown" and "".join(cell["source"]).strip() in ("**Run.**", "**See.**")


def _split_cell(cell: dict[str, Any], parts: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The cells that a cell of Markdown becomes; the one with its heading keeps its name, as links lead there.

    A reason becomes a cell that shows it as soon as its question has been answered.
    """
    keeps = next((at for at, (source, is_reason) in enumerate(parts) if not is_reason and _HEADING.search(source)), 0)
    made = []
    for at, (source, is_reason) in enumerate(parts):
        part = {**cell, "source": source}
        if is_reason:
            metadata = {**cell["metadata"], "jupyter": {"source_hidden": True}}
            part |= {
                "cell_type": "code",
                "source": REASON,
                "outputs": [],
                "execution_count": None,
                "metadata": metadata,
            }
        if at != keeps and "id" in cell:
            part["id"] = f"{cell['id']}-{at}"
        made.append(part)
    return made


_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
REASON = "guess.why()"
"""The code of a cell that shows the reason behind the answer of the question above it."""
FOLDED = "jp-MarkdownHeadingCollapsed"
"""The metadata with which JupyterLab and Notebook fold what stands below a heading."""


def get_tags(cell: dict[str, Any]) -> list[str]:
    """What the builder says a cell is: question, exercise, hint, solution, stop, edition; mostly nothing."""
    return list(cell["metadata"].get("tags", []))


def encode_notebook(notebook: dict[str, Any]) -> bytes:
    """The bytes of a notebook's file: the same for the same notebook."""
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
