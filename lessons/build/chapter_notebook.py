"""Make the notebook of a lesson: its cells, the head of the page, and what stands for a placeholder; nothing runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from jupytext.myst import MystMetadataParsingError, myst_to_notebook
from nbformat import NotebookNode

from hookscope.error_pages import SITE
from hookscope_course.learner.learner_edition import FOLDED
from hookscope_course.practice.exercise_parser import ExerciseText, ExerciseTextError, read_exercises
from lessons.build import fast_track, index_page, lesson_source, page_minutes, placeholders
from lessons.build.lesson_source import LessonError, format_location, name_of
from lessons.build.page_minutes import Minutes

PACKAGE = lesson_source.ROOT / "helpers" / "hookscope"
COURSE = lesson_source.COURSE


@dataclass(frozen=True)
class Chapter:
    """One lesson, parsed: its header and the notebook it becomes (not yet executed)."""

    source: Path
    header: dict[str, Any]
    notebook: NotebookNode
    sittings: tuple[Minutes, ...] = ()

    @property
    def minutes(self) -> Minutes:
        """How long all of it takes."""
        return Minutes(sum(part.reading for part in self.sittings), sum(part.exercises for part in self.sittings))

    @property
    def number(self) -> str:
        """The two digits the folder's name starts with, e.g. "01"."""
        return self.name[:2]

    @property
    def name(self) -> str:
        """The folder's name, e.g. "01_calling_a_module"."""
        return name_of(self.source)

    @property
    def target(self) -> Path:
        """The notebook's path."""
        return lesson_source.NOTEBOOKS / f"{self.name}.ipynb"


def parse(path: Path) -> Chapter:
    """Read one lesson.

    Raises:
        LessonError: the text does not parse, or its header lacks a field; names file and line.

    """
    text = path.read_text(encoding="utf-8")
    header = lesson_source.read_header(path, text.splitlines())
    exercises = read_exercises_of(path)
    given = {exercise.number: exercise.minutes for exercise in exercises.values()}
    cells = list(make_cells(path, text, exercises))
    if exercises:
        unused = next(iter(exercises.values()))
        raise LessonError(f"{unused.location}: lesson.md does not have {{{{exercise {unused.name}}}}}")
    sittings = tuple(time_sittings(cells, given))
    fill_stop_cells(cells, sittings)
    head, end = make_head_cell(path, header, sittings), make_next_cells(path)
    notebook = nbformat.v4.new_notebook(cells=[make_edition_cell(lesson_source.name_of(path)), head, *cells, *end])
    finish(notebook)
    chapter = Chapter(path, header, notebook, sittings)
    notebook.metadata["hookscope"] = {"lesson": chapter.name, "fingerprint": fingerprint(chapter)}
    return chapter


def make_cells(path: Path, text: str, exercises: dict[str, ExerciseText], level: int = 2) -> Iterator[NotebookNode]:
    """Give the cells of a text; takes the exercises that stand in it out of `exercises`."""
    lines = text.splitlines()
    marked, section = fast_track.list_marked_sections(path), 0
    lesson_source.refuse_open_fence(path, lines)
    try:
        notebook = myst_to_notebook(text, add_source_map=True)
    except MystMetadataParsingError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise LessonError(f"{format_location(path, at[1] if at else 1)}: {error}") from error
    for cell, start in zip(notebook.cells, notebook.metadata["source_map"], strict=True):
        if cell.cell_type != "markdown":
            lesson_source.refuse_bad_python(path, lines, start, cell.source)
            if lesson_source.has_only_imports(cell.source):  # folded: it is run, and nobody has to read it
                cell.metadata["jupyter"] = {"source_hidden": True}
            try:
                yield from add_version_note(cell, cell.metadata.pop("holds_for", ""), cell.metadata.pop("before", ""))
            except ValueError as error:
                raise LessonError(f"{format_location(path, start + 1)}: {error}") from None
            continue
        blank = next(i for i, line in enumerate(lines[start:]) if line.strip())
        for line, part in split_at_placeholders(cell.source, start + blank + 1):
            if alone := re.fullmatch(CELL_PLACEHOLDER, part):
                yield from CELL_MAKERS[alone[1]](path, line, alone[2] or "", exercises, level + 1)
                continue
            for ended, piece in fast_track.split_at_ends(part, marked, section):
                if ended:
                    yield fast_track.make_pointer_cell(path, ended)
                filled = fill_placeholders(path, line + part[: part.index(piece)].count("\n"), piece)
                # A claim starts a cell of its own: one idea per cell.
                for idea in re.split(r"\n+(?=\*\*D\d\.\d+\*\* · )", fast_track.mark(filled, marked)):
                    yield nbformat.v4.new_markdown_cell(idea, metadata=cell.metadata)
            section = fast_track.find_last_section(part, section)
            if heads := re.findall(r"^(#+) ", part, re.MULTILINE):
                level = len(heads[-1])


