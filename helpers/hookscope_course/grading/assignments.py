"""Exercises as nbgrader assignments: write a course folder, and grade what comes back.

    python -m hookscope_course.grading write 02 04 --to FOLDER    # make nbgrader CHAPTERS="02 04" DEST=FOLDER
    python -m hookscope_course.grading grade FOLDER               # make grade DEST=FOLDER

The folder is nbgrader's own: `source/` holds the exercises with their solutions, `release/` is what students get,
`submitted/STUDENT/02_call_order/02_call_order.ipynb` is where their notebooks go. `stripped/` has copies of these that
are safe to open (`stripping`); only they are graded. All of nbgrader's commands work in the folder. Two of its steps
are ours (`judge`). Students get the course's starters. Points come from the course's check, which draws new values in
each run, and not from the notebook's test cells. `sandbox` and `judge_protocol` say what a submission can reach
meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from traitlets.config.loader import PyFileConfigLoader

from hookscope_course.classroom.stripping import NotebookError, strip_file
from hookscope_course.learner.copies import list_chapters
from hookscope_course.lessons import folder_of
from hookscope_course.paths import NOTEBOOKS
from hookscope_course.practice.exercise_parser import ExerciseText, read_exercises

__all__ = ["grade", "make_assignment", "write_course"]

_FILES, _BYTES, _SECONDS = 1000, 64 << 20, 120
"""Of one submission, at most: files, bytes, and seconds for each exercise (judging itself stops after 60)."""
_COLUMNS = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
            "late_submission_penalty", "score", "max_score", "reason")  # fmt: skip
"""Of grades.csv: those of `nbgrader export`, and why something was not graded."""
POINTS = {"easy": 1, "medium": 2, "hard": 3}
_CONFIG = '''"""How nbgrader works in this folder. Written by hookscope; change what you like."""

from nbgrader.preprocessors import (
    AssignLatePenalties, CheckCellMetadata, ClearHiddenTests, ClearMarkScheme, ClearOutput, ComputeChecksums,
    IgnorePattern, LimitOutput, LockCells, SaveAutoGrades, SaveCells,
)
from hookscope_course.grading.judge import Judge, Starters

c = get_config()
c.CourseDirectory.course_id = "hookscope"
c.GenerateAssignment.preprocessors = [
    LockCells, Starters, ClearOutput, CheckCellMetadata, ComputeChecksums, SaveCells, ClearHiddenTests, ClearMarkScheme,
    ComputeChecksums, CheckCellMetadata,
]
# Judge in place of Execute: a submission is never run in a kernel.
c.Autograde.autograde_preprocessors = [
    Judge, IgnorePattern, LimitOutput, SaveAutoGrades, AssignLatePenalties, CheckCellMetadata,
]
c.Judge.timeout = 60  # seconds for each exercise
'''
_TEST = """# {points} point{s}. `make grade` asks the course's own check, with values that you have not seen.
### BEGIN HIDDEN TESTS
raise RuntimeError("graded by Judge: run nbgrader in the course folder, where nbgrader_config.py names it")
### END HIDDEN TESTS"""


def make_assignment(chapter: int) -> dict[str, Any]:
    """Make the instructor's version of a chapter's exercises, as a notebook's JSON: with solutions and tests.

    Raises:
        LookupError: there is no such chapter; says which there are.

    Example:
        >>> known = [cell["metadata"]["nbgrader"] for cell in make_assignment(2)["cells"]]
        >>> {one["grade_id"]: one["points"] for one in known if one["grade"]}
        {'q1-points': 1, 'q2-points': 1, 'q3-points': 2}

    """
    texts = read_exercises(folder_of(chapter) / "exercises.md")
    names = ", ".join(text.name for text in texts) + "," * (len(texts) == 1)
    setup = _SETUP + f"{names} = exercises({chapter})"
    cells = [
        _make_cell("markdown", f"# Exercises of chapter {chapter:02}\n\n{_HOW}", "title", locked=True),
        _make_cell("code", setup, "setup", locked=True),
    ]
    for text in texts:
        cells.extend(_make_exercise_cells(text))
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


