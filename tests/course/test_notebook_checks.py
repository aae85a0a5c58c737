"""The notebook runner itself: every way a notebook can be broken must make it fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output

from hookscope_course.kernel_settings import open_over_files
from tests.shared import PATIENCE, ROOT

PLUGIN = "hookscope_course.strict"
FIGURE = """
import io, numpy as np
from PIL import Image
from IPython.display import Image as Show
pixels = np.zeros((40, 40), dtype=np.uint8)
pixels[:{rows}] = 255
file = io.BytesIO()
Image.fromarray(pixels).save(file, "png")
{show}
"""
PNG = "Show(file.getvalue())"
IN_HTML = """
import base64
from IPython.display import HTML
HTML(f'<img alt="bar" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">')
"""
CALLBACK = """
import ipywidgets
from tests.shared import ROOT
button = ipywidgets.Button(description="go")
button.on_click(lambda _: {body})
button.click()
"""

# name -> (what was run when the notebook was saved, what it says now)
BROKEN = {
    "changed_number": ("print(2 * 3)", "print(2 * 4)"),
    "changed_by_more_than_a_last_digit": ("print('loss 0.03027')", "print('loss 0.03029')"),
    "changed_short_number": ("print('right: 0.51')", "print('right: 0.52')"),
    "changed_whole_number": ("print(10000)", "print(10001)"),
    "changed_release": ("print('torch 2.15.1001')", "print('torch 2.15.1002')"),
    "changed_figure": (FIGURE.format(rows=10, show=PNG), FIGURE.format(rows=12, show=PNG)),
    "changed_figure_in_html": (FIGURE.format(rows=10, show=IN_HTML), FIGURE.format(rows=12, show=IN_HTML)),
    "missing_figure": (FIGURE.format(rows=10, show=f"display({PNG})"), FIGURE.format(rows=10, show="")),
    "new_warning": ("None", "import warnings; warnings.warn('look out')"),
    "saved_warning": ("import warnings; warnings.warn('look out')",) * 2,
    "exception": ("None", "1 / 0"),
    "exception_in_widget_callback": (CALLBACK.format(body="None"), CALLBACK.format(body="1 / 0")),
    "unexecuted_cell": ("None", "None"),
    "kernel_dies": ("None", "import os; os._exit(1)"),
    "too_slow": ("None", "import time; time.sleep(10**6)"),
}
GOOD = {
    "same_number": ("print(2 * 3)",) * 2,
    "changed_last_digit": ("print('loss -0.03027 (0.1234)')", "print('loss -0.03028 (0.1233)')"),
    "changed_last_digit_in_html": (
        (FIGURE + "HTML('<b>0.12345</b>')").format(rows=10, show=IN_HTML),
        (FIGURE + "HTML('<b>0.12346</b>')").format(rows=10, show=IN_HTML),
    ),
    "same_figure": (FIGURE.format(rows=10, show=PNG),) * 2,
    # 1 of 1600 pixels: the eye sees the same picture
    "almost_the_same_figure": (
        FIGURE.format(rows=10, show=PNG),
        FIGURE.format(rows=10, show=PNG).replace("file =", "pixels[20, 20] = 255\nfile ="),
    ),
    "same_figure_in_html": (FIGURE.format(rows=10, show=IN_HTML),) * 2,
}


ALONE = ("too_slow", "kernel_dies")  # no other cell can run after these


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Save every cell above as it was, change its source, and let the project's own pytest run them all."""
    folder = tmp_path_factory.mktemp("notebooks")
    cases = BROKEN | GOOD
    before = new_notebook(cells=[new_code_cell(source) for source, _ in cases.values()])
    NotebookClient(before, kernel_name="python3", timeout=PATIENCE, config=open_over_files()).execute()
    notebooks: dict[str, list[str]] = {"together": []} | {name: [] for name in ALONE}
    cells: dict[str, list[nbformat.NotebookNode]] = {notebook: [] for notebook in notebooks}
    for (name, (_, now)), cell in zip(cases.items(), before.cells, strict=True):
        notebook = name if name in ALONE else "together"
        notebooks[notebook].append(name)
        cells[notebook].append(cell)
        cell.source = now
        number = len(cells[notebook])
        cell.execution_count = None if name == "unexecuted_cell" else number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
    for notebook, parts in cells.items():
        nbformat.write(new_notebook(cells=parts), folder / f"{notebook}.ipynb")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command += ["-p", PLUGIN, "-p", "no:cacheprovider", "-rA", "--color=no"]
    # Only the notebook with the cell that never ends is given little time.
    slow = folder / "too_slow.ipynb"
    runs = [
        subprocess.Popen([*command, *more], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for more in (
            ["--nbval-cell-timeout=2", str(slow)],
            [f"--nbval-cell-timeout={PATIENCE}", f"--ignore={slow}", str(folder)],
        )
    ]
    said = "".join(run.communicate(timeout=2 * PATIENCE)[0] for run in runs)
    found = {
        notebooks[notebook][int(number)]: word
        for word, notebook, number in re.findall(
            r"^(PASSED|FAILED|ERROR|XFAIL) \S*?(\w+)\.ipynb::Cell (\d+)", said, re.MULTILINE
        )
    }
    assert set(found) == set(cases), said
    return found


def test_the_project_s_own_runs_load_the_plugin(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin(PLUGIN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_notebook_fails(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == "FAILED"


@pytest.mark.parametrize("name", GOOD)
def test_a_sound_notebook_passes(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == "PASSED"


@pytest.mark.slow
def test_a_notebook_of_ones_own_is_run_saved_and_held(tmp_path: Path) -> None:
    """As the documentation of the plugin says it, outside of this repository."""
    path = tmp_path / "mine.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("print(1 + 1)")]), path)

    def hold() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "hookscope_course.strict", "--nbval", str(path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    def save() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hookscope_course.strict", str(path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "not run from top to bottom" in hold().stdout
    assert save().stdout == f"{path}: executed and saved\n"
    assert hold().returncode == 0
    kept = path.read_text()
    path.write_text(kept.replace("1 + 1", "1 / 0"))
    broken = path.read_text()
    done = save()
    assert (done.returncode, path.read_text()) == (1, broken)
    assert "ZeroDivisionError" in done.stderr
    path.write_text(kept.replace("1 + 1", "1 + 2"))
    assert hold().returncode == 1


HELD = {
    "here": ("pytest>=1", "print(2)", "FAILED"),
    "elsewhere": ("pytest<1", "print(2)", "SKIPPED"),
    "raises_elsewhere": ("pytest<1", "1 / 0", "SKIPPED"),
    "dies_elsewhere": ("pytest<1", "import os; os._exit(1)", "FAILED"),
    "not_installed": ("no_such_package>=1", "print(2)", "SKIPPED"),
    "not_to_be_read": ("pytest, newer", "print(1)", "FAILED"),
}


@pytest.mark.slow
def test_a_cell_is_held_where_it_says(tmp_path: Path) -> None:
    saved = new_output("stream", name="stdout", text="1\n")
    for name, (requirement, now, _) in HELD.items():
        cell = new_code_cell(now, execution_count=1, outputs=[saved], metadata={"holds_for": requirement})
        after = new_code_cell("print(1)", execution_count=2, outputs=[saved])
        nbformat.write(new_notebook(cells=[cell, after]), tmp_path / f"{name}.ipynb")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "hookscope_course.strict", "--nbval", str(tmp_path)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found: dict[str, list[str]] = {}
    for name, word in re.findall(r"(\w+)(?:::|\.)ipynb::Cell \d (\w+)", said.partition("= FAILURES")[0]):
        found.setdefault(name, []).append(word)
    assert found == {
        name: [verdict, "FAILED" if "_exit" in now else "PASSED"] for name, (_, now, verdict) in HELD.items()
    }
