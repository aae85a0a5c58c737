"""Turn lessons (MyST text) into executed notebooks, one way, byte for byte the same every time.

    python lessons/build.py              build what changed
    python lessons/build.py 01 02        build these chapters, changed or not
    python lessons/build.py --all        build every chapter
    python lessons/build.py --check      say what is out of step, run nothing

A lesson is written in `lessons/NN_name.md`; its notebook is `notebooks/NN_name.ipynb` and is never edited by hand.
The builder adds what a chapter should not have to repeat: the head of the page (from the lesson's header), the text
and the verdict of a claim (`{{claim D0.2}}` and `{{verdict D0.2}}`, from claims.toml), and the collapsed solution of
an exercise (a code cell that is just `# solution: q1`, from the chapter's module in lessons/checks).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import copy
import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# jsonschema would import this grammar of internationalised addresses, 0.8 s, and do without it if it is not there.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import nbformat
import yaml
from jupytext.myst import MystMetadataParsingError, myst_to_notebook
from nbformat import NotebookNode

LESSONS = Path(__file__).resolve().parent
ROOT = LESSONS.parent
NOTEBOOKS = ROOT / "notebooks"
CHECKS = LESSONS / "checks"
PACKAGE = ROOT / "helpers" / "hookscope"

CELL_TIMEOUT = 120  # seconds; the same limit the tests give a cell
AT_ONCE = 2
# ipykernel names a cell after a temporary file with the process id in it, and that name reaches the saved output
# (warnings, file:line). One fixed name keeps two builds equal. The tests run the kernels with the same settings.
KERNEL_ENV = {"IPYKERNEL_CELL_NAME": "<cell>", "PYTHONHASHSEED": "0"}

HEADER = {"title": str, "promise": str, "minutes": int, "builds_on": list, "documents": list}
VERDICTS = {"holds": "Holds", "partly": "Partly true", "outdated": "Outdated", "wrong": "Wrong"}


class LessonError(Exception):
    """A lesson that cannot be built; the message starts with file:line."""


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
        return NOTEBOOKS / f"{self.source.stem}.ipynb"


# -- reading ------------------------------------------------------------------------------------------------------


def lesson_files() -> list[Path]:
    """Every lesson, in chapter order."""
    return sorted(LESSONS.glob("[0-9][0-9]_*.md"))


@cache
def claims() -> dict[str, Any]:
    """claims.toml as `{"documents": {id: row}, "claims": {id: row}}`."""
    data = tomllib.loads((LESSONS / "claims.toml").read_text(encoding="utf-8"))
    return {
        "documents": {row["id"]: row for row in data["document"]},
        "claims": {row["id"]: row for row in data["claim"]},
    }


def parse(path: Path) -> Chapter:
    """Read one lesson.

    Raises:
        LessonError: the text does not parse, or its header lacks a field; names file and line.

    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    header = read_header(path, lines)
    refuse_open_fence(path, lines)
    try:
        notebook = myst_to_notebook(text, add_source_map=True)
    except MystMetadataParsingError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise LessonError(f"{where(path, at[1] if at else 1)}: {error}") from error
    starts = notebook.metadata["source_map"]
    solutions = read_solutions(path, header)
    cells = [head_cell(path, header)]
    for cell, start in zip(notebook.cells, starts, strict=True):
        if cell.cell_type == "markdown":
            blank = next(i for i, line in enumerate(lines[start:]) if line.strip())
            # A claim starts a cell of its own: one idea per cell.
            filled = fill_claims(path, start + blank + 1, cell.source)
            parts = re.split(r"\n+(?=\*\*D\d\.\d+\*\* · )", filled)
            cells += [nbformat.v4.new_markdown_cell(part, metadata=cell.metadata) for part in parts]
        else:
            fill_solution(path, start + 1, cell, solutions)
            refuse_bad_python(path, lines, start, cell.source)
            cells.append(cell)
    notebook.cells = cells
    finish(notebook)
    chapter = Chapter(path, header, notebook)
    notebook.metadata["hookscope"] = {"lesson": path.name, "fingerprint": fingerprint(chapter)}
    return chapter