_SETUP = """import torch
import torch.nn.functional as F
from torch import nn

from hookscope_course import ____, exercises

"""
_HOW = (
    "Replace `____`, or mend the bug, and run the cell: its last line checks your answer as often as you like. Each "
    "exercise is graded by itself: by its cell, and by cells that you add above it."
)


def _make_exercise_cells(text: ExerciseText) -> Iterator[dict[str, Any]]:
    points = POINTS[text.difficulty]
    yield _make_cell("markdown", f"## {text.heading}\n\n{text.question}", f"{text.name}-question", locked=True)
    if text.before:
        yield _make_cell("code", text.before, f"{text.name}-given", locked=True)
    answer = _make_cell("code", f"### BEGIN SOLUTION\n{text.solution.strip()}\n### END SOLUTION", f"{text.name}-answer")
    answer["metadata"]["nbgrader"]["solution"] = True
    answer["metadata"]["starter"] = text.starter.strip()
    yield answer
    test = _make_cell("code", _TEST.format(points=points, s="s" * (points != 1)), f"{text.name}-points", locked=True)
    test["metadata"]["nbgrader"] |= {"grade": True, "points": points}
    yield test


def _make_cell(kind: str, source: str, name: str, locked: bool = False) -> dict[str, Any]:
    known = {"schema_version": 3, "grade_id": name, "grade": False, "solution": False, "locked": locked, "task": False}
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {"nbgrader": known}, "source": source}
    return cell | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def write_course(numbers: Iterable[str], to: Path) -> list[Path]:
    """Write a course folder with an assignment for each chapter, and let nbgrader make what students get.

    Args:
        numbers: of the chapters, e.g. "02", "04".
        to: must not be there yet: grades are never overwritten.

    Returns:
        The notebooks for students, in `release/`.

    Raises:
        LookupError: there is no such chapter; says which there are.
        FileExistsError: there is something already.
        RuntimeError: nbgrader failed, or is not installed; says what it said.

    """
    have = {path.stem[:2]: path.stem for path in list_chapters(NOTEBOOKS) if _has_exercises(path.stem)}
    wanted = [f"{int(number):02}" if number.isdecimal() else number for number in numbers]
    if missing := [number for number in wanted if number not in have]:
        raise LookupError(
            f"there are no exercises for chapter '{missing[0]}'. The chapters with exercises are {', '.join(have)}"
        )
    if not wanted:
        raise LookupError(
            f'name the chapters, as in CHAPTERS="02 04". The chapters with exercises are {", ".join(have)}'
        )
    if to.exists():
        raise FileExistsError(f"{to} already exists. Name a new folder, as in DEST=assignments")
    to.parent.mkdir(parents=True, exist_ok=True)
    import nbformat

    # All or nothing, as with a hand-out.
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        course = Path(scratch) / "course"
        course.mkdir(mode=0o700)  # solutions, and later everybody's work and grades
        (course / "nbgrader_config.py").write_text(_CONFIG, encoding="utf-8")
        for number in wanted:
            page = course / "source" / have[number] / f"{have[number]}.ipynb"
            page.parent.mkdir(parents=True)
            nbformat.write(nbformat.from_dict(make_assignment(int(number))), page)
        for number in wanted:
            _run_nbgrader(course, "generate_assignment", have[number])
        shutil.move(course, to)
    return [to / "release" / have[number] / f"{have[number]}.ipynb" for number in wanted]


def _has_exercises(name: str) -> bool:
    number = name[:2]
    return number.isdecimal() and int(number) < 90 and (folder_of(int(number)) / "exercises.md").exists()


