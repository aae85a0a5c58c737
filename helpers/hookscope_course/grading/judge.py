"""What nbgrader does differently in a course folder of ours: starters for solutions, and verdicts for test cells."""

from __future__ import annotations

import json
import secrets
import sys
import sysconfig
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import NbGraderException
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor
from traitlets import Bool, Integer

from hookscope_course.classroom.stripping import strip
from hookscope_course.lessons import folder_of
from hookscope_course.paths import LESSONS, NOTEBOOKS
from hookscope_course.practice.exercise_parser import ExerciseText, read_exercises

if TYPE_CHECKING:  # on Windows, assignments can be written, not graded
    from hookscope_course.grading.sandbox import Sandbox

__all__ = ["Judge", "Starters", "judge_answers"]

_HELPERS = Path(__file__).resolve().parents[2]
_JUDGE_PROTOCOL = "hookscope_course.grading.judge_protocol"
WRONG = "wrong"


def judge_answers(
    chapter: int, cells: dict[str, list[str]], *, seconds: int = 60, confined: bool = True
) -> dict[str, dict[str, str]]:
    """Judge the answers of one submission; each runs in a sandbox of its own.

    Args:
        chapter: its number.
        cells: for each exercise, by name, the code of the cells to run, its own cell last.
        seconds: for each exercise, of time and of computing.
        confined: whether to use sandboxes.

    Returns:
        For each exercise an outcome ("right", "wrong", "not attempted") and the message of the check.

    Raises:
        SandboxError: this machine cannot run the sandbox; says what to do.

    """
    sandbox = _make_sandbox(chapter) if confined else None
    texts = {text.name: text for text in read_exercises(folder_of(chapter) / "exercises.md")}
    shared = {
        "names": [*texts],
        "checks": [_get_module_name(file) for file in _list_checks(chapter)],
        "seconds": seconds,
    }
    verdicts = {}
    for name, code in cells.items():
        if name in texts:
            asked = {**shared, "text": asdict(_remove_answers(texts[name])), "cells": code}
            verdicts[name] = _ask_verdict(asked, seconds, sandbox)
        else:
            verdicts[name] = {"outcome": WRONG, "message": f"chapter {chapter:02} has no exercise of this name"}
    return verdicts


def _ask_verdict(asked: dict[str, Any], seconds: int, sandbox: Sandbox | None) -> dict[str, str]:
    """Ask for one verdict. It counts only with a seal that nobody else in the sandbox is told."""
    from hookscope_course.grading.sandbox import ask

    seal = secrets.token_hex(16)
    question = json.dumps({**asked, "seal": seal, "seed": secrets.randbelow(2**31)}).encode()
    text = ask(_JUDGE_PROTOCOL, question, seconds, sandbox)
    if text is None:
        return {"outcome": WRONG, "message": f"stopped: it took longer than {seconds} seconds"}
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        verdict = json.loads(text.partition(b"\n")[0])
        if verdict["seal"] == seal:
            # Half of a surrogate pair could not be written to a file.
            return {key: verdict[key].encode("utf-8", "replace").decode() for key in ("outcome", "message")}
    return {"outcome": WRONG, "message": "its process ended without a verdict: it ran out of memory, or ended itself"}


def _remove_answers(text: ExerciseText) -> ExerciseText:
    """Take away what an answer could copy, and keep what the check's own messages need: names, and the closing call."""
    skeleton = "\n".join([*(f"def {name}(): ..." for name in text.defines if name), text.call])
    return replace(text, solution=skeleton, hints=(), wrong=(), right=(), why="")


def _make_sandbox(chapter: int) -> Sandbox:
    """What an answer needs to run: Python, the packages and the checks of its chapter; no exercises, no notebook."""
    from hookscope_course.grading.sandbox import Sandbox

    python = {sys.prefix, sys.base_prefix, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
    packages = [_HELPERS / "hookscope", _HELPERS / "hookscope_course"]
    return Sandbox(
        readable=(*map(Path, sorted(python)), *packages),
        hidden=(LESSONS, NOTEBOOKS),  # which a wheel has among the packages
        shown=(_HELPERS / "hookscope_course" / "lessons" / "__init__.py", *_list_checks(chapter)),
    )


def _list_checks(chapter: int) -> list[Path]:
    return sorted(folder_of(chapter).glob("checks_*.py"))


def _get_module_name(file: Path) -> str:
    return f"hookscope_course.lessons.{file.parent.name}.{file.stem}"


class Starters(ClearSolutions):  # type: ignore[misc]
    """Puts the course's own starter where a solution was, in what students get."""

    def preprocess_cell(self, cell: NotebookNode, resources: Any, cell_index: int) -> tuple[NotebookNode, Any]:
        """Clear a solution as nbgrader does; then write the starter that the cell carries."""
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if "starter" in cell.metadata:
            cell.source = cell.metadata.pop("starter")
        return cell, resources


class Judge(NbGraderPreprocessor):  # type: ignore[misc]
    """Fills the test cells with points; takes the place of nbgrader's Execute: a submission never runs in a kernel.

    An exercise is judged by its own cell, and cells that the student has added above it. The course's check decides
    (`judge_protocol` says what a submission can reach), not what stands in the notebook's test cells.
    """

    timeout = Integer(60, help="Limit for one exercise: seconds of elapsed and of processor time.").tag(config=True)
    unconfined = Bool(False, help="Grade without a sandbox, on a machine that can be thrown away.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Judge a submission, and write points and message of each exercise below its test cell."""
        chapter = int(resources["nbgrader"]["assignment"][:2])
        nb = nbformat.from_dict(strip(nb))  # it was already, if `make grade` has called
        tests, cells, added = {}, dict[str, list[str]](), list[str]()
        for cell in nb.cells:
            known = cell.metadata.get("nbgrader", {})
            name, _, what = known.get("grade_id", "").rpartition("-")
            if known.get("grade"):
                tests[name] = cell
            elif known.get("solution"):
                cells[name] = [*added, cell.source]
            elif cell.cell_type == "code" and what not in ("given", "setup"):
                added.append(cell.source)
        wanted = {name: cells.get(name, []) for name in tests}
        try:
            verdicts = judge_answers(chapter, wanted, seconds=self.timeout, confined=not self.unconfined)
        except RuntimeError as error:
            raise NbGraderException(str(error)) from None
        for name, cell in tests.items():
            verdict = verdicts[name]
            points = float(cell.metadata.nbgrader["points"]) if verdict["outcome"] == "right" else 0.0
            text = f"{name}: {verdict['outcome']}. {verdict['message']}".strip()
            cell.outputs = [
                nbformat.v4.new_output("stream", name="stdout", text=f"{text}\n"),
                nbformat.v4.new_output("execute_result", data={"text/plain": str(points)}, execution_count=1),
            ]
        return nb, resources