def where(path: Path, line: int | str) -> str:
    """`lessons/01_calling.md:12`, as editors and terminals link it."""
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{line}"


def read_header(path: Path, lines: list[str]) -> dict[str, Any]:
    """The YAML header between the first two `---` lines, every field of `HEADER` present and of its type."""
    if not lines or lines[0].strip() != "---":
        raise LessonError(f"{where(path, 1)}: no header; a lesson starts with '---' and {', '.join(HEADER)}")
    try:
        end = next(i for i, line in enumerate(lines[1:], start=1) if line.strip() == "---")
    except StopIteration:
        raise LessonError(f"{where(path, 1)}: the header's closing '---' is missing") from None
    try:
        header = yaml.safe_load("\n".join(lines[1:end])) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark else 1
        raise LessonError(f"{where(path, line)}: the header is not YAML: {error}") from error
    for name, kind in HEADER.items():
        if name not in header:
            raise LessonError(f"{where(path, end + 1)}: the header lacks '{name}'")
        if not isinstance(header[name], kind):
            raise LessonError(f"{where(path, 1)}: '{name}' in the header must be {kind.__name__}")
    for document in header["documents"]:
        if document not in claims()["documents"]:
            raise LessonError(f"{where(path, 1)}: claims.toml has no document '{document}'")
    return dict(header)


def header_of(path: Path) -> dict[str, Any]:
    """A lesson's header, or nothing when that lesson has an error of its own."""
    try:
        return read_header(path, path.read_text(encoding="utf-8").splitlines())
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
        raise LessonError(f"{where(path, opened[0])}: this fence ({opened[1]}) is never closed")


def refuse_bad_python(path: Path, lines: list[str], start: int, source: str) -> None:
    """A code cell must compile (top-level await allowed, as in IPython); magics and shell lines are not used here."""
    try:
        compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        first = source.splitlines()[0] if source else ""
        offset = next((i for i, line in enumerate(lines[start:]) if line == first), 0)
        raise LessonError(f"{where(path, start + offset + (error.lineno or 1))}: {error.msg}") from error


# -- what the builder adds ----------------------------------------------------------------------------------------


def head_cell(path: Path, header: dict[str, Any]) -> NotebookNode:
    """The first cell: title, promise, minutes, what the chapter builds on, the documents, and the way onward."""
    names = {file.stem[:2]: file for file in lesson_files()}
    number = path.stem[:2]

    def link(other: str, text: str) -> str:
        return f"[{text}]({names[other].stem}.ipynb)"

    builds_on = [f"{n:02}" for n in header["builds_on"]]
    for other in builds_on:
        if other not in names:
            raise LessonError(f"{where(path, 1)}: builds_on names chapter {other}, which does not exist")
    facts = [
        f"**{header['minutes']} minutes**",
        "builds on " + ", ".join(link(n, n) for n in builds_on) if builds_on else "builds on nothing",
    ]
    if header["documents"]:
        rows = (claims()["documents"][d] for d in header["documents"])
        facts.append("follows " + ", ".join(f"{row['id']} ({row['title']})" for row in rows))
    order = sorted(names)
    place = order.index(number) if number in order else 0
    ways = []
    if place > 0:
        ways.append("← " + link(order[place - 1], order[place - 1]))
    if place + 1 < len(order):
        ways.append(link(order[place + 1], order[place + 1]) + " →")
    source = f"# {number} · {header['title']}\n\n{header['promise']}\n\n{' · '.join(facts)}"
    if ways:
        source += "\n\n" + " · ".join(ways)
    cell: NotebookNode = nbformat.v4.new_markdown_cell(source)
    return cell


def fill_claims(path: Path, line: int, source: str) -> str:
    """Replace `{{claim ID}}` by the claim in our words and `{{verdict ID}}` by its verdict."""

    def fill(match: re.Match[str]) -> str:
        what, name = match[1], match[2]
        row = claims()["claims"].get(name)
        if row is None:
            at = line + source[: match.start()].count("\n")
            raise LessonError(f"{where(path, at)}: claims.toml has no claim '{name}'")
        if what == "claim":
            return f"**{name}** · *The document says:* {row['text']}"
        verdict = VERDICTS[row["verdict"]]
        since = f" since torch {row['since']}" if row.get("since") else ""
        return f"**Verdict on {name}: {verdict.lower()}{since}.**"

    return re.sub(r"\{\{(claim|verdict) (D\d\.\d+)\}\}", fill, source)


