"""Make the notebook of a lesson: its cells, the head of the page, and what stands for a placeholder; nothing runs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from jupytext.myst import MystMetadataParsingError, myst_to_notebook
from nbformat import NotebookNode

from lessons import filling, reading
from lessons.reading import LessonError, claims, lesson_files, where

PACKAGE = reading.ROOT / "helpers" / "hookscope"


@dataclass(frozen=True)
class Chapter:
    """One lesson, parsed: its header and the notebook it becomes (not yet executed)."""

    source: Path
    header: dict[str, Any]
    notebook: NotebookNode

    @property
    def number(self) -> str:
        """The two digits the file name starts with, e.g. "01"."""
        return self.source.stem[:2]

    @property
    def target(self) -> Path:
        """The notebook's path."""
        return reading.NOTEBOOKS / f"{self.source.stem}.ipynb"


def parse(path: Path) -> Chapter:
    """Read one lesson.

    Raises:
        LessonError: the text does not parse, or its header lacks a field; names file and line.

    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    header = reading.read_header(path, lines)
    reading.refuse_open_fence(path, lines)
    try:
        notebook = myst_to_notebook(text, add_source_map=True)
    except MystMetadataParsingError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise LessonError(f"{where(path, at[1] if at else 1)}: {error}") from error
    starts = notebook.metadata["source_map"]
    solutions = reading.read_solutions(path, header)
    cells = [head_cell(path, header)]
    for cell, start in zip(notebook.cells, starts, strict=True):
        if cell.source.strip() == "{{chooser}}":
            for text, code in filling.chooser():
                cells += [nbformat.v4.new_markdown_cell(text), nbformat.v4.new_code_cell(code)]
        elif cell.cell_type == "markdown":
            blank = next(i for i, line in enumerate(lines[start:]) if line.strip())
            # A claim starts a cell of its own: one idea per cell.
            filled = fill_placeholders(path, start + blank + 1, cell.source)
            parts = re.split(r"\n+(?=\*\*D\d\.\d+\*\* · )", filled)
            cells += [nbformat.v4.new_markdown_cell(part, metadata=cell.metadata) for part in parts]
        else:
            fill_solution(path, start + 1, cell, solutions)
            reading.refuse_bad_python(path, lines, start, cell.source)
            cells.append(cell)
    notebook.cells = cells
    finish(notebook)
    chapter = Chapter(path, header, notebook)
    notebook.metadata["hookscope"] = {"lesson": path.name, "fingerprint": fingerprint(chapter)}
    return chapter


def head_cell(path: Path, header: dict[str, Any]) -> NotebookNode:
    """The first cell: title, promise, and for a chapter minutes, what it builds on, the documents, the way onward."""
    facts = reference_facts(path) if header.get("kind") == "reference" else chapter_facts(path, header)
    number = "" if header.get("kind") == "reference" else f"{path.stem[:2]} · "
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        "\n\n".join([f"# {number}{header['title']}", header["promise"], *facts])
    )
    return cell


def chapter_facts(path: Path, header: dict[str, Any]) -> list[str]:
    """A line of facts about a chapter, and one with the ways to its neighbours."""
    names = {file.stem[:2]: file for file in reading.chapter_files()}
    number = path.stem[:2]

    def link(other: str) -> str:
        return f"[{other}]({names[other].stem}.ipynb)"

    builds_on = [f"{n:02}" for n in header["builds_on"]]
    for other in builds_on:
        if other not in names:
            raise LessonError(f"{where(path, 1)}: builds_on names chapter {other}, which does not exist")
    facts = [
        f"**{header['minutes']} minutes**",
        "builds on " + ", ".join(map(link, builds_on)) if builds_on else "builds on nothing",
    ]
    if header["documents"]:
        rows = (claims()["documents"][d] for d in header["documents"])
        facts.append("follows " + ", ".join(f"{row['id']} ({row['title']})" for row in rows))
    order = sorted(names)
    place = order.index(number) if number in order else 0
    ways = []
    if place > 0:
        ways.append(f"← {link(order[place - 1])}")
    if place + 1 < len(order):
        ways.append(f"{link(order[place + 1])} →")
    return [" · ".join(line) for line in (facts, ways) if line]


def reference_facts(path: Path) -> list[str]:
    """The way back to the first chapter, and across to the other reference pages."""
    others = [file for file in reading.reference_files() if file != path]
    ways = [*reading.chapter_files()[:1], *others]
    return ["Reference · " + " · ".join(f"[{reading.header_of(way)['title']}]({way.stem}.ipynb)" for way in ways)]


def fill_placeholders(path: Path, line: int, source: str) -> str:
    """Replace `{{claim D0.2}}` and its like by what `filling` makes of it."""

    def fill(match: re.Match[str]) -> str:
        try:
            return filling.fill(match[1], match[2] or "")
        except LookupError as error:
            at = line + source[: match.start()].count("\n")
            raise LessonError(f"{where(path, at)}: {error.args[0]}") from None

    return re.sub(r"\{\{(\w+)(?: (\S+?))?\}\}", fill, source)


def fill_solution(path: Path, line: int, cell: NotebookNode, solutions: dict[str, str]) -> None:
    """Turn the placeholder cell `# solution: q1` into the exercise's solution, code and result folded away."""
    placeholder = re.fullmatch(r"# solution: (\w+)\s*", cell.source)
    if not placeholder:
        return
    name = placeholder[1]
    if name not in solutions:
        raise LessonError(f"{where(path, line)}: no exercise '{name}' with a solution in the chapter's checks")
    cell.source = f"# solution\n{solutions[name]}"
    cell.metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}


def finish(notebook: NotebookNode) -> None:
    """Give a notebook fixed metadata and cell ids that follow from the content alone."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        }
    )
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        key = f"{cell.cell_type}\n{cell.source}"
        seen[key] = seen.get(key, 0) + 1
        cell.id = hashlib.sha256(f"{key}\n{seen[key]}".encode()).hexdigest()[:12]
        cell.metadata.pop("execution", None)


def fingerprint(chapter: Chapter) -> str:
    """A hash of everything a chapter's outputs follow from: its text, its checks, what it `reads`, the package."""
    digest = hashlib.sha256()
    for name in chapter.header.get("reads", []):
        try:
            digest.update((reading.LESSONS / name).read_bytes())
        except OSError:
            raise LessonError(f"{where(chapter.source, 1)}: the header reads '{name}': no such file") from None
    for cell in chapter.notebook.cells:
        digest.update(json.dumps([cell.cell_type, cell.source, cell.metadata], sort_keys=True).encode())
    digest.update(package_fingerprint())
    taken = (own_files(reading.header_of(path)) for path in lesson_files())
    others = set[str]().union(*taken) - own_files(chapter.header)
    for file in sorted(reading.CHECKS.glob("*.py")):
        if f"checks/{file.name}" not in others:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def own_files(header: dict[str, Any]) -> set[str]:
    """Files in lessons/ that belong to this chapter: its checks, and what it `reads`."""
    return {f"checks/{header.get('checks')}.py", *header.get("reads", [])}


@cache
def package_fingerprint() -> bytes:
    """A hash of the package's files."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.digest()
