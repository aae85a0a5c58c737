"""What nbgrader does differently in a course folder of ours: starters for solutions, and verdicts for test cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import NbGraderException
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor
from traitlets import Bool, Integer

from hookscope_course.lessons import folder_of
from hookscope_course.places import LESSONS, NOTEBOOKS

__all__ = ["Judge", "Starters", "verdicts_on"]

_HELPERS = Path(__file__).resolve().parents[2]
_NOBODY = 65534


def verdicts_on(
    chapter: int, cells: dict[str, list[str]], *, seconds: int = 60, confined: bool = True
) -> dict[str, dict[str, str]]:
    """Judge the answers of one submission; each runs in a process of its own.

    Args:
        chapter: its number.
        cells: for each exercise, by name, the code of the cells to run, its own cell last.
        seconds: for each exercise, of time and of computing.
        confined: whether the processes have to be shut in.

    Returns:
        For each exercise an outcome ("right", "wrong", "not attempted") and the message of the check.

    Raises:
        RuntimeError: the processes cannot be sandboxed here, or judging itself failed; says what to do.

    """
    judge = _judge(confined)
    readable, seen = _readable(chapter)
    with tempfile.TemporaryDirectory(prefix="hookscope-") as scratch:
        if judge and sys.platform != "win32":
            os.chown(scratch, _NOBODY, _NOBODY)
        asked = {
            "chapter": chapter,
            "cells": cells,
            "seconds": seconds,
            "confined": confined,
            "scratch": scratch,
            "readable": [str(path) for path in readable],
            "listable": [str(path) for path in seen],
            "writable": [scratch, "/dev/shm", "/dev/null"],
            "private": [scratch, "/dev/shm"],
        }
        quiet = {"OMP_NUM_THREADS": "1", "TMPDIR": scratch, "HOME": scratch, "MPLCONFIGDIR": scratch}
        done = subprocess.run(
            [sys.executable, "-I", "-m", "hookscope_course.classroom.verdicts"],
            input=json.dumps(asked),
            cwd=scratch,
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", **quiet},
            capture_output=True,
            text=True,
            check=False,
            **judge,
        )
    if done.returncode:
        raise RuntimeError(f"judging chapter {chapter:02} failed: {done.stderr.strip()[-500:]}")
    verdicts: dict[str, dict[str, str]] = json.loads(done.stdout)
    for verdict in verdicts.values():
        if verdict["outcome"] == "cannot be sandboxed":
            raise RuntimeError(
                f"submissions cannot be sandboxed on this machine: {verdict['message']}. Grade in a container or a "
                "virtual machine that you can throw away: make grade UNCONFINED=yes"
            )
    return verdicts


def _readable(chapter: int) -> tuple[list[Path], list[Path]]:
    """What an answer needs to run: Python, the packages, the system's libraries; no lesson, no notebook.

    Returns:
        What it may read, and the folders on the way to it, of which it may see the names.

    """
    closed = {LESSONS.resolve(), NOTEBOOKS.resolve()}  # which a wheel has among the packages
    python = {sys.prefix, sys.base_prefix, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
    readable, seen = list[Path](), list[Path]()
    for folder in (*map(Path, python), _HELPERS):
        _open_but(folder.resolve(), closed, readable, seen)
    system = ("/usr", "/lib", "/lib64", "/bin", "/proc", "/sys", "/dev")
    # Of /etc, what loads libraries, tells the time and finds loopback by its name.
    settings = (f"/etc/{name}" for name in ("ld.so.cache", "localtime", "nsswitch.conf", "hosts", "host.conf"))
    modules = [Path(_HELPERS, "hookscope_course", "lessons", "__init__.py"), *folder_of(chapter).glob("checks_*.py")]
    readable += [*map(Path, (*system, *settings)), *modules]
    return readable, [*seen, folder_of(chapter).parent]  # processes of chapter 13 find their module by its name


def _open_but(folder: Path, closed: set[Path], readable: list[Path], seen: list[Path]) -> None:
    """Open a folder, or, where something in it stays closed, all the others in it."""
    if folder in closed:
        return
    if not any(folder in each.parents for each in closed):
        readable.append(folder)
        return
    seen.append(folder)
    for each in folder.iterdir():
        _open_but(each, closed, readable, seen)


def _judge(confined: bool) -> dict[str, Any]:
    """As whom answers are judged: never as root, who may read more than a student should.

    Raises:
        RuntimeError: this is root, and nobody else can run this Python.

    """
    if sys.platform == "win32" or os.getuid() != 0:
        return {}
    other: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
    with suppress(OSError):
        tries = [sys.executable, "-I", "-c", "import hookscope_course.classroom.verdicts"]
        if subprocess.run(tries, cwd="/", capture_output=True, check=False, **other).returncode == 0:
            return other
    if not confined:  # the machine is thrown away
        return {}
    raise RuntimeError(
        "submissions are never judged as root, and unprivileged users cannot run this Python. Grade as a normal user, "
        "or move the checkout to a folder that everyone can enter, such as /opt"
    )


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
    (`verdicts` says what a submission can reach), not what stands in the notebook's test cells.
    """

    timeout = Integer(60, help="Limit for one exercise: seconds of elapsed and of processor time.").tag(config=True)
    unconfined = Bool(False, help="Grade even if this machine cannot sandbox submissions.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Judge a submission, and write points and message of each exercise below its test cell."""
        chapter = int(resources["nbgrader"]["assignment"][:2])
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
            verdicts = verdicts_on(chapter, wanted, seconds=self.timeout, confined=not self.unconfined)
        except RuntimeError as error:
            raise NbGraderException(str(error)) from None
        for name, cell in tests.items():
            verdict = verdicts[name]
            points = float(cell.metadata.nbgrader["points"]) if verdict["outcome"] == "right" else 0.0
            said = f"{name}: {verdict['outcome']}. {verdict['message']}".strip()
            cell.outputs = [
                nbformat.v4.new_output("stream", name="stdout", text=f"{said}\n"),
                nbformat.v4.new_output("execute_result", data={"text/plain": str(points)}, execution_count=1),
            ]
        return nb, resources
