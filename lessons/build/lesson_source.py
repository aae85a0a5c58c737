"""Read what lessons are made from: their folders, their headers, claims.toml."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

LESSONS = Path(__file__).resolve().parents[1]
COURSE = LESSONS.parent / "helpers" / "hookscope_course"
ROOT = LESSONS.parent
NOTEBOOKS = ROOT / "notebooks"

PAGE = {"title": str, "promise": str, "finds_out": str}
HEADER = PAGE | {"builds_on": list, "documents": list}


class LessonError(Exception):
    """A lesson that cannot be built; the message starts with file:line."""


def lesson_files() -> list[Path]:
    """The text of every lesson: the chapters in their order, then the reference pages, then the index."""
    return [*sorted(LESSONS.glob("[0-9][0-9]_*/lesson.md")), *LESSONS.glob("index/lesson.md")]


def name_of(path: Path) -> str:
    """The name of a lesson, which is that of its folder and of its notebook, e.g. "01_calling_a_module"."""
    return path.parent.name


def is_reference(path: Path) -> bool:
    """Whether a lesson is a page to look things up in (`kind: reference` in its header), and no chapter."""
    return header_of(path).get("kind") == "reference"


def chapter_files() -> list[Path]:
    """Every chapter, in order."""
    return [path for path in lesson_files() if not is_reference(path)]


def reference_files() -> list[Path]:
    """Every reference page, in order."""
    return [path for path in lesson_files() if is_reference(path)]


def rows_of(name: str, kind: str) -> list[dict[str, Any]]:
    """The rows `[[kind]]` of a reference page's data file, e.g. of figures/chooser/chooser.toml."""
    return list(tomllib.loads(data_file(name).read_text(encoding="utf-8"))[kind])


def data_file(name: str) -> Path:
    """Find the data file of a reference page, in whichever folder it is.

    Raises:
        LookupError: there is none.

    """
    for path in (*LESSONS.glob(f"[0-9][0-9]_*/{name}"), *COURSE.glob(f"figures/*/{name}")):
        return path
    raise LookupError(f"no lesson has a file {name}")


def headings(path: Path) -> list[str]:
    """The headings of a lesson's sections, as they are written, code aside."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


@cache
def claims() -> dict[str, Any]:
    """claims.toml as `{"documents": {id: row}, "claims": {id: row}}`."""
    data = tomllib.loads(data_file("claims.toml").read_text(encoding="utf-8"))
    return {
        "documents": {row["id"]: row for row in data["document"]},
        "claims": {row["id"]: row for row in data["claim"]},
    }


def cell_id(key: str, number: int = 1) -> str:
    """The id of a cell: that of the `number`-th cell of a page with this key."""
    return hashlib.sha256(f"{key}\n{number}".encode()).hexdigest()[:12]


def heading_key(heading: str) -> str:
    """What the id of a cell with a heading follows from: the heading alone, so that a link outlives other edits."""
    return f"heading\n{heading}"


def format_location(path: Path, line: int | str) -> str:
    """`lessons/01_calling/lesson.md:12`, as editors and terminals link it."""
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{line}"


def read_header(path: Path, lines: list[str]) -> dict[str, Any]:
    """The YAML header between the first two `---` lines, every field of `HEADER` present and of its type."""
    if not lines or lines[0].strip() != "---":
        raise LessonError(f"{format_location(path, 1)}: no header; a lesson starts with '---' and {', '.join(HEADER)}")
    try:
        end = next(i for i, line in enumerate(lines[1:], start=1) if line.strip() == "---")
    except StopIteration:
        raise LessonError(f"{format_location(path, 1)}: the header's closing '---' is missing") from None
    try:
        header = yaml.safe_load("\n".join(lines[1:end])) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark else 1
        raise LessonError(f"{format_location(path, line)}: the header is not YAML: {error}") from error
    if header.get("kind", "chapter") not in ("chapter", "reference"):
        raise LessonError(f"{format_location(path, 1)}: 'kind' in the header must be chapter or reference")
    for name, kind in (PAGE if header.get("kind") == "reference" else HEADER).items():
        if name not in header:
            raise LessonError(f"{format_location(path, end + 1)}: the header lacks '{name}'")
        if not isinstance(header[name], kind):
            raise LessonError(f"{format_location(path, 1)}: '{name}' in the header must be {kind.__name__}")
    for document in header.get("documents", []):
        if document not in claims()["documents"]:
            raise LessonError(f"{format_location(path, 1)}: claims.toml has no document '{document}'")
    return dict(header)


def header_of(path: Path) -> dict[str, Any]:
    """A lesson's header, or nothing when that lesson has an error of its own."""
    return _header_of(path, path.read_text(encoding="utf-8"))


@cache
def _header_of(path: Path, text: str) -> dict[str, Any]:
    try:
        return read_header(path, text.splitlines())
    except LessonError:
        return {}


def refuse_open_fence(path: Path, lines: list[str]) -> None:
    """MyST reads an unclosed fence as code to the end of the file; here it is an error at its first line."""
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        fence = re.match(r"^(`{3,}|~{3,})(.*)$", line)
        if not fence:
            continue
        if opened is None:
            opened = (number, fence[1])
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            opened = None
    if opened:
        raise LessonError(f"{format_location(path, opened[0])}: this fence ({opened[1]}) is never closed")


def refuse_bad_python(path: Path, lines: list[str], start: int, source: str) -> None:
    """A code cell must compile (top-level await allowed, as in IPython); magics and shell lines are not used here."""
    try:
        compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        first = source.splitlines()[0] if source else ""
        offset = next((i for i, line in enumerate(lines[start:]) if line == first), 0)
        raise LessonError(f"{format_location(path, start + offset + (error.lineno or 1))}: {error.msg}") from error


def has_only_imports(source: str) -> bool:
    """Whether a cell imports, and does nothing else.

    Example:
        >>> has_only_imports("import torch; from torch import nn"), has_only_imports("import torch; x = torch.ones(1)")
        (True, False)

    """
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a %magic
        return False
    return bool(statements) and all(isinstance(each, ast.Import | ast.ImportFrom) for each in statements)
