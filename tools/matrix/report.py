"""Write what the runs found: records.json, and the table in docs/compatibility.md."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import nbformat

from tools.matrix.environments import COURSE_FROM, ROOT, minor
from tools.matrix.running import MatrixRun, NotebookResult
from tools.page_blocks import put, table

RECORDS = Path(__file__).with_name("records.json")
PAGE = ROOT / "docs" / "compatibility.md"
_SHOWN = 3  # of what failed; records.json has all
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|#x1B\[[0-9;]*m")


def store(run: MatrixRun, made_on: str, records: Path = RECORDS) -> None:
    """Put a run into the records, in the place of an older one of the same release and Python."""
    runs = {_pair(old["run"]): old for old in read(records)}
    new = run.as_json()
    for result in filter(None, (new["package"], new["chapters"])):
        result["wrong"] = {name: reason(words) for name, words in result["wrong"].items()}
    runs[_pair(new)] = {"made_on": made_on, "run": new}
    ordered = [runs[pair] for pair in sorted(runs)]
    records.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(records: Path = RECORDS) -> list[dict[str, Any]]:
    """Return the records: a list of `{"made_on": day, "run": what Run.as_json returned}`."""
    return list(json.loads(records.read_text(encoding="utf-8"))) if records.exists() else []


def _pair(run: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return minor(run["torch"]), minor(run["python"])


def reason(said: str) -> str:
    r"""One line of what a failed test or cell said: the difference, or the error; no path of this machine.

    Example:
        >>> reason("Cell 3: Cell outputs differ\n mismatch 'stdout'\n- 2\n+ 1\n")
        'now 2, saved 1'
        >>> reason("assert 1 == 2\n +  where 1 = f()")
        'assert 1 == 2'

    """
    lines = [line.strip() for line in _COLOURS.sub("", said).splitlines() if line.strip()]
    changed = {sign: next((line[2:] for line in lines if line.startswith(f"{sign} ")), "") for sign in "-+"}
    if any(line.startswith("mismatch ") for line in lines) and any(changed.values()):
        line = f"now {changed['-'].strip()[:80] or 'nothing'}, saved {changed['+'].strip()[:80] or 'nothing'}"
    else:
        errors = [line for line in lines if re.match(r"\w*(Error|Exception)\b|.*kernel died|Unexpected output", line)]
        line = (errors or lines or ["it said nothing"])[0][:160]
    return re.sub(r"(?<![\w.])/\S*/", "", line)


def sentences(place: str, notebooks: Path) -> list[str]:
    """The text below a cell of a notebook, up to the next code: what may no longer be true if the cell is not.

    Args:
        place: such as "07_tensor_hooks::Cell 27".
        notebooks: their folder.

    """
    name, _, number = place.partition("::Cell ")
    if not number.isdecimal():
        return []
    cells = nbformat.read(notebooks / f"{name}.ipynb", as_version=4).cells
    code = [index for index, cell in enumerate(cells) if cell.cell_type == "code"]
    below = takewhile(lambda cell: cell.cell_type == "markdown", cells[code[int(number)] + 1 :])
    return [line for cell in below for line in cell.source.splitlines() if line]


def rows(records: list[dict[str, Any]]) -> list[dict[str, object]]:
    """The rows of the table."""
    found = []
    for record in records:
        run = MatrixRun.from_json(record["run"])
        before = f"not promised before torch {'.'.join(map(str, COURSE_FROM))}"
        found.append(
            {
                "torch": run.torch,
                "Python": run.python,
                "tests of the package": said(run.package),
                "cells of the chapters": said(run.chapters) if run.chapters else before,
                "on": record["made_on"],
            }
        )
    return found


def said(result: NotebookResult) -> str:
    """One set of tests in words."""
    words = [f"{result.right:,} right"]
    if result.elsewhere:
        words.append(f"{result.elsewhere} with a note about a difference")
    if result.wrong:
        names = ", ".join([*result.wrong][:_SHOWN]) + (" …" if len(result.wrong) > _SHOWN else "")
        words.append(f"**{len(result.wrong)} wrong**: {names}")
    return ", ".join(words)


def write() -> None:
    """Bring the table in docs/compatibility.md up to date."""
    put(PAGE, "matrix", table(rows(read())))
