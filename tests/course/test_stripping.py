"""A notebook that is stripped keeps the text of its cells, and nothing that runs when it is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

from hookscope_course.__main__ import main
from hookscope_course.classroom.stripping import NotebookError, strip, strip_file

ESM = "export default { render() { window.__taken = true } }"
MODEL = {"model_module": "anywidget", "model_name": "AnyModel", "state": {"_esm": ESM, "_anywidget_id": "a.A"}}


def hostile() -> dict[str, Any]:
    """A notebook with all that runs, or leads elsewhere, when it is opened or saved."""
    of_nbgrader = {"grade_id": "q1-answer", "solution": True, "points": 1, "schema_version": 3, "extra": [ESM]}
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m1"}, "text/html": f"<script>{ESM}</script>"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"m1": MODEL}}},
            "kernelspec": {"name": "bash", "display_name": "Python 3"},
            "jupytext": {"formats": "ipynb,../../.bashrc"},
        },
        "cells": [
            {
                "cell_type": "code",
                "id": "a",
                "source": ["x = 1\n", "x"],
                "metadata": {"nbgrader": of_nbgrader, "tags": [ESM], "widgets": MODEL},
                "outputs": [{"output_type": "display_data", "data": view, "metadata": {}}],
                "execution_count": 7,
            },
            {
                "cell_type": "markdown",
                "source": "Look",
                "metadata": {},
                "attachments": {"a.svg": {"image/svg+xml": ESM}},
            },
        ],
    }


def test_only_the_cells_and_what_nbgrader_needs_are_kept() -> None:
    given = hostile()
    kept = strip(given)
    nbformat.validate(kept)
    assert given == hostile()
    assert ESM not in json.dumps(kept)
    assert kept["metadata"] == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    }
    code, text = kept["cells"]
    assert (code["source"], code["outputs"], code["execution_count"]) == ("x = 1\nx", [], None)
    assert code["metadata"] == {
        "nbgrader": {"grade_id": "q1-answer", "points": 1, "schema_version": 3, "solution": True}
    }
    assert text == {"cell_type": "markdown", "id": "cell-1", "metadata": {}, "source": "Look"}
    assert strip(kept) == kept


def test_the_command_writes_a_copy_and_never_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "mine.ipynb"
    text = json.dumps(hostile())
    page.write_text(text)
    assert main(["strip", str(page)]) == 0
    made = tmp_path / "mine.stripped.ipynb"
    assert capsys.readouterr().out == f"{made}\n"
    assert page.read_text() == text
    assert json.loads(made.read_text()) == strip(hostile())
    made.write_text("changed")
    assert main(["strip", str(page), str(tmp_path / "gone.ipynb")]) == 1
    said = capsys.readouterr().err
    assert f"{made}: File exists" in said
    assert "gone.ipynb cannot be read (No such file or directory)" in said
    assert made.read_text() == "changed"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is not JSON"),
        ("[" * 200_000, "it is not JSON"),
        ("\udcff", "it is not JSON"),
        ("[]", "it is not a notebook of format 4"),
        ('{"nbformat": 3, "worksheets": []}', "it is not a notebook of format 4"),
        ('{"nbformat": 4, "cells": {}}', "it has no list of cells"),
        ('{"nbformat": 4, "cells": [{"cell_type": "widget"}]}', "its cell 1 is neither code nor text"),
        ('{"nbformat": 4, "cells": [{"cell_type": ["code"]}]}', "its cell 1 is neither code nor text"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": [1]}]}', "its cell 1 has no text"),
    ],
)
def test_what_is_no_notebook_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    page = tmp_path / "page.ipynb"
    page.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(NotebookError, match=f"{page} .*{complaint}"):
        strip_file(page)
    assert [*tmp_path.iterdir()] == [page]


def test_half_of_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    page = tmp_path / "page.ipynb"
    page.write_text(r'{"nbformat": 4, "cells": [{"cell_type": "raw", "source": "a \udcff b \ud83d\ude00"}]}')
    assert json.loads(strip_file(page).read_text(encoding="utf-8"))["cells"][0]["source"] == "a ? b 😀"


def test_what_cannot_be_written_as_json_is_not_kept_of_nbgrader(tmp_path: Path) -> None:
    page = tmp_path / "page.ipynb"
    known = r'{"checksum": "\ud800", "points": NaN, "grade_id": "q1"}'
    page.write_text('{"nbformat": 4, "cells": [{"cell_type": "raw", "metadata": {"nbgrader": ' + known + "}}]}")
    cell = json.loads(strip_file(page).read_text(encoding="utf-8"), parse_constant=pytest.fail)["cells"][0]
    assert cell["metadata"]["nbgrader"] == {"checksum": "?", "grade_id": "q1"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_no_link_is_followed_and_no_fifo_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "other.ipynb").write_text(json.dumps(hostile()))
    link, fifo = tmp_path / "link.ipynb", tmp_path / "fifo.ipynb"
    link.symlink_to(tmp_path / "other.ipynb")
    os.mkfifo(fifo)
    with pytest.raises(NotebookError, match="A link is not followed"):
        strip_file(link)
    with pytest.raises(NotebookError, match="is not a regular file"):
        strip_file(fifo)
