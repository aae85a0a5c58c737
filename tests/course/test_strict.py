"""Notebooks of one's own, held by the strict plugin: markers, empty cells, figures, kernels, and the runner."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image, ImageFilter

from hookscope_course.strict import describe_difference
from hookscope_course.strict.figures import replace_random_ids
from tests.shared import PATIENCE, ROOT

PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def write(path: Path, *cells: Any, metadata: dict[str, Any] | None = None) -> Path:
    """Write a notebook of sources, or cells."""
    made = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=made, metadata=PYTHON if metadata is None else metadata), path)
    return path


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # With an ordinary kernel, as a user has it: not with the one that this suite keeps preloaded.
    mine = {name: value for name, value in os.environ.items() if name not in {"HOOKSCOPE_RANKS", "JUPYTER_PATH"}}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=mine, capture_output=True, text=True, timeout=PATIENCE, check=False)


def verdicts(folder: Path, *options: str) -> dict[str, list[str]]:
    """What pytest says of the cells of each notebook in a folder."""
    done = run(
        *["pytest", "-v", "--color=no", "-p", "no:cacheprovider", "-p", "hookscope_course.strict", "--nbval"],
        *options,
        folder=folder,
    )
    found: dict[str, list[str]] = {"": [done.stdout + done.stderr]}
    for name, word in re.findall(r"(\w+)(?:::|\.)ipynb::Cell \d+ (\w+)", done.stdout.partition("= FAILURES")[0]):
        found.setdefault(name, []).append(word)
    return found


PLOT = "import matplotlib.pyplot as plt, random\nplt.plot([1, random.random()]); plt.show()"
WARNS = "import sys\nprint('look out', file=sys.stderr)"


@pytest.mark.slow
def test_what_was_run_and_saved_passes_with_every_marker_of_nbval(tmp_path: Path) -> None:
    tagged = new_code_cell("1 / 0", metadata={"tags": ["nbval-raises-exception"]})
    of_jupyter = new_code_cell("[][0]", metadata={"tags": ["raises-exception"]})
    ignored = new_code_cell(PLOT, metadata={"tags": ["nbval-ignore-output"]})
    write(tmp_path / "empty.ipynb", "1 + 1", "", "2", "  \n", "# only a comment", "3")
    write(
        tmp_path / "marked.ipynb",
        "# NBVAL_SKIP\n1 / 0",
        "# NBVAL_RAISES_EXCEPTION\n1 / 0",
        tagged,
        of_jupyter,
        f"# NBVAL_IGNORE_OUTPUT\n{PLOT}",
        f"# PYTEST_VALIDATE_IGNORE_OUTPUT\n{WARNS}",
        ignored,
        "plt.plot([1, 2]); plt.show()",
    )
    names = ["empty.ipynb", "marked.ipynb"]
    done = run("hookscope_course.strict", *names, folder=tmp_path)
    assert done.stdout == "empty.ipynb: executed and saved\nmarked.ipynb: executed and saved\n", done.stderr
    saved = nbformat.read(tmp_path / "marked.ipynb", 4).cells
    kept = [{}, {}, *(dict(cell.metadata) for cell in (tagged, of_jupyter)), {}, {}, dict(ignored.metadata), {}]
    assert [dict(cell.metadata) for cell in saved] == kept
    assert saved[0].execution_count is None
    found = verdicts(tmp_path)
    assert found["empty"] == ["PASSED"] * 6, found[""]
    assert found["marked"] == ["SKIPPED"] + ["PASSED"] * 7, found[""]


@pytest.mark.slow
def test_kernels_of_several_test_processes_draw_as_one_alone(tmp_path: Path) -> None:
    write(
        tmp_path / "draws.ipynb", "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()", "plt.get_backend()"
    )
    assert run("hookscope_course.strict", "draws.ipynb", folder=tmp_path).returncode == 0
    assert any("image/png" in o.get("data", {}) for o in nbformat.read(tmp_path / "draws.ipynb", 4).cells[0].outputs)
    done = run(
        *[
            "pytest",
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-p",
            "no:cacheprovider",
            "-p",
            "hookscope_course.strict",
            "--nbval",
        ],
        folder=tmp_path,
    )
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_nothing_is_milder_than_nbval_unless_asked_for(tmp_path: Path) -> None:
    def cell(now: str, saved: str) -> Any:
        return new_code_cell(
            f"print({now!r})", execution_count=1, outputs=[new_output("stream", name="stdout", text=saved)]
        )

    pairs = {
        "digits": ("12.51\n", "12.50\n"),
        "share": ("100.00%\n", "99.99%\n"),
        "small": ("1.001e-05\n", "1.000e-05\n"),
    }
    for name, (now, saved) in pairs.items():
        write(tmp_path / f"{name}.ipynb", cell(now.strip(), saved))
    assert {name: verdicts(tmp_path)[name] for name in pairs} == {name: ["FAILED"] for name in pairs}
    assert verdicts(tmp_path, "--last-digits")["small"] == ["PASSED"]


def test_an_error_shows_the_cell_and_why(tmp_path: Path) -> None:
    stale = new_code_cell("a_long_name = 1", execution_count=7)
    write(tmp_path / "stale.ipynb", "", stale)  # an empty cell has no count
    said = verdicts(tmp_path)[""][0]
    assert "saved execution count is 7, expected 1: the notebook was not run from top to bottom" in said
    assert "a_long_name = 1" in said
    assert "pytest plugin exception" not in said


@pytest.mark.slow
def test_a_foreign_kernel_or_an_invalid_notebook_is_one_line_and_the_next_one_runs(tmp_path: Path) -> None:
    write(
        tmp_path / "foreign.ipynb",
        "1",
        metadata={"kernelspec": {"name": "my-env", "display_name": "x", "language": "python"}},
    )
    (tmp_path / "broken.ipynb").write_text("{")
    (tmp_path / "invalid.ipynb").write_text(
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "cod"}]}'
    )
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [], "metadata": {}}]}
    (tmp_path / "old.ipynb").write_text(json.dumps(old))
    write(tmp_path / "hangs.ipynb", "import time; time.sleep(10**6)")
    write(tmp_path / "warns.ipynb", "1", "\n# say it\n" + WARNS)
    write(tmp_path / "fine.ipynb", "1")
    names = [f"{name}.ipynb" for name in ("foreign", "broken", "invalid", "old", "missing", "warns", "fine")]
    done = run("hookscope_course.strict", *names, folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "fine.ipynb: executed and saved\n"
    said = dict(re.findall(r"(\w+\.ipynb) was not changed: (.*)", done.stderr))
    assert "needs the kernel 'my-env', which is not installed here. Add --current-env" in said["foreign.ipynb"]
    assert "not a valid notebook" in said["broken.ipynb"]
    assert "not a valid notebook" in said["invalid.ipynb"]
    assert "nbformat 3" in said["old.ipynb"]
    assert json.loads((tmp_path / "old.ipynb").read_text()) == old
    assert "cannot be read: No such file" in said["missing.ipynb"]
    assert "code cell 1, '# say it', wrote to stderr" in said["warns.ipynb"]
    assert "Traceback" not in done.stderr
    done = run("hookscope_course.strict", "--timeout", "1", "hangs.ipynb", folder=tmp_path)
    assert "longer than 1 seconds. Allow more time, as in --timeout 10" in done.stderr
    for path in ("old", "hangs", "warns", "invalid"):
        (tmp_path / f"{path}.ipynb").unlink()
    said = verdicts(tmp_path)[""][0]
    assert "foreign.ipynb needs the kernel 'my-env'" in said
    assert "broken.ipynb is not a valid notebook" in said
    (tmp_path / "broken.ipynb").unlink()
    assert run("hookscope_course.strict", "--current-env", "foreign.ipynb", folder=tmp_path).returncode == 0
    assert verdicts(tmp_path, "--nbval-current-env")["foreign"] == ["PASSED"]


@pytest.mark.slow
def test_the_commands_of_the_docs_find_a_cell_that_depends_on_threads_or_on_the_processor(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/strict.md").read_text(encoding="utf-8"), re.DOTALL)
    older = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # else there is nothing to leave out
    of_torch = "import torch; torch.get_num_threads()", "torch.backends.cpu.get_cpu_capability()"
    write(tmp_path / "my_notebook.ipynb", "1", *of_torch)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    mine = {name: value for name, value in os.environ.items() if name not in {"JUPYTER_PATH", "OMP_NUM_THREADS"}}

    def shell(command: str) -> str:
        settings: dict[str, Any] = {"cwd": tmp_path, "env": mine | {"PATH": path}, "text": True, "check": False}
        return subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings).stdout

    said = [shell(line) for line in "".join(blocks).splitlines()]
    named = [re.findall(r"^FAILED my_notebook.ipynb::(Cell \d)", each, re.MULTILINE) for each in said]
    assert named == [[], [], [], ["Cell 1"], ["Cell 2"] * older], "\n".join(said)
    assert "executed and saved" in said[0]
    assert "3 passed" in said[1]


# --- figures


def png(draw: Callable[[Any], object], dpi: int = 100) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(dpi=dpi)
    draw(figure.subplots())
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def pixels(figure: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(figure)).convert("RGB"))


def saved(image: Any, kind: str = "png", **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image.astype(np.uint8))).save(file, kind, **options)
    return file.getvalue()


POINTS = np.random.RandomState(0).rand(50, 2)
MOVED = np.where(np.arange(50)[:, None] < 5, 1 - POINTS, POINTS)
CELLS = np.random.RandomState(1).rand(10, 10)
X = np.linspace(0, 6, 50)


def scatter(points: Any, ax: Any) -> None:
    ax.scatter(*points.T)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def cells(corner: float, ax: Any) -> None:
    values = CELLS.copy()
    values[0, 0] = corner
    ax.imshow(values, cmap="gray", vmin=0, vmax=1)


CHANGED: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "title": (lambda ax: ax.set_title("accuracy 0.91"), lambda ax: ax.set_title("accuracy 0.19")),
    "a digit": (lambda ax: ax.set_title("loss 0.38"), lambda ax: ax.set_title("loss 0.33")),
    "a small digit": (lambda ax: ax.text(0, 0, "0.05", size=8), lambda ax: ax.text(0, 0, "0.06", size=8)),
    "a sign": (lambda ax: ax.text(0, 0, "-0.5"), lambda ax: ax.text(0, 0, "+0.5")),
    "names of bars": (lambda ax: ax.bar(list("abc"), [3, 2, 1]), lambda ax: ax.bar(list("bac"), [3, 2, 1])),
    "a bar": (lambda ax: ax.bar(list("abc"), [3, 2, 1]), lambda ax: ax.bar(list("abc"), [3, 2.1, 1])),
    "an axis": (lambda ax: ax.plot([0, 10], [0, 1]), lambda ax: ax.plot([0, 20], [0, 1])),
    "5 of 50 points": (partial(scatter, POINTS), partial(scatter, MOVED)),
    "1 of 100 cells": (partial(cells, 0), partial(cells, 1)),
    "a paler cell": (partial(cells, 0.4), partial(cells, 0.6)),
    "a curve": (lambda ax: ax.plot(X, np.sin(X)), lambda ax: ax.plot(X, np.cos(X))),
    "a thin curve": (lambda ax: ax.plot(X, np.sin(X), lw=0.5), lambda ax: ax.plot(X, 1.02 * np.sin(X), lw=0.5)),
    "a color": (lambda ax: ax.plot(X, X, "C0"), lambda ax: ax.plot(X, X, "C1")),
}


@pytest.mark.parametrize("dpi", [72, 100])
@pytest.mark.parametrize("name", CHANGED)
def test_a_figure_that_shows_something_else_is_another(name: str, dpi: int) -> None:
    one, other = (png(draw, dpi) for draw in CHANGED[name])
    assert describe_difference(one, other)
    assert describe_difference(*(saved(Image.fromarray(pixels(each)), "jpeg", quality=95) for each in (one, other)))


def everything(ax: Any) -> None:
    ax.plot(X, np.sin(X), label="a line")
    ax.imshow(CELLS, extent=(0, 3, -1, 0), aspect="auto")
    ax.set(title="accuracy 0.91, loss 0.38", xlabel="epoch")
    ax.legend()
    ax.grid(True)


SAME: dict[str, Callable[[Image.Image], bytes]] = {
    "the same": saved,
    "with an alpha channel": lambda image: saved(image.convert("RGBA")),
    "as JPEG": lambda image: saved(image, "jpeg", quality=90),
    "as a coarser JPEG": lambda image: saved(image, "jpeg", quality=85),
    "as WebP": lambda image: saved(image, "webp", quality=90),
    "as lossless WebP": lambda image: saved(image, "webp", lossless=True),
    "edges 0.4 pixels softer": lambda image: saved(image.filter(ImageFilter.GaussianBlur(0.4))),
    "edges 0.6 pixels softer": lambda image: saved(image.filter(ImageFilter.GaussianBlur(0.6))),
    "a third of a pixel to the right": lambda image: saved(_shifted(image, 0.3)),
    "half a pixel to the right": lambda image: saved(_shifted(image, 0.5)),
    "10 shades darker": lambda image: saved(np.clip(np.asarray(image).astype(int) - 10, 0, 255)),
}


def _shifted(image: Image.Image, by: float) -> Any:
    values = np.asarray(image).astype(float)
    return (1 - by) * values + by * np.roll(values, 1, axis=1)


@pytest.mark.parametrize("dpi", [72, 100])
@pytest.mark.parametrize("name", SAME)
def test_the_same_figure_drawn_by_another_library_is_the_same(name: str, dpi: int) -> None:
    one = png(everything, dpi)
    assert describe_difference(one, SAME[name](Image.open(io.BytesIO(one)).convert("RGB"))) == ""


def test_a_figure_that_is_paler_all_over_or_black_or_larger_is_another() -> None:
    one = png(everything)
    assert describe_difference(one, saved(np.clip(pixels(one).astype(int) - 22, 0, 255)))
    assert describe_difference(saved(np.zeros((40, 40, 3)), "jpeg"), saved(np.full((40, 40, 3), 255), "jpeg"))
    assert describe_difference(saved(np.zeros((5, 5, 3))), saved(np.full((5, 5, 3), 255)))
    assert "40×40 pixels became 41×40" in describe_difference(
        saved(np.zeros((40, 40, 3))), saved(np.zeros((40, 41, 3)))
    )


def test_svgs_of_matplotlib_differ_by_what_they_show_alone() -> None:
    from matplotlib.figure import Figure

    def svg(height: int) -> str:
        figure = Figure()
        figure.subplots().plot([0, height], marker="o")
        file = io.StringIO()
        figure.savefig(file, format="svg")
        return file.getvalue()

    one, same, other = svg(1), svg(1), svg(2)
    assert one != same
    assert replace_random_ids(one) == replace_random_ids(same)
    assert replace_random_ids(one) != replace_random_ids(other)
