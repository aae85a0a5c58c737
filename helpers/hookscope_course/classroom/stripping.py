"""Strip a notebook down to the text of its cells, so that opening it runs nothing.

JupyterLab runs the JavaScript of an anywidget in `metadata.widgets` as soon as a notebook is opened, even one that is
not trusted. Nothing is kept here but what is named here: cells, their text, and what nbgrader knows of them.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["NotebookError", "strip", "strip_file"]

_LARGEST = 64 << 20
"""Bytes of a notebook that is read at all."""
_CELLS = 200_000
"""As many cells are kept; nbgrader takes minutes for more."""
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_OF_NBGRADER = ("cell_type", "checksum", "grade", "grade_id", "locked", "points", "schema_version", "solution", "task")


class NotebookError(ValueError):
    """A file is not a notebook that can be stripped; the message names it and says why."""


def strip(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notebook with the same cells, and without widgets, outputs, attachments and foreign metadata.

    Args:
        notebook: its JSON, of format 4; it is not changed.

    Raises:
        NotebookError: it is not a notebook of format 4.

    Example:
        >>> cell = {"cell_type": "code", "source": "1 + 1", "outputs": ["<script>"], "metadata": {"tags": []}}
        >>> notebook = strip({"nbformat": 4, "metadata": {"widgets": {}}, "cells": [cell]})
        >>> notebook["cells"][0]["source"], notebook["cells"][0]["outputs"], "widgets" in notebook["metadata"]
        ('1 + 1', [], False)

    """
    if not isinstance(notebook, Mapping) or notebook.get("nbformat") != 4:
        raise NotebookError("it is not a notebook of format 4")
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise NotebookError("it has no list of cells")
    if len(cells) > _CELLS:
        raise NotebookError(f"it has more than {_CELLS:,} cells")
    kept = [_strip_cell(number, cell) for number, cell in enumerate(cells)]
    return {"cells": kept, "metadata": {"kernelspec": dict(_KERNEL)}, "nbformat": 4, "nbformat_minor": 5}


def _strip_cell(number: int, cell: Any) -> dict[str, Any]:
    if not isinstance(cell, Mapping) or cell.get("cell_type") not in ("code", "markdown", "raw"):
        raise NotebookError(f"its cell {number + 1} is neither code nor text")
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        raise NotebookError(f"its cell {number + 1} has no text")
    metadata = cell.get("metadata")
    known = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
    of_nbgrader = (
        {key: _convert_to_plain(known[key]) for key in _OF_NBGRADER if _is_plain(known.get(key))}
        if isinstance(known, Mapping)
        else {}
    )
    kept = {
        "cell_type": cell["cell_type"],
        "id": f"cell-{number}",
        "metadata": {"nbgrader": of_nbgrader} if of_nbgrader else {},
        "source": _make_writable(source),
    }
    return kept | ({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _convert_to_plain(value: Any) -> Any:
    return _make_writable(value) if isinstance(value, str) else value


def _make_writable(text: str) -> str:
    """Text without halves of surrogate pairs, which cannot be written to a file."""
    return text.encode("utf-8", "replace").decode()


def _read(path: Path) -> dict[str, Any]:
    """Read a notebook's JSON; never follow a link, wait for a FIFO, or read more than 64 MiB.

    Raises:
        NotebookError: it is no such file, or not JSON; names it.

    """
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise NotebookError(f"{path} is not a regular file")
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise NotebookError(f"{path} cannot be read ({error.strerror}). A link is not followed") from None
    if len(text) > _LARGEST:
        raise NotebookError(f"{path} is larger than {_LARGEST >> 20} MiB")
    try:
        return strip(json.loads(text))
    except NotebookError as error:
        raise NotebookError(f"{path} cannot be stripped: {error}") from None
    except (ValueError, RecursionError):
        raise NotebookError(f"{path} is not a notebook: it is not JSON") from None
    except MemoryError:
        raise NotebookError(f"{path} does not fit into memory") from None


def strip_file(path: Path, to: Path | None = None) -> Path:
    """Write the stripped copy of a notebook; the notebook itself stays as it is.

    Args:
        path: the notebook.
        to: a file that is not there yet; by default NAME.stripped.ipynb beside the notebook.

    Returns:
        The file that was written.

    Raises:
        NotebookError: it cannot be read; names it.
        FileExistsError: there is a copy already.

    """
    to = to or path.with_name(f"{path.stem}.stripped.ipynb")
    text = json.dumps(_read(path), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    written = text.encode("utf-8")  # before there is a file, which would be in the way of the next try
    with to.open("xb") as file:
        file.write(written)
    return to
