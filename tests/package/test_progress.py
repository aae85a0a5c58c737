"""Where a progress bar is written to."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.shared import PATIENCE

# The clock of tqdm goes on by a second at each look: the bar comes after one.
SLOW = """
import itertools, tqdm.std
from hookscope.progress import progress_bar
real, tqdm.std.time = tqdm.std.time, itertools.count().__next__
with progress_bar("count", 2, "sheep", wanted=True) as advance:
    for _ in range(2):
        advance(1)
tqdm.std.time = real
"""


def test_no_red_strip_stays_in_a_notebook():
    pytest.importorskip("tqdm")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SLOW)])
    NotebookClient(notebook, timeout=PATIENCE).execute()
    outputs = notebook.cells[0].outputs
    assert {output.name for output in outputs} == {"stdout"}
    assert "count: " in outputs[0].text
    assert "sheep" in outputs[0].text


def test_elsewhere_what_a_program_prints_stays_alone(capsys):
    pytest.importorskip("tqdm")
    exec(SLOW, {})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "count: " in printed.err
