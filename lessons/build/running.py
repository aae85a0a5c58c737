"""Turn lessons (MyST text) into executed notebooks, one way, byte for byte the same every time.

    python lessons/build.py              build what changed
    python lessons/build.py 01 02        build these chapters, changed or not
    python lessons/build.py --all        build every chapter
    python lessons/build.py --check      say what is out of step, run nothing

A lesson is written in `lessons/NN_name.md`; its notebook is `notebooks/NN_name.ipynb` and is never edited by hand.
`reading` reads lessons, `filling` knows what stands for a placeholder, `making` makes the notebook, and this file runs
it, compares it with the one that was saved, and is the command.

The builder adds what a chapter should not have to repeat: the head of the page (from the lesson's header), the text
and the verdict of a claim (`{{claim D0.2}}` and `{{verdict D0.2}}`, from claims.toml), the tables of the reference
pages, and the collapsed solution of an exercise (a code cell that is just `# solution: q1`, from the chapter's module
in lessons/checks).
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# jsonschema would import this grammar of internationalised addresses, 0.8 s, and do without it if it is not there.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import nbformat
from nbformat import NotebookNode

from lessons import reading
from lessons.making import Chapter, finish, parse
from lessons.reading import LessonError, lesson_files

CELL_TIMEOUT = 120  # seconds; the same limit the tests give a cell
AT_ONCE = 2
# ipykernel names a cell after a temporary file with the process id in it, and that name reaches the saved output
# (warnings, file:line). One fixed name keeps two builds equal. The tests run the kernels with the same settings.
KERNEL_ENV = {"IPYKERNEL_CELL_NAME": "<cell>", "PYTHONHASHSEED": "0"}


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
    return sorted(set(reading.NOTEBOOKS.glob("*.ipynb")) - {chapter.target for chapter in chapters})


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
        resources={"metadata": {"path": str(reading.NOTEBOOKS)}},
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
    for place in (str(reading.ROOT.parent), str(Path.home()), sys.prefix):
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