def add_version_note(cell: NotebookNode, requirement: str, before: str = "") -> Iterator[NotebookNode]:
    """A cell, and below it since when it shows what it shows, if that is not how it always was.

    Args:
        cell: a code cell.
        requirement: such as "torch>=2.15"; `hookscope_course.strict` holds the cell to its output on these only.
        before: what it shows on an older torch, in words that end the sentence "Before torch 2.15, this cell …".

    Raises:
        ValueError: the requirement is not of this form, or names no release before which it was otherwise.

    """
    if before and not requirement.startswith("torch>="):
        raise ValueError(f"before is {before!r}; say since when it is otherwise, as in holds_for: torch>=2.15")
    if not requirement:
        yield cell
        return
    found = re.fullmatch(r"torch(>=|==)(\d+\.\d+(?:\.\d+)?)", requirement)
    if not found:
        raise ValueError(f"holds_for is {requirement!r}; write torch>=2.15 or torch==2.15.0")
    cell.metadata["holds_for"] = requirement
    yield cell
    if found[1] == ">=":  # what holds for one release only names it
        then = before or "shows something else"
        yield nbformat.v4.new_markdown_cell(f"*Before torch {found[2]}, this cell {then}.*")


def make_edition_cell(name: str) -> NotebookNode:
    """The lines that say what these notebooks are; a learner's copy does not have them."""
    page = "where_to_begin" if name == "index" else name
    words = (
        "> ## This is the instructor's edition, with all answers\n>\n"
        f"> **To learn, guess first:** [this page on the site]({SITE}/{page}.html), with nothing to install, or "
        "your own copy of the course: `make lab`."
    )
    return make_tagged_cell(nbformat.v4.new_markdown_cell, words, "edition")


def make_head_cell(path: Path, header: dict[str, Any], sittings: tuple[Minutes, ...]) -> NotebookNode:
    """The first cell: title, promise, and for a chapter its minutes, what it builds on, the way onward."""
    if name_of(path) == "index":
        facts = []  # it begins with the way into the course, and ends with these links
    elif header.get("kind") == "reference":
        facts = list_reference_facts(path)
    else:
        facts = list_chapter_facts(path, header, sittings)
    number = "" if header.get("kind") == "reference" else f"{name_of(path)[:2]} · "
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        "\n\n".join([f"# {number}{header['title']}", header["promise"], *facts])
    )
    return cell


def list_chapter_facts(path: Path, header: dict[str, Any], sittings: tuple[Minutes, ...]) -> list[str]:
    """A line of facts about a chapter, and one with the ways to its neighbours."""
    names = {name_of(file)[:2]: file for file in lesson_source.chapter_files()}
    number = name_of(path)[:2]

    def link(other: str) -> str:
        return f"[{other}]({name_of(names[other])}.ipynb)"

    builds_on = [f"{n:02}" for n in header["builds_on"]]
    for other in builds_on:
        if other not in names:
            raise LessonError(f"{format_location(path, 1)}: builds_on names chapter {other}, which does not exist")
    reading_time, exercise_time = (sum(getattr(part, kind) for part in sittings) for kind in ("reading", "exercises"))
    facts = [f"**{reading_time} minutes** to read and run", f"**{exercise_time} minutes** of exercises"]
    if len(sittings) > 1:
        facts.append(f"{len(sittings)} sittings ({', '.join(str(part.total) for part in sittings)} minutes)")
    facts.append("builds on " + ", ".join(map(link, builds_on)) if builds_on else "builds on nothing")
    order = sorted(names)
    index = order.index(number) if number in order else 0
    ways = []
    if index > 0:
        ways.append(f"← {link(order[index - 1])}")
    ways.append("[all chapters](index.ipynb)")
    if index + 1 < len(order):
        ways.append(f"{link(order[index + 1])} →")
    return [" · ".join(line) for line in (facts, ways) if line]