def grade(course: Path, unconfined: bool = False) -> Iterator[dict[str, str]]:
    """Grade all that was submitted, one submission after the other.

    Each is stripped first, into `stripped/`; `submitted/` stays as it was handed in. After each,
    `grades.csv` is written.

    Args:
        course: the folder that `write_course` wrote.
        unconfined: grade without a sandbox; for a machine that can be thrown away.

    Yields:
        The row of a submission in `grades.csv`, with nbgrader's columns, among them "assignment", "student_id", "score"
        and "max_score"; where it could not be graded, there is no score, and "reason" says why.

    Raises:
        FileNotFoundError: this is not such a folder, or nothing was submitted.
        SandboxError: submissions cannot be sandboxed here; says what to do.
        RuntimeError: nbgrader is missing, or the course's own solution does not get all points.

    """
    if not (course / "nbgrader_config.py").exists():
        raise FileNotFoundError(f"{course} is not a course folder. `make nbgrader` creates one")
    found = sorted((path.name, path.parent.name) for path in course.glob("submitted/*/*") if _may_be_submission(path))
    if not found:
        raise FileNotFoundError(
            f"there are no submissions in {course / 'submitted'}. Put notebooks into STUDENT/ASSIGNMENT/"
        )
    known = {name for name, _ in found if _has_exercises(name) and (course / "source" / name).is_dir()}
    for name in sorted(known):
        _check_own_solution(name, unconfined)
        _register(course, name)
    reasons: dict[tuple[str, str], str] = {}
    for name, student in found:
        if name in known:
            reason = _grade_one(course, name, student, unconfined)
        else:
            reason = f"there is no assignment {name} in {course / 'source'}"
        if reason:
            reasons[name, student] = _make_printable(reason)
        rows = _write_table(course, reasons)
        yield rows[name, student]


