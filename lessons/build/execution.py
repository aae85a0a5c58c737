"""Run a notebook that was made, refuse what must not be saved, and write it; or say that it is out of step."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from hookscope_course.kernel_settings import KERNEL_ENV, open_over_files
from hookscope_course.notebook_pictures import split_pictures
from hookscope_course.practice.feedback_card import HEADINGS
from lessons.build import lesson_source
from lessons.build.chapter_notebook import Chapter, finish
from lessons.build.image_compression import shrink

CELL_TIMEOUT = 120  # seconds; the same limit the tests give a cell
AT_ONCE = 2


# -- comparing ----------------------------------------------------------------------------------------------------


def find_difference(chapter: Chapter) -> str:
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


def find_orphans(chapters: Iterable[Chapter]) -> list[Path]:
    """Notebooks that no lesson makes."""
    return sorted(set(lesson_source.NOTEBOOKS.glob("*.ipynb")) - {chapter.target for chapter in chapters})


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
        resources={"metadata": {"path": str(lesson_source.NOTEBOOKS)}},
        config=open_over_files(),
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_start=starts,
        on_cell_executed=ends,
    )
    try:
        if any(cell.cell_type == "code" for cell in notebook.cells):  # else no kernel needs to start
            await client.async_execute(env=os.environ | KERNEL_ENV)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{chapter.name}, cell {running}: {type(error).__name__}\n{error}"
    finish(notebook)
    notebook.metadata["hookscope"] = chapter.notebook.metadata["hookscope"]
    for index, cell in enumerate(notebook.cells):
        if problem := find_forbidden_output(cell):
            return f"{chapter.name}, cell {index}: {problem}\n{cell.source}"
    number_widgets(notebook)
    store_pictures_small(notebook)
    write(chapter.target, notebook)
    return ""


def find_forbidden_output(cell: NotebookNode) -> str:
    """What in a cell's output must not be saved: anything on stderr, or a path of this machine."""
    outputs = cell.get("outputs", [])
    for output in outputs:
        if output.get("name") == "stderr":
            return f"wrote to stderr (no warning unless it is caught and printed on purpose):\n{output.text}"
    text = json.dumps(outputs)
    if "solution" in cell.metadata.get("tags", []) and HEADINGS["wrong"] in text:
        return "the course's own solution is not right"
    for folder in (str(lesson_source.ROOT.parent), str(Path.home()), sys.prefix):
        if folder not in ("/", "") and folder + os.sep in text:
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


def store_pictures_small(notebook: NotebookNode) -> None:
    """Store each picture once, in few bytes, as an output that every viewer shows."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = split_pictures(cell.outputs)
            for output in cell.outputs:
                if png := output.get("data", {}).get("image/png"):
                    output.data["image/png"] = base64.b64encode(shrink(base64.b64decode(png))).decode("ascii")


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
