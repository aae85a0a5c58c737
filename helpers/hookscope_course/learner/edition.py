"""The learner's edition of a notebook: questions and starter code, and nothing that gives an answer away."""

from __future__ import annotations

import json
import re
from typing import Any

KEPT = ("kernelspec", "language_info")  # of a notebook's metadata


def learners(notebook: dict[str, Any]) -> dict[str, Any]:
    """Make the learner's edition of a built notebook, as JSON; the notebook itself stays as it is.

    The tags that the builder gave the cells say what they are. Gone are all outputs, the solutions, and the note that
    names the other edition. An error in an exercise does not stop the cells below it when all cells are run.

    Example:
        >>> cell = {"cell_type": "code", "metadata": {"tags": ["solution"]}, "source": "42", "outputs": []}
        >>> learners({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})["cells"]
        []

    """
    cells, is_told = [], False
    for cell in notebook["cells"]:
        if {"solution", "edition"} & set(tags(cell)):
            continue
        if cell["cell_type"] == "markdown":
            source = "".join(cell["source"])
            if not {"stop", "fast_track"} & set(tags(cell)):
                cell = {**cell, "source": fold_reasons(source, is_told)}
            is_told = ends_in_a_reason(source, is_told)
        else:
            cell = learners_cell(cell)
        cells.append(cell)
    metadata = {name: value for name, value in notebook["metadata"].items() if name in KEPT}
    # Not the fingerprint: it changes with every line of the package, and the page does not.
    metadata["hookscope"] = {
        "edition": "learner",
        "lesson": notebook["metadata"].get("hookscope", {}).get("lesson", ""),
    }
    return {**notebook, "cells": cells, "metadata": metadata}


def learners_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """A code cell as a learner first meets it."""
    if cell["cell_type"] != "code":
        return cell
    source = "".join(cell["source"])
    cell = {**cell, "outputs": [], "execution_count": None}
    if "hint" in tags(cell):
        cell["source"] = [f"{source}\n", source.replace(".hint()", ".solution()")]
    if "exercise" in tags(cell):
        cell["metadata"] = {**cell["metadata"], "tags": [*tags(cell), "raises-exception"]}
    elif re.search(r"\balt\s*=", source):  # what a figure will show is told there to who cannot see it
        cell["metadata"] = {**cell["metadata"], "jupyter": {"source_hidden": True}}
    return cell


def fold_reasons(source: str, is_told: bool = False) -> str:
    r"""Fold the reason behind a question away, until somebody opens it, and all text that follows it: they tell.

    The next section stays outside, and so does a box that is folded already.

    Args:
        source: Markdown.
        is_told: whether a cell above has the reason, in the same section.

    Example:
        >>> print(fold_reasons("**Why.** It is 70.\n\n## Next"))
        <details><summary><b>Why?</b> Open it when you have run the cells above.</summary>
        <BLANKLINE>
        It is 70.
        <BLANKLINE>
        </details>
        <BLANKLINE>
        ## Next

    """
    first, *sections = _SECTION.split(source)
    told = [_folded(first, is_told), *(_folded(section, False) for section in sections)]
    return "\n\n".join(filter(None, (part.strip("\n") for part in told)))


def ends_in_a_reason(source: str, is_told: bool) -> bool:
    """Whether what follows a cell of Markdown stands behind a reason, with no heading between."""
    first, *sections = _SECTION.split(source)
    return bool(_WHY.search(sections[-1] if sections else first)) or (is_told and not sections)


def _folded(section: str, is_told: bool) -> str:
    """Fold away what a section says from its reason on; all of it, if the reason is in a cell above."""
    before, *why = _WHY.split(section, maxsplit=1)
    if why:
        told, handle = why[0], _HANDLE.format("Why?")
    elif is_told:
        before, told, handle = "", section, _HANDLE.format("More.")
    else:
        return section
    parts = [before.strip("\n")]
    for text in filter(str.strip, re.split(r"(<details>.*?</details>)", told, flags=re.DOTALL)):
        is_box = text.startswith("<details>")
        parts += [text] if is_box else [f"<details><summary>{handle}</summary>", text.strip(), "</details>"]
        handle = handle if is_box else _HANDLE.format("More.")
    return "\n\n".join(filter(None, parts))


_SECTION = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_WHY = re.compile(r"^\*\*Why\.\*\* ", re.MULTILINE)
_HANDLE = "<b>{}</b> Open it when you have run the cells above."


def tags(cell: dict[str, Any]) -> list[str]:
    """What the builder says a cell is: question, exercise, hint, solution, stop, edition; mostly nothing."""
    return list(cell["metadata"].get("tags", []))


def written(notebook: dict[str, Any]) -> bytes:
    """The bytes of a notebook's file: the same for the same notebook."""
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