def make_next_cells(path: Path) -> Iterator[NotebookNode]:
    """The last cell of a chapter: what the next one is about, and the way there."""
    chapters = lesson_source.chapter_files()
    if path in chapters[:-1]:
        after = chapters[chapters.index(path) + 1]
        header = lesson_source.header_of(after)
        title = f"{name_of(after)[:2]} · {header.get('title', '')}"
        words = header.get("teaser") or f"you find out {header.get('finds_out', '')}."
        lines = [
            f"This is the end of the way *{way}*." for way in index_page.list_finished_routes(int(name_of(path)[:2]))
        ]
        lines += [f"**Next:** [{title}]({name_of(after)}.ipynb) · {words}"]
        numbers = {int(name_of(chapter)[:2]): chapter for chapter in chapters}
        for number, ways in index_page.find_next_chapters(int(name_of(path)[:2])).items():
            if numbers.get(number, after) != after:
                other = numbers[number]
                link = f"[{number:02} · {lesson_source.header_of(other)['title']}]({name_of(other)}.ipynb)"
                lines.append(f"{' and '.join(f'*{way}*' for way in ways)}: next is {link}.")
        yield make_tagged_cell(nbformat.v4.new_markdown_cell, "\n\n".join(lines), "next")


def list_reference_facts(path: Path) -> list[str]:
    """The way back to the first chapter, and across to the other reference pages."""
    others = [file for file in lesson_source.reference_files() if file != path]
    ways = [*lesson_source.chapter_files()[:1], *others]
    return [
        "Reference · " + " · ".join(f"[{lesson_source.header_of(way)['title']}]({name_of(way)}.ipynb)" for way in ways)
    ]


def fill_placeholders(path: Path, line: int, source: str) -> str:
    """Replace `{{claim D0.2}}` and its like by what `placeholders` makes of it."""

    def fill(match: re.Match[str]) -> str:
        try:
            return placeholders.fill(match[1], match[2] or "")
        except LookupError as error:
            at = line + source[: match.start()].count("\n")
            raise LessonError(f"{format_location(path, at)}: {error.args[0]}") from None

    return re.sub(r"\{\{(\w+)(?: ([^{}]+))?\}\}", fill, source)


def read_exercises_of(path: Path) -> dict[str, ExerciseText]:
    """The exercises of a lesson by name; none where it has no exercises.md."""
    file = path.with_name("exercises.md")
    try:
        return {text.name: text for text in read_exercises(file)} if file.exists() else {}
    except ExerciseTextError as error:
        raise LessonError(str(error)) from None


CELL_PLACEHOLDER = r"\{\{(exercise|stop|runs|chooser|course|fast_track)(?: (\w+))?\}\}"
"""A placeholder that stands alone on its line and becomes cells."""


def split_at_placeholders(source: str, line: int) -> list[tuple[int, str]]:
    """Cut Markdown at what stands alone, each a part of its own; with the line in which each part begins."""
    parts, at = [], line
    for part in re.split(
        rf"^({CELL_PLACEHOLDER.replace('(', '(?:').replace('(?:?:', '(?:')})$", source, flags=re.MULTILINE
    ):
        if part.strip():
            parts.append((at + len(part) - len(part.lstrip("\n")), part.strip("\n")))
        at += part.count("\n")
    return parts


def make_tagged_cell(make: Callable[..., NotebookNode], source: str, tag: str, **metadata: Any) -> NotebookNode:
    """A cell that says what part of an exercise it is."""
    return make(source, metadata={"tags": [tag], **metadata})


def make_exercise_cells(
    path: Path, line: int, name: str, exercises: dict[str, ExerciseText], level: int
) -> Iterator[NotebookNode]:
    """The cells of an exercise: its question, the starter, and for one that is no bug of a lab hint and solution.

    The solution's code and result are folded away.
    """
    if name not in exercises:
        raise LessonError(
            f"{format_location(path, line)}: exercises.md has no exercise '{name}' that is not in the lesson yet"
        )
    text = exercises.pop(name)
    question = f"{'#' * level} {text.heading}\n\n{text.question}"
    yield make_tagged_cell(nbformat.v4.new_markdown_cell, question, "question")
    starter = make_tagged_cell(nbformat.v4.new_code_cell, text.starter.strip("\n"), "exercise", exercise=text.number)
    try:
        yield next(add_version_note(starter, text.holds_for))  # what it shows is gone as soon as somebody answers
    except ValueError as error:
        raise LessonError(f"{text.location}: {error}") from None
    if not text.in_lab:
        folded = {"source_hidden": True, "outputs_hidden": True}
        solution = f"# solution\n{text.solution.strip(chr(10))}"
        yield make_tagged_cell(nbformat.v4.new_code_cell, f"# {name}.hint()", "hint")
        yield make_tagged_cell(nbformat.v4.new_code_cell, solution, "solution", jupyter=folded)


def make_stop_cell(*_: Any) -> Iterator[NotebookNode]:
    """A place to stop; `fill_stop_cells` says what comes after it."""
    yield make_tagged_cell(nbformat.v4.new_markdown_cell, "", "stop")


