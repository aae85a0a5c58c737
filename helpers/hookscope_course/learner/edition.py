"""The learner's edition of a notebook: questions and starter code, and nothing that gives an answer away."""

from __future__ import annotations

import json
import re
from typing import Any

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
    cells, follows_reason = [], False
    for cell in notebook["cells"]:
        if {"solution", "edition"} & set(get_tags(cell)) or is_bare_label(cell):
            continue
        if cell["cell_type"] == "markdown":
            is_pointer = bool({"stop", "fast_track"} & set(get_tags(cell)))
            parts = fold_reasons("".join(cell["source"]), follows_reason, is_pointer)
            for source, is_fold in parts:
                follows_reason = is_fold or (follows_reason and not _HEADING.search(source))
            cells += _split_cell(cell, parts)
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


def fold_reasons(source: str, follows_reason: bool = False, is_pointer: bool = False) -> list[tuple[str, bool]]:
    r"""Cut a text so that JupyterLab folds each reason, with all cells that follow it up to the next heading.

    What follows a reason tells it as well, code and figures too. Who goes on with Shift+Enter opens the fold by that.

    Args:
        source: Markdown.
        follows_reason: the text stands behind a reason, with no heading between.
        is_pointer: it says how to go on. A heading of its own keeps it out of the fold.

    Returns:
        The texts of the cells, each with whether it is the heading of a fold.

    Example:
        >>> fold_reasons("**Why.** It is 70.\n\n## Next")
        [('#### Why? Open it when you have run the cells above.', True), ('It is 70.', False), ('## Next', False)]

    """
    if follows_reason and is_pointer:
        source = re.sub(r"^\*\*(.+?)\.\*\*\s+", r"#### \1\n\n", source)
    parts: list[tuple[str, bool]] = []
    text = ""
    for section in _SECTION.split(source):
        before, *why = _WHY.split(section, maxsplit=1)
        if follows_reason and _HEADING.match(section):  # a cell with a heading in it is not folded
            parts.append((text, False))
            text = ""
        text += before
        if why:
            parts += [(text, False), (FOLD_HEADING, True)]
            text = why[0]
        follows_reason = bool(why) or (follows_reason and not _HEADING.match(section))
    parts.append((text, False))
    return [(text.strip("\n"), is_fold) for text, is_fold in parts if text.strip()]


def _split_cell(cell: dict[str, Any], parts: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The cells that a cell of Markdown becomes; the one with its heading keeps its name, as links lead there."""
    keeps = next((at for at, (source, is_fold) in enumerate(parts) if not is_fold and _HEADING.search(source)), 0)
    made = []
    for at, (source, is_fold) in enumerate(parts):
        identity = {} if at == keeps or "id" not in cell else {"id": f"{cell['id']}-{at}"}
        metadata = {"metadata": {**cell["metadata"], FOLDED: True}} if is_fold else {}
        made.append({**cell, "source": source, **identity, **metadata})
    return made


_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_SECTION = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_WHY = re.compile(r"^\*\*Why\.\*\* ", re.MULTILINE)
FOLD_HEADING = "#### Why? Open it when you have run the cells above."
FOLDED = "jp-MarkdownHeadingCollapsed"
"""The metadata with which JupyterLab and Notebook fold what stands below a heading."""


def get_tags(cell: dict[str, Any]) -> list[str]:
    """What the builder says a cell is: question, exercise, hint, solution, stop, edition; mostly nothing."""
    return list(cell["metadata"].get("tags", []))


def encode_notebook(notebook: dict[str, Any]) -> bytes:
    """The bytes of a notebook's file: the same for the same notebook."""
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
