"""After a restart, a name that is not there comes with what to do."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from hookscope_course.missing_names import RESTARTED, hint, write_startup
from tests.shared import PATIENCE

HOOK = "def keep(module, args, output):\n    seen = output\n\nseen.shape"
GUESS = "from hookscope_course import Guess\nGuess(\n    [C, E, B]\n)"


def test_a_missing_name_says_what_to_do_in_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(write_startup(tmp_path)))
    cells = [nbformat.v4.new_code_cell(source) for source in ("q1.hint()", "1 / 0", "print('on')", HOOK, GUESS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=PATIENCE, allow_errors=True, kernel_name="python3").execute()
    missing, other, after, hook, guess = (cell.outputs for cell in notebook.cells)
    error = next(output for output in missing if output.output_type == "error")
    assert error.ename == "NameError"
    (said,) = (output.text for output in missing if output.output_type == "stream")
    assert said == f"{RESTARTED}\n"
    assert [output.output_type for output in other] == ["error"]
    assert after[0].text == "on\n"
    (said,) = (output.text for output in hook if output.output_type == "stream")
    assert said.startswith("`seen` exists only inside `keep`, while it runs. Create a list before `keep`")
    (said,) = (output.text for output in guess if output.output_type == "stream")
    assert said == "`C` is not defined. If you mean text, put it in quotes: 'C'.\n"


@pytest.mark.parametrize(("name", "said"), [("true", "True"), ("none", "None"), ("block2", "Run All Above")])
def test_hints(name, said):
    assert said in hint(name)


def test_it_is_never_written_through_a_link(tmp_path):
    other, folder = tmp_path / "other", tmp_path / "ipython"
    other.mkdir()
    folder.symlink_to(other)
    start = write_startup(folder) / "profile_default" / "startup"
    assert [*other.iterdir()] == []
    (start / "hookscope.py").unlink()
    (start / "hookscope.py").symlink_to(other / "mine.py")
    (other / "mine.py").write_text("mine")
    write_startup(folder)
    assert (other / "mine.py").read_text() == "mine"
    assert "explain_missing_names" in (start / "hookscope.py").read_text()
