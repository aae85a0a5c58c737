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
    cells = [learners_cell(cell) for cell in notebook["cells"] if not {"solution", "edition"} & set(tags(cell))]
    metadata = {name: value for name, value in notebook["metadata"].items() if name in KEPT}
    # Not the fingerprint: it changes with every line of the package, and the page does not.
    metadata["hookscope"] = {
        "edition": "learner",
        "lesson": notebook["metadata"].get("hookscope", {}).get("lesson", ""),
    }
    return {**notebook, "cells": cells, "metadata": metadata}


def learners_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell as a learner first meets it."""
    if cell["cell_type"] != "code":
        return cell if cell["cell_type"] != "markdown" else {**cell, "source": fold_why("".join(cell["source"]))}
    cell = {**cell, "outputs": [], "execution_count": None}
    if "hint" in tags(cell):
        hint = "".join(cell["source"])
        cell["source"] = [f"{hint}\n", hint.replace(".hint()", ".solution()")]
    if "exercise" in tags(cell):
        cell["metadata"] = {**cell["metadata"], "tags": [*tags(cell), "raises-exception"]}
    return cell


def fold_why(source: str) -> str:
    r"""Fold the reason behind a question away, until somebody opens it: it tells the answer.

    A last paragraph that ends with a colon leads to the cell below, and stays outside. So does what follows the reason:
    a box with details, the next section.

    Example:
        >>> print(fold_why("**Why.** It is 70.\n\nWith a string:"))
        <details><summary><b>Why?</b> Open it when you have run the cells above.</summary>
        <BLANKLINE>
        It is 70.
        <BLANKLINE>
        </details>
        <BLANKLINE>
        With a string:

    """
    before, mark, why = source.partition("**Why.** ")
    if not mark or (before and not before.endswith("\n")):
        return source
    why, *after = re.split(r"\n\n(?=#+ |<details>)", why.rstrip(), maxsplit=1)
    *told, last = why.split("\n\n")
    if told and last.endswith(":"):
        after = [last, *after]
    else:
        told = [*told, last]
    inside = "\n\n".join(told)
    return "\n\n".join([f"{before}<details><summary>{_OPEN}</summary>", inside, "</details>", *after])


_OPEN = "<b>Why?</b> Open it when you have run the cells above."


def tags(cell: dict[str, Any]) -> list[str]:
    """What the builder says a cell is: question, exercise, hint, solution, stop, edition; mostly nothing."""
    return list(cell["metadata"].get("tags", []))


def written(notebook: dict[str, Any]) -> bytes:
    """The bytes of a notebook's file: the same for the same notebook."""
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
