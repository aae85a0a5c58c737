"""Record the widgets of a chapter as its cells make them: run the notebook's cells, and at each widget record it.

    python -m lessons.site.chapter_recordings FOLDER 02_call_order 06_layer_picker  # a script for each widget

The cells run in a process of their own, as in a kernel: they may set anything.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from hookscope.widgets.base import HookWidget
from hookscope_course.kernel_settings import KERNEL_ENV
from lessons.build.lesson_source import NOTEBOOKS, ROOT
from lessons.site import widget_recordings
from lessons.site.pages import WIDGET, find_widget_cells


def record(names: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """Record the widgets of chapters, two at a time.

    Args:
        names: of the notebooks.
        folder: where the scripts go.

    Returns:
        For each notebook, for each cell (by its id) whose widget is alive, a sentence on what it answers.

    Raises:
        subprocess.CalledProcessError: a cell failed, or made another widget than the notebook shows.

    """
    halves = [each for each in (names[::2], names[1::2]) if each]
    settings = os.environ | KERNEL_ENV | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'helpers'}"}
    command = [sys.executable, "-m", "lessons.site.chapter_recordings", str(folder)]
    running = [
        subprocess.Popen([*command, *half], env=settings, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for half in halves
    ]
    found: dict[str, dict[str, str]] = {}
    for process in running:
        said, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        found |= json.loads(said.splitlines()[-1])
    return found


def record_notebook(path: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Run a notebook's cells up to its last widget; yields the id of each widget's cell, and what is recorded of it.

    Raises:
        RuntimeError: a cell failed, or made another widget than the notebook shows.

    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    left = find_widget_cells(cells)
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        for cell in cells:
            if not left:
                return
            if cell["cell_type"] != "code":
                continue
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                done = shell.run_cell("".join(cell["source"]), store_history=True)
            if not done.success and "raises-exception" not in cell["metadata"].get("tags", []):
                raise RuntimeError(f"{path.name}, cell {cell['id']}: {done.error_in_exec or done.error_before_exec}")
            if cell["id"] in left:
                left.remove(cell["id"])
                name = f"{path.stem[:2]}-{cell['id']}"
                if fits := widget_recordings.record_within_limit(_check_widget(done.result, cell, path), name):
                    script, words = fits
                    (folder / f"{name}.js").write_text(script, encoding="utf-8")
                    yield cell["id"], words


def _check_widget(widget: object, cell: dict[str, object], path: Path) -> HookWidget:
    """The widget of a cell, if it is the one that the notebook shows."""
    outputs = cell["outputs"]
    assert isinstance(outputs, list)
    saved = next("".join(each["data"]["text/plain"]) for each in outputs if WIDGET in each.get("data", {}))
    if not isinstance(widget, HookWidget) or repr(widget) != saved:
        raise RuntimeError(f"{path.name}, cell {cell['id']}: now {widget!r}, saved {saved}")
    return widget


if __name__ == "__main__":
    folder, *chosen = sys.argv[1:]
    out = sys.stdout
    answers = {name: dict(record_notebook(NOTEBOOKS / f"{name}.ipynb", Path(folder))) for name in chosen}
    print(json.dumps(answers), file=out)