def time_sittings(cells: list[NotebookNode], minutes: dict[str, int]) -> Iterator[Minutes]:
    """Time what stands between two places to stop, given the minutes of each exercise."""
    parts: list[list[NotebookNode]] = [[]]
    for cell in cells:
        if "stop" in cell.metadata.get("tags", []):
            parts.append([])
        else:
            parts[-1].append(cell)
    for part in parts:
        names = [cell.metadata["exercise"] for cell in part if "exercise" in cell.metadata]
        yield page_minutes.estimate_minutes(part, sum(minutes[name] for name in names))


def fill_stop_cells(cells: list[NotebookNode], sittings: tuple[Minutes, ...]) -> None:
    """Write at each place to stop how long the next sitting takes."""
    stops = (cell for cell in cells if "stop" in cell.metadata.get("tags", []))
    for cell, after in zip(stops, sittings[1:], strict=True):
        cell.source = (
            f"**A good place to stop.** The next part takes about {after}.\n\nWhen you come back, click into the "
            "next cell and choose `Run` → `Run All Above Selected Cell`."
        )


def make_run_cells(
    path: Path, line: int, document: str, exercises: dict[str, ExerciseText], level: int
) -> Iterator[NotebookNode]:
    """The claims of a document that run on the ledger's own page, each folded below a heading."""
    for name in placeholders.list_run_claims(document):
        heading = f"{'#' * level} {name}\n\n{placeholders.claim(name)}"
        yield nbformat.v4.new_markdown_cell(heading, metadata={FOLDED: True})
        fragment = path.parent / "runs" / f"{name}.md"
        yield from make_cells(fragment, fragment.read_text(encoding="utf-8"), {}, level)
        yield nbformat.v4.new_markdown_cell(placeholders.describe_behavior(name))


def make_chooser_cells(*_: Any) -> Iterator[NotebookNode]:
    """The groups of the chooser; what proves a row is folded."""
    for heading, sections in placeholders.chooser():
        yield nbformat.v4.new_markdown_cell(heading)
        for text, code, *holds in sections:
            yield nbformat.v4.new_markdown_cell(text)
            proof = nbformat.v4.new_code_cell(f"# The proof\n{code}", metadata={"jupyter": {"source_hidden": True}})
            yield from add_version_note(proof, *holds)


def make_course_cells(*_: Any) -> Iterator[NotebookNode]:
    """The map of the course, and its chapters with their minutes."""
    return index_page.make_cells(lambda path: parse(path).minutes.total)


def make_fast_track_cells(*_: Any) -> Iterator[NotebookNode]:
    """The sections to take in one hour."""
    yield index_page.make_fast_track_cell(
        lambda path: parse(path).notebook.cells, lambda path: read_exercises_of(path)[fast_track.EXERCISE].minutes
    )


CELL_MAKERS: dict[str, Callable[[Path, int, str, dict[str, ExerciseText], int], Iterator[NotebookNode]]] = {
    "exercise": make_exercise_cells,
    "stop": make_stop_cell,
    "runs": make_run_cells,
    "chooser": make_chooser_cells,
    "course": make_course_cells,
    "fast_track": make_fast_track_cells,
}


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
        heading = re.search(r"^#{2,} (.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        key = lesson_source.heading_key(heading[1]) if heading else f"{cell.cell_type}\n{cell.source}"
        seen[key] = seen.get(key, 0) + 1
        cell.id = lesson_source.cell_id(key, seen[key])
        cell.metadata.pop("execution", None)


def fingerprint(chapter: Chapter) -> str:
    """A hash of what a chapter's outputs follow from: its folder, what it `reads`, the package, the exercises' code."""
    digest = hashlib.sha256()
    for cell in chapter.notebook.cells:
        digest.update(json.dumps([cell.cell_type, cell.source, cell.metadata], sort_keys=True).encode())
    for file in sorted(chapter.source.parent.iterdir()):
        is_test = file.name.startswith("facts_")
        if (file.suffix in (".py", ".toml") and not is_test) or file.name == "exercises.md":  # reasons are shown, too
            digest.update(file.read_bytes())
    rooms = ["practice", *chapter.header.get("reads", [])]
    for room in rooms:
        if not (COURSE / room).is_dir():
            raise LessonError(
                f"{format_location(chapter.source, 1)}: the header reads '{room}', which hookscope_course has not"
            )
        digest.update(folder_fingerprint(COURSE / room))
    digest.update(folder_fingerprint(PACKAGE))
    return digest.hexdigest()[:16]


@cache
def folder_fingerprint(folder: Path) -> bytes:
    """A hash of the files of a package."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.digest()