def read_solutions(path: Path, header: dict[str, Any]) -> dict[str, str]:
    """The `solution=` text of every exercise in the chapter's checks module, read without importing it (no torch)."""
    if not header.get("checks"):
        return {}
    module = CHECKS / f"{header['checks']}.py"
    if not module.exists():
        raise LessonError(
            f"{where(path, 1)}: the header names checks '{header['checks']}', but there is no {module.name}"
        )
    found = {}
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        for keyword in node.value.keywords:
            if keyword.arg == "solution" and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = str(ast.literal_eval(keyword.value)).strip("\n")
    return found


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
            digest.update((LESSONS / name).read_bytes())
        except OSError:
            raise LessonError(f"{where(chapter.source, 1)}: the header reads '{name}': no such file") from None
    for cell in chapter.notebook.cells:
        digest.update(json.dumps([cell.cell_type, cell.source, cell.metadata], sort_keys=True).encode())
    digest.update(package_fingerprint())
    others = set[str]().union(*(own_files(header_of(path)) for path in lesson_files())) - own_files(chapter.header)
    for file in sorted(CHECKS.glob("*.py")):
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


# -- comparing ----------------------------------------------------------------------------------------------------


def out_of_step(chapter: Chapter) -> str:
    """Why the notebook on disk is not what this lesson would build; empty when it is."""
    if not chapter.target.exists():
        return "has not been built"
    try:
        disk = nbformat.read(chapter.target, as_version=4)
    except (ValueError, nbformat.reader.NotJSONError) as error:
        return f"cannot be read: {error}"
    ours, theirs = ([(c.id, c.cell_type, c.source, c.metadata) for c in nb.cells] for nb in (chapter.notebook, disk))
    if ours != theirs:
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        return f"differs from its lesson at cell {min(len(ours), len(theirs)) if same is None else same}"
    if disk.metadata != chapter.notebook.metadata:
        return "was built from other sources (the package or its checks have changed)"
    return ""


def strangers(chapters: Iterable[Chapter]) -> list[Path]:
    """Notebooks that no lesson makes."""
    return sorted(set(NOTEBOOKS.glob("*.ipynb")) - {chapter.target for chapter in chapters})


# -- executing ----------------------------------------------------------------------------------------------------


async def execute(chapter: Chapter, progress: Any) -> str:
    """Run one chapter and write its notebook; returns what went wrong, or an empty string.

    Nothing is written unless every cell ran without an exception and without a word on stderr.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = copy.deepcopy(chapter.notebook)
    running = -1

    def starts(cell: NotebookNode, cell_index: int) -> None:
        nonlocal running
        running = cell_index
        progress.set_postfix_str(f"{chapter.number} cell {cell_index}", refresh=False)

    def ends(cell: NotebookNode, cell_index: int, execute_reply: Any = None) -> None:
        progress.update()

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        extra_arguments=["--Application.log_level=40"],  # no word about the transport on loopback
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_start=starts,
        on_cell_executed=ends,
    )
    try:
        await client.async_execute(env=os.environ | KERNEL_ENV)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{chapter.source.name}, cell {running}: {type(error).__name__}\n{error}"
    finish(notebook)
    notebook.metadata["hookscope"] = chapter.notebook.metadata["hookscope"]
    for index, cell in enumerate(notebook.cells):
        if problem := spoiled(cell):
            return f"{chapter.source.name}, cell {index}: {problem}\n{cell.source}"
    number_widgets(notebook)
    write(chapter.target, notebook)
    return ""


def spoiled(cell: NotebookNode) -> str:
    """What in a cell's output must not be saved: anything on stderr, or a path of this machine."""
    outputs = cell.get("outputs", [])
    for output in outputs:
        if output.get("name") == "stderr":
            return f"wrote to stderr (no warning unless it is caught and printed on purpose):\n{output.text}"
    text = json.dumps(outputs)
    for place in (str(ROOT.parent), str(Path.home()), sys.prefix):
        if place not in ("/", "") and place + os.sep in text:
            return "its output holds a path of this machine"
    return ""