def _may_be_submission(path: Path) -> bool:
    """Whether it is a folder, or something that `_check_files` gives a reason for."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True
    return stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _grade_one(course: Path, name: str, student: str, unconfined: bool) -> str:
    """Grade one submission; returns the reason why it could not be graded, empty if it was."""
    folder = course / "submitted" / student / name
    if reason := _check_student_name(student) or _check_files(folder, name):
        return reason
    copy = course / "stripped" / student / name
    command = ("autograde", name, f"--student={student}", "--force", "--CourseDirectory.submitted_directory=stripped")
    seconds = _SECONDS * (1 + len(read_exercises(folder_of(int(name[:2])) / "exercises.md")))
    try:
        shutil.rmtree(copy, ignore_errors=True)
        (course / "stripped").mkdir(mode=0o700, exist_ok=True)
        copy.mkdir(parents=True)
        strip_file(folder / f"{name}.ipynb", copy / f"{name}.ipynb")
        _check_answer_cells(copy / f"{name}.ipynb", name)
        if when := _read_timestamp(folder):
            (copy / "timestamp.txt").write_text(when, encoding="ascii")
        _run_nbgrader(course, *command, f"--Judge.unconfined={unconfined}", seconds=seconds)
    except Exception as error:  # whatever is wrong with one submission, all others are graded
        return str(error) or type(error).__name__
    return ""


def _check_answer_cells(page: Path, name: str) -> None:
    """Refuse a notebook of the course itself: it has the assignment's file name, and nbgrader would give it 0 points.

    Raises:
        NotebookError: no cell is an answer of the assignment.

    """
    answers = {f"{text.name}-answer" for text in read_exercises(folder_of(int(name[:2])) / "exercises.md")}
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    if not any(cell["metadata"].get("nbgrader", {}).get("grade_id") in answers for cell in cells):
        raise NotebookError(
            f"{name}.ipynb has no answer cell of the assignment. It may be a chapter of the course, which has the same "
            f"file name. The student should copy the answers into release/{name}/{name}.ipynb and hand in that notebook"
        )


def _read_timestamp(folder: Path) -> str:
    """Return the time of submission in nbgrader's format; empty if there is no timestamp.txt.

    Raises:
        NotebookError: something else is written there.

    """
    file = folder / "timestamp.txt"
    if not file.is_file() or not (text := file.read_bytes()[:100].decode("ascii", "replace").strip()):
        return ""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( UTC| [+-]\d{4})?", text):
        raise NotebookError(f"{file} has no time such as 2026-02-28 12:00:00 UTC")
    return text


def _check_student_name(student: str) -> str:
    """Say why the name of a student's folder cannot be used; empty if it can.

    nbgrader reads commas and stars in it as something else.
    """
    if re.fullmatch(r"\w([\w .@+-]*[\w.@+-])?", unicodedata.normalize("NFC", student)):
        return ""
    return (
        f"the folder name '{student}' cannot be a student's name for nbgrader. Rename the folder: it may have letters, "
        "digits, spaces inside and . _ - + @, as in Anna-Müller"
    )


def _make_printable(text: str) -> str:
    """Text on one line, without characters that steer a terminal or cannot be written."""
    return "".join(each if each.isprintable() else "\ufffd" for each in " ".join(text.split()))


def _open_gradebook(course: Path) -> Any:
    """Open where nbgrader keeps the grades: what its settings say, or in the folder."""
    from nbgrader.api import Gradebook

    os.environ["PATH"] = _get_program_path()
    settings = PyFileConfigLoader("nbgrader_config.py", str(course)).load_config()
    url = settings.get("CourseDirectory", {}).get("db_url", f"sqlite:///{course / 'gradebook.db'}")
    before = os.umask(0o077)  # it is created if it is lost
    try:
        return Gradebook(str(url), "hookscope")
    finally:
        os.umask(before)


def _get_program_path() -> str:
    """Where programs are: nbgrader starts alembic by its name."""
    own, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    return path if path.split(os.pathsep)[0] == own else f"{own}{os.pathsep}{path}"


def _register(course: Path, name: str) -> None:
    """Make an assignment again from its source if the gradebook does not know it, because it was lost."""
    from nbgrader.api import MissingEntry

    with _open_gradebook(course) as book:
        try:
            book.find_assignment(name)
        except MissingEntry:
            known = False
        else:
            known = True
    if not known:
        _run_nbgrader(course, "generate_assignment", name, "--force")


def _write_table(course: Path, reasons: dict[tuple[str, str], str]) -> dict[tuple[str, str], dict[str, str]]:
    """Write grades.csv; what could not be graded has no score in it: a 0 would be a grade."""
    rows = {
        key: dict.fromkeys(_COLUMNS, "") | dict(zip(("assignment", "student_id"), key, strict=True)) for key in reasons
    }
    with _open_gradebook(course) as book:
        for each in book.assignments:
            for one in each.submissions:
                key, student = (each.name, one.student.id), one.student
                if key in reasons or (course / "autograded" / student.id / each.name).is_dir():
                    who = {"last_name": student.last_name, "first_name": student.first_name, "email": student.email}
                    rows[key] = rows.get(key, {}) | _convert_to_texts({
                        "assignment": each.name, "duedate": each.duedate, "timestamp": one.timestamp,
                        "student_id": student.id, **who, "max_score": each.max_score,
                        "raw_score": one.score, "late_submission_penalty": one.late_submission_penalty,
                        "score": max(0.0, one.score - (one.late_submission_penalty or 0.0)), "reason": "",
                    })  # fmt: skip
    for key, reason in reasons.items():
        rows[key] |= {"raw_score": "", "late_submission_penalty": "", "score": "", "reason": reason}
    for row in rows.values():
        for column in ("assignment", "student_id"):
            # A spreadsheet would take a name that begins with = + - @ for a formula.
            row[column] = re.sub(r"^(?=[=+@-])", "'", _make_printable(row[column]))
    file = course / "grades.csv"
    new = file.with_suffix(".csv.new")
    new.touch(mode=0o600)
    with new.open("w", encoding="utf-8", newline="") as written:
        table = csv.DictWriter(written, _COLUMNS)
        table.writeheader()
        table.writerows(row for _, row in sorted(rows.items()))
    new.replace(file)
    return rows


def _convert_to_texts(row: dict[str, Any]) -> dict[str, str]:
    return {key: "" if value is None else str(value) for key, value in row.items()}


def _check_notebook(folder: Path, name: str) -> str:
    """Say that a notebook is not where it belongs, and which one is there; empty if it is."""
    if (folder / f"{name}.ipynb").is_file():
        return ""
    there = sorted(path.name for path in folder.glob("*.ipynb"))
    return f"there is no {name}.ipynb in {folder}" + (f"; there is {', '.join(map(repr, there))}" if there else "")


def _check_own_solution(name: str, unconfined: bool) -> None:
    """Judge the course's own solution as a submission is judged.

    Raises:
        RuntimeError: it does not get all points here, so nobody's grade would be right.

    """
    from hookscope_course.grading.judge import judge_answers

    chapter = int(name[:2])
    texts = read_exercises(folder_of(chapter) / "exercises.md")
    cells = {text.name: [part for part in (text.before, text.solution) if part] for text in texts}
    wrong = {
        exercise: verdict["message"]
        for exercise, verdict in judge_answers(chapter, cells, confined=not unconfined).items()
        if verdict["outcome"] != "right"
    }
    if wrong:
        problems = "; ".join(f"{exercise}: {message}" for exercise, message in wrong.items())
        raise RuntimeError(
            f"{name} was not graded, because on this machine the course's own solution does not get all points "
            f"({problems}). The sandbox probably blocks something that an answer needs"
        )


def _check_files(folder: Path, name: str) -> str:
    """Say why a submission is not to be opened at all; empty if it may be.

    Whoever collects it, and nbgrader, would follow a link to somebody else's work, and wait for ever at a FIFO.
    """
    if folder.parent.is_symlink():
        return f"{folder.parent} is a link. Only files and folders are graded"
    found = [folder]
    size = 0
    for path in found:
        try:
            seen = path.lstat()
            if stat.S_ISDIR(seen.st_mode):
                found.extend(sorted(path.iterdir()))
            elif not stat.S_ISREG(seen.st_mode):
                kind = "a link" if stat.S_ISLNK(seen.st_mode) else "not a regular file"
                return f"{path} is {kind}. Only files and folders are graded"
            else:
                size += seen.st_size
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if len(found) > _FILES or size > _BYTES:
            return f"{folder} has more than {_FILES} files or {_BYTES >> 20} MiB"
    return _check_notebook(folder, name)


def _run_nbgrader(course: Path, *command: str, seconds: float | None = None) -> None:
    if importlib.util.find_spec("nbgrader") is None:
        raise RuntimeError("nbgrader is not installed; `make dev` installs it")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *command],
            cwd=course,
            env=os.environ | {"PATH": _get_program_path()},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
            umask=0o077,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"nbgrader {command[0]} took longer than {seconds:g} seconds and was stopped") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "Error" in line] or [
            done.stderr[-500:]
        ]
        raise RuntimeError(f"nbgrader {command[0]}: {' '.join(errors)[-1500:]}")


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hookscope_course.grading", description="Write assignments and grade them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write", help="write exercises as nbgrader assignments")
    writes.add_argument("chapters", nargs="*", help="the chapter numbers, e.g. 02 04")
    writes.add_argument("--to", type=Path, required=True, help="the folder to create")
    grades = commands.add_parser("grade", help="grade the submissions and print the grades")
    grades.add_argument("course", type=Path, help="the folder that `write` created")
    grades.add_argument(
        "--unconfined", action="store_true", help="grade without a sandbox, on a machine that you can throw away"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "write":
            for page in write_course(options.chapters, options.to.expanduser().resolve()):
                print(page)
        else:
            if options.course.is_dir() and options.course.stat().st_mode & 0o077:
                where = options.course
                result = f"Other users can read the work and grades in {where}. To prevent this: chmod 700 {where}"
                print(result, file=sys.stderr)
            for row in grade(options.course.expanduser().resolve(), options.unconfined):
                points = f"{row['score']:>5} of {row['max_score']}"
                result = f"not graded: {row['reason']}" if row["reason"] else points
                print(f"{row['student_id']:<20} {row['assignment']:<28} {result}", flush=True)
    except (LookupError, OSError, RuntimeError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
        return 1
    return 0
