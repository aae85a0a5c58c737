"""The matrix of releases: what it promises, how it reads a run, and what it writes."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.shared import ROOT
from tools.matrix import __main__ as matrix
from tools.matrix import environments, report, running
from tools.matrix.running import MatrixRun, NotebookResult
from tools.page_blocks import block, table


def test_every_promised_release_is_run() -> None:
    torches = {environments.minor(torch) for torch, python in environments.PAIRS if python == "3.11"}
    newest = environments.minor(environments.NEWEST)
    assert torches == {(2, each) for each in range(environments.LIBRARY_FROM[1], newest[1] + 1)}
    assert {python for _, python in environments.PAIRS} == {"3.11", "3.12", "3.13"}
    assert doctest.testmod(environments).failed == doctest.testmod(report).failed == 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> NotebookResult:
    """A real run over a test file and a notebook that have one of each kind."""
    folder = tmp_path_factory.mktemp("matrix")
    tests = folder / "test_things.py"
    tests.write_text(
        "import pytest\n\ndef test_right(): pass\n\ndef test_wrong(): assert 1 == 2\n\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
    )
    six = new_output("stream", name="stdout", text="6\n")
    cells = [
        new_code_cell("print(6)", execution_count=1, outputs=[six]),
        new_code_cell("print(7)", execution_count=2, outputs=[six]),
        new_code_cell("print(7)", execution_count=3, outputs=[six], metadata={"holds_for": "torch<1"}),
    ]
    nbformat.write(new_notebook(cells=cells), folder / "01_one.ipynb")
    return running.run_pytest(Path(sys.executable), folder, tests, folder / "01_one.ipynb", processes=0)


def test_a_run_is_read(found: NotebookResult) -> None:
    assert (found.right, found.elsewhere) == (2, 1)
    assert {name: report.reason(said) for name, said in found.wrong.items()} == {
        "test_things::test_wrong": "assert 1 == 2",
        "01_one::Cell 1": "now 7, saved 6",
    }


def test_a_run_that_does_not_begin_is_wrong(tmp_path: Path) -> None:
    result = running.run_pytest(Path(sys.executable), tmp_path, tmp_path / "absent.py", processes=0)
    assert result.right == 0
    assert "absent.py" in result.wrong["pytest"]


def test_records_keep_one_run_of_each_pair_in_order(tmp_path: Path, found: NotebookResult) -> None:
    file = tmp_path / "records.json"
    for torch, python, chapters in (("2.10.0", "3.11.7", found), ("2.5.1", "3.11.7", None), ("2.5.0", "3.11.9", None)):
        report.store(MatrixRun(torch, "0.20.0", python, NotebookResult(3), chapters), "2026-01-31", file)
    rows = report.rows(report.read(file))
    assert [(row["torch"], row["Python"]) for row in rows] == [("2.5.0", "3.11.9"), ("2.10.0", "3.11.7")]
    assert rows[0]["cells of the chapters"] == "not promised before torch 2.8"
    assert rows[1]["cells of the chapters"] == (
        "2 right, 1 with a note about a difference, **2 wrong**: test_things::test_wrong, 01_one::Cell 1"
    )
    assert str(tmp_path) not in file.read_text()


def test_what_may_no_longer_be_true_is_the_text_below_the_cell(tmp_path: Path) -> None:
    cells = [new_code_cell("1"), new_markdown_cell("One."), new_markdown_cell("Two.\n\nThree."), new_code_cell("2")]
    nbformat.write(new_notebook(cells=[new_markdown_cell("Zero."), *cells]), tmp_path / "01_one.ipynb")
    assert report.sentences("01_one::Cell 0", tmp_path) == ["One.", "Two.", "Three."]
    assert report.sentences("01_one::Cell 1", tmp_path) == []
    assert report.sentences("test_things::test_wrong", tmp_path) == []


def test_the_readme_has_the_table_of_the_records() -> None:
    assert block(ROOT / "docs" / "compatibility.md", "matrix") == table(report.rows(report.read()))


def test_what_the_newest_pinned_torch_shows_is_what_the_table_says() -> None:
    """A record with something wrong does not stay unseen."""
    for record in report.read():
        run = MatrixRun.from_json(record["run"])
        assert not run.package.wrong, run.torch
        assert not (run.chapters and run.chapters.wrong), run.torch


@pytest.mark.slow
def test_a_release_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    before = report.RECORDS.read_text()
    assert matrix.main(["2.999"]) == 1
    assert "torch 2.999 on Python 3.11 could not be installed" in capsys.readouterr().out
    assert report.RECORDS.read_text() == before


def test_the_command_says_how_it_is_used() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tools.matrix", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search(r"--against TORCH", said.stdout)