def number_widgets(notebook: NotebookNode) -> None:
    """Widget model ids are random; their order is not."""
    ids: dict[str, str] = {}
    view = "application/vnd.jupyter.widget-view+json"
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if view in data:
                model = data[view]["model_id"]
                data[view]["model_id"] = ids.setdefault(model, f"widget-{len(ids) + 1}")


def write(path: Path, notebook: NotebookNode) -> None:
    """Write the notebook's JSON with sorted keys, all at once."""
    nbformat.validate(notebook)
    text = json.dumps(notebook_as_saved(notebook), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)


def notebook_as_saved(notebook: NotebookNode) -> dict[str, Any]:
    """The JSON form Jupyter itself saves: sources and outputs as lists of lines, so that changes read well in git."""
    saved: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return saved


async def execute_all(chapters: list[Chapter]) -> list[str]:
    """Run chapters, two at once, under one progress bar over their code cells; returns what went wrong."""
    from tqdm import tqdm

    cells = sum(cell.cell_type == "code" for chapter in chapters for cell in chapter.notebook.cells)
    slots = asyncio.Semaphore(AT_ONCE)
    with tqdm(total=cells, unit="cell", desc=f"{len(chapters)} chapters", mininterval=0.5) as progress:

        async def one(chapter: Chapter) -> str:
            async with slots:
                return await execute(chapter, progress)

        results = await asyncio.gather(*(one(chapter) for chapter in chapters))
    return [result for result in results if result]


# -- the command --------------------------------------------------------------------------------------------------


def parse_all(paths: Iterable[Path]) -> Iterator[Chapter | LessonError]:
    """Every lesson, parsed, or why it does not parse: one bad lesson does not hide the next."""
    for path in paths:
        try:
            yield parse(path)
        except LessonError as error:
            yield error


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Turn lessons into executed notebooks.")
    parser.add_argument("chapters", nargs="*", metavar="NN", help="chapters to build, e.g. 01 or 01_calling_a_module")
    parser.add_argument("--all", action="store_true", help="build every chapter, changed or not")
    parser.add_argument("--check", action="store_true", help="say what is out of step, run nothing")
    options = parser.parse_args(arguments)

    parsed = list(parse_all(lesson_files()))
    errors = [item for item in parsed if isinstance(item, LessonError)]
    chapters = [item for item in parsed if isinstance(item, Chapter)]
    for error in errors:
        print(error, file=sys.stderr)
    for name in options.chapters:
        if not any(chapter.source.stem.startswith(name) for chapter in chapters):
            have = ", ".join(chapter.number for chapter in chapters) or "none"
            print(f"no chapter '{name}'; there are: {have}", file=sys.stderr)
            return 2

    if options.check:
        stale = [(chapter, why) for chapter in chapters if (why := out_of_step(chapter))]
        for chapter, why in stale:
            print(f"notebooks/{chapter.target.name} {why}; run: python lessons/build.py {chapter.number}")
        extra = [] if errors else strangers(chapters)
        for path in extra:
            print(f"notebooks/{path.name} has no lesson; delete it or write lessons/{path.stem}.md")
        return 1 if errors or stale or extra else 0

    if options.chapters:
        todo = [c for c in chapters if any(c.source.stem.startswith(name) for name in options.chapters)]
    else:
        todo = [chapter for chapter in chapters if options.all or out_of_step(chapter)]
    failures = asyncio.run(execute_all(todo)) if todo else []
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    report = [f"{len(todo) - len(failures)} built", f"{len(failures) + len(errors)} failed"]
    if not options.chapters:
        report.insert(1, f"{len(chapters) - len(todo)} already up to date")
    print(", ".join(report))
    return 1 if failures or errors else 0


if __name__ == "__main__":
    sys.exit(main())
