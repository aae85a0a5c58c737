"""In a learner's kernel, the outputs below an open question wait for its answer."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from hookscope_course.kernel_settings import open_over_files
from hookscope_course.learner.copies import STATE_FOLDER
from hookscope_course.practice.output_gate import WAITING
from tests.shared import PATIENCE

ASK = 'from hookscope_course import Guess, ____\nguess = Guess({}, about="04.1")\nguess'
SHOWN = "from IPython.display import display\nprint('before')\ndisplay('shown')\nprint('after')\n'result'"


def run(folder: Path, *sources: str) -> list[list[NotebookNode]]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = NotebookClient(
        notebook,
        timeout=PATIENCE,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        config=open_over_files(),
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def texts(outputs: list[NotebookNode]) -> list[str]:
    return [output.get("text") or output.get("data", {}).get("text/plain") or output.get("ename") for output in outputs]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / STATE_FOLDER).mkdir()
    return tmp_path


def test_an_open_question_keeps_all_but_errors_progress_bars_and_its_figure(copy: Path) -> None:
    progress = "import sys\nfor part in range(3):\n    print(f'\\r{part} of 3', end='', file=sys.stderr)"
    asked, bar, shown, figure, failed, compared, why, later, other = run(
        copy,
        ASK.format("____"),
        progress,
        SHOWN,
        "print('beside the figure')\nguess.show('figure')",
        "print('seen')\n1 / 0",
        "guess.compare('list')",
        "guess.why()",
        "guess = Guess(____, about='04.2')\nprint('the same cell')",
        "from hookscope_course import exercises\nlist(map(str, exercises(4)))[:0]",
    )
    assert "Choose: Tensor, list, error" in texts(asked)[0]
    assert "2 of 3" in "".join(texts(bar))
    assert [text for text in texts(shown) if text] == [WAITING]
    assert len(shown) == 4, "a place for each output, in its order"
    assert texts(figure) == ["'figure'", WAITING], "a figure that belongs to the question does not wait"
    assert {"seen\n", "ZeroDivisionError"} <= {*texts(failed)}
    assert "replace ____ by your guess" in texts(compared)[0]
    assert texts(why) == [WAITING]
    assert texts(later) == ["the same cell\n"]
    assert texts(other) == ["[]"], "exercises are no part of a question"


def test_the_answer_shows_each_output_in_its_place_and_a_new_kernel_keeps_it(copy: Path) -> None:
    wrong = (ASK.format("'Tensor'"), SHOWN, "guess.compare('list')")
    _, shown, compared = run(copy, *wrong)
    assert "What does `forward` get, then?" in texts(compared)[0]
    assert WAITING in texts(shown)
    right = "guess = Guess('list', about='04.1')\nguess.compare('list')"
    _, shown, _, answered, after, why = run(copy, *wrong, right, SHOWN, "guess.why()")
    assert "Right, at the second try." in texts(answered)[0]
    assert texts(shown) == ["before\n", "'shown'", "after\n", "'result'"]
    assert WAITING not in texts(after)
    assert "wraps anything else in a tuple" in why[0].data["text/markdown"]


def test_outside_of_a_copy_nothing_waits(tmp_path: Path) -> None:
    asked, shown = run(tmp_path, ASK.format("____"), SHOWN)
    assert texts(shown) == ["before\n", "'shown'", "after\n", "'result'"]
    assert asked
