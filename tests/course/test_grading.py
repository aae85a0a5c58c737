"""Exercises graded with the real nbgrader: each submission gets what it deserves, and nothing is given away."""

from __future__ import annotations

import csv
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbgrader.preprocessors import ClearHiddenTests
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookscope_course.grading import assignments as grading
from hookscope_course.grading import judge, judge_protocol
from hookscope_course.grading.assignments import POINTS, grade, main, make_assignment, write_course
from hookscope_course.grading.judge import Starters, judge_answers
from hookscope_course.grading.sandbox import Sandbox, SandboxError
from hookscope_course.lessons import folder_of
from hookscope_course.paths import LESSONS, NOTEBOOKS
from hookscope_course.practice.exercise_parser import ExerciseText, read_exercises
from lessons.build import lesson_source
from tests.shared import PATIENCE

NUMBERS = [int(lesson_source.name_of(path)[:2]) for path in lesson_source.chapter_files()]
TEXTS = {text.name: text for text in read_exercises(folder_of(2) / "exercises.md")}
RIGHT = {name: text.solution for name, text in TEXTS.items()}
WRONG = {name: text.wrong[1][0] for name, text in TEXTS.items()}
PATCH = """
from hookscope_course.practice import Exercise
Exercise.check = lambda self, *answers: None
"""
CHECK = """
from importlib import import_module
checks = import_module("hookscope_course.lessons.02_call_order.checks_02")
checks.check_{0} = lambda *answers: None
"""
CODE = """
from importlib import import_module
checks = import_module("hookscope_course.lessons.02_call_order.checks_02")
checks.check_{0}.__code__ = (lambda *answers: None).__code__
"""
READ = """
from hookscope_course.lessons import LESSONS
(LESSONS / "02_call_order" / "exercises.md").read_text()
"""
CALL = """
import socket
socket.create_connection(("192.0.2.1", 80), timeout=5)
"""
IN_CALL = """
def first(layer, hook):
    torch.allclose = lambda *given, **named: True
    return layer.register_forward_hook(hook, prepend=True)

q2.check(first)
"""
IN_OBJECT = """
import sys
def first(layer, hook):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "Exercise":
                value.check = lambda *answers: None
        frame = frame.f_back
    return layer.register_forward_hook(hook, prepend=True)

q2.check(first)
"""
NEW = """
from importlib import import_module
checks = import_module("hookscope_course.lessons.02_call_order.checks_02")
class Anything:
    def __new__(cls, *given): return object.__new__(cls)
    def __eq__(self, other): return True
    __hash__ = None
checks.str = Anything
"""
FORGE = """
import os
for end in range(3, 64):
    try:
        os.write(end, b'{"seal": "", "outcome": "right", "message": ""}')
    except OSError:
        pass
os._exit(0)
"""


# -- what students get ------------------------------------------------------------------------------------------------


def for_students(chapter: int) -> nbformat.NotebookNode:
    """What generate_assignment makes of an assignment, by the two steps that take something away."""
    made = nbformat.from_dict(make_assignment(chapter))
    for step in (Starters(), ClearHiddenTests()):
        made, _ = step.preprocess(made, {})
    return made


def solutions_in(text: ExerciseText, page: str, texts: Iterable[ExerciseText] = TEXTS.values()) -> list[str]:
    """The lines that only the solution of an exercise has, and that stand in a page all the same."""
    others = "\n".join(part for one in texts for part in (one.starter, one.question, one.before))
    lines = [line.strip() for line in text.solution.splitlines() if len(line.strip()) > 12]
    return [line for line in lines if line not in others and line in page]


@pytest.mark.parametrize("chapter", NUMBERS)
def test_no_solution_and_no_hidden_test_is_in_what_students_get(chapter: int) -> None:
    made, whole = for_students(chapter), "\n".join(cell["source"] for cell in make_assignment(chapter)["cells"])
    page = "\n".join([*(cell.source for cell in made.cells), json.dumps([cell.metadata for cell in made.cells])])
    assert "BEGIN" not in page
    assert "nbgrader_config.py" not in page
    assert "nbgrader_config.py" in whole
    texts = read_exercises(folder_of(chapter) / "exercises.md")
    for text in texts:
        assert not solutions_in(text, page, texts), text.number
        (cell,) = [cell for cell in made.cells if cell.metadata.nbgrader.grade_id == f"{text.name}-answer"]
        assert cell.source == text.starter.strip()
        (test,) = [cell for cell in made.cells if cell.metadata.nbgrader.grade_id == f"{text.name}-points"]
        assert test.metadata.nbgrader.points == POINTS[text.difficulty]
        assert all(line.startswith("#") for line in test.source.strip().splitlines())


def test_a_solution_that_was_left_in_would_be_found() -> None:
    whole = "\n".join(cell["source"] for cell in make_assignment(2)["cells"])
    assert all(solutions_in(text, whole) for text in TEXTS.values())


# -- the sandbox ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sandbox() -> Sandbox:
    """The sandbox of chapter 02."""
    if shutil.which("bwrap") is None:
        if os.environ.get("HOOKSCOPE_REQUIRE_BROWSER"):
            pytest.fail("no bubblewrap on this machine, and HOOKSCOPE_REQUIRE_BROWSER is set")
        pytest.skip("no bubblewrap; on Debian: apt-get install bubblewrap")
    return judge._make_sandbox(2)


def run_in(sandbox: Sandbox, code: str) -> str:
    """What a few lines print in a sandbox; torch is not loaded for them."""
    words = [*sandbox.command(), sys.executable, "-I", "-c", TRY + code]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def works(what, *given):
    try:
        found = what(*given)
    except OSError:
        return
    if found != -1:
        print("WORKS:", what.__name__, *given)
"""
READS = """
for name in {0!r}:
    works(os.listdir if os.path.isdir(name) else open, name)
print(sorted(os.listdir({1!r})), sorted(os.listdir({2!r})), *os.listdir("/tmp"), *os.listdir("/dev/shm"))
"""


def test_of_files_an_answer_reads_python_and_its_checks_and_no_solution(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    closed = ["/etc/shadow", "/etc/passwd", "/home", "/var", "/run", "/sys", str(tmp_path), str(NOTEBOOKS),
              str(LESSONS / "02_call_order" / "exercises.md"), str(NOTEBOOKS.parent / "tests")]  # fmt: skip
    said = run_in(sandbox, READS.format(closed, str(LESSONS), str(LESSONS / "02_call_order")))
    assert said.splitlines()[-1].startswith("['02_call_order'] ['checks_02.py']")
    assert "WORKS" not in said


def test_in_a_wheel_lessons_and_notebooks_are_closed_though_they_lie_among_the_packages(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    course = tmp_path / "lib" / "hookscope_course"
    for name in ("maps.py", "lessons/02/exercises.md", "lessons/02/checks_02.py", "notebooks/02.ipynb"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).touch()
    (tmp_path / "other").symlink_to(tmp_path / "lib")
    wheel = replace(
        sandbox,
        readable=(*sandbox.readable, tmp_path / "lib", tmp_path / "other"),
        hidden=(course / "lessons", course / "notebooks"),
        shown=(course / "lessons" / "02" / "checks_02.py",),
    )
    said = run_in(wheel, f"for at, _, files in os.walk({str(tmp_path)!r}): print(*files, end=' ')")
    assert {*said.split()} == {"checks_02.py", "maps.py"}
    said = run_in(wheel, f"print(os.listdir({str(tmp_path / 'other' / 'hookscope_course' / 'lessons')!r}))")
    assert said == "[]\n"


MOUNTS = """
works(libc.mount, None, {0!r}.encode(), None, 0x1020, None)  # again, for writing
works(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None)
works(libc.unshare, 0x10020000)  # namespaces of users and mounts, in which it would be root
works(open, {0!r} + "/written", "w")
for name in ("/written", "/dev/written", "/root/written", "/proc/sys/kernel/core_pattern", "/proc/self/comm"):
    works(open, name, "a")
works(os.chmod, "/dev/null", 0o666)
print("written", file=open("/dev/null", "w"))
if os.getuid() == 0: print("root")
"""


def test_a_read_only_folder_stays_so(sandbox: Sandbox) -> None:
    assert run_in(sandbox, MOUNTS.format(str(Path(sys.prefix).resolve()))) == ""


SOCKETS = """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for name in ({0!r}, chr(0) + {0!r}):
        works(socket.socket(socket.AF_UNIX, kind).connect, name + str(int(kind)))
works(socket.create_connection, ("127.0.0.1", {1}))
works(socket.create_connection, ("192.0.2.1", 80), 5)
works(libc.shmget, 4711, 0, 0)
print(os.listdir("/proc/self/fd").__len__(), [name for name in os.listdir("/proc") if name.isdecimal()])
"""


def test_no_process_outside_is_reached_by_a_socket_by_memory_or_by_its_number(sandbox: Sandbox) -> None:
    segment = ctypes.CDLL(None).shmget(4711, 4096, 0o1666)  # made, and open to all
    assert segment >= 0
    try:
        with ExitStack() as open_:
            folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
            folder.chmod(0o755)  # what is open to all is closed to the sandbox
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for name in (f"{folder}/s", f"\0{folder}/s"):
                    end = open_.enter_context(socket.socket(socket.AF_UNIX, kind))
                    end.bind(f"{name}{int(kind)}")
                    if kind == socket.SOCK_STREAM:
                        end.listen()
                (folder / f"s{int(kind)}").chmod(0o666)
            port = open_.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            assert run_in(sandbox, SOCKETS.format(f"{folder}/s", port)) == "4 ['1', '2']\n"
    finally:
        ctypes.CDLL(None).shmctl(segment, 0, None)


FILLS = """
for folder in ("/tmp", "/dev/shm"):
    size = 0
    try:
        for n in range(80):
            size += open(f"{folder}/{n}", "wb", buffering=0).write(bytes(4 << 20))
    except OSError as error:
        print(folder, size <= 256 << 20, error.errno)
"""


def test_folders_in_memory_are_bounded(sandbox: Sandbox) -> None:
    assert run_in(sandbox, FILLS) == "/tmp True 28\n/dev/shm True 28\n"


def test_without_bubblewrap_nothing_is_judged_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=r"missing: apt install bubblewrap .* dnf install .* UNCONFINED=yes"):
        Sandbox(()).command()


def test_a_python_in_a_home_is_not_shared_with_the_home(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="must not read as a whole"):
        replace(sandbox, readable=(Path.home(),)).command()


# -- one submission -------------------------------------------------------------------------------------------------


def outcomes(cells: dict[str, str], **settings: Any) -> dict[str, tuple[str, str]]:
    """Judge a cell for each exercise of chapter 02; returns outcome and message."""
    verdicts = judge_answers(2, {name: [cell] for name, cell in cells.items()}, **settings)
    return {name: (verdict["outcome"], verdict["message"]) for name, verdict in verdicts.items()}


def of_processes(name: str) -> list[str]:
    """The processes of this machine that call themselves so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            found += [path.parent.name] if path.read_text() == f"{name}\n" else []
    return found


NAMED = """
import os, time
import ctypes
ctypes.CDLL(None).prctl(15, {0!r}.encode(), 0, 0, 0)  # its name, by which it is found from outside
"""
LEFT = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(4711)
    os._exit(0)
"""


@pytest.mark.usefixtures("sandbox")
def test_an_answer_is_judged_in_a_sandbox_and_what_it_leaves_running_ends_with_it() -> None:
    name = f"left-{os.getpid()}"
    assert outcomes({"q1": NAMED.format(name) + LEFT + RIGHT["q1"]})["q1"][0] == "right"
    assert of_processes(name) == []


def test_what_runs_in_a_sandbox_ends_when_bubblewrap_is_killed(sandbox: Sandbox) -> None:
    name = f"kill-{os.getpid()}"
    code = NAMED.format(name) + "for _ in range(3): os.fork()\nprint('x', flush=True)\ntime.sleep(4711)"
    with subprocess.Popen([*sandbox.command(), sys.executable, "-I", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(2)
        assert of_processes(name)
        process.kill()
    end = time.monotonic() + PATIENCE
    while of_processes(name) and time.monotonic() < end:
        time.sleep(0.05)
    assert of_processes(name) == []


BOMB = """
while True:
    try: os.fork()
    except OSError: pass
"""
FORKS = """
made = 0
for _ in range(400):
    try: child = os.fork()
    except OSError: break
    if child == 0: time.sleep(4711)
    made += 1
raise RuntimeError(f"at most 200 processes: {made < 200}")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_an_answer_that_forks_without_end_is_ended_and_the_next_is_judged() -> None:
    name = f"bomb-{os.getpid()}"
    start = time.monotonic()
    q1, q2, q3 = outcomes(
        {"q1": NAMED.format(name) + BOMB, "q2": NAMED.format(name) + FORKS, "q3": RIGHT["q3"]}, seconds=20
    ).values()
    assert of_processes(name) == []
    assert q1 == ("wrong", "stopped: it took longer than 20 seconds")
    assert q2 == ("wrong", "RuntimeError: at most 200 processes: True")
    assert q3[0] == "right", q3[1]
    assert time.monotonic() - start < PATIENCE


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_what_a_submission_cannot_do() -> None:
    lessons = "hookscope_course.lessons.02_call_order.checks_02"
    wanted: dict[str, list[tuple[str, str]]] = {
        "q1": [
            (PATCH + WRONG["q1"], "changed `hookscope_course.practice.exercise.Exercise.check`"),
            (READ + RIGHT["q1"], "FileNotFoundError"),
            ("from hookscope_course import exercises\nexercises(2)[0].solution()", "FileNotFoundError"),
            (CALL + RIGHT["q1"], "OSError: [Errno 101] Network is unreachable"),
            ("raise ValueError('\\udcff')", "ValueError: ?"),
        ],
        "q2": [
            (CHECK.format("q2") + WRONG["q2"], f"changed `{lessons}.check_q2`"),
            (CODE.format("q2") + WRONG["q2"], f"changed `{lessons}.check_q2`"),
            (NEW + WRONG["q2"], f"changed `{lessons}.str`"),
            (IN_CALL, "changed `torch.allclose`"),
            (IN_OBJECT, "changed `q2.check`"),
        ],
        "q3": [
            (FORGE, "ended without a verdict"),
            ("kept = bytearray(8 << 30)", "MemoryError"),
            ("open('big', 'wb').write(bytes(100 << 20))", "OSError: [Errno 27] File too large"),
            ("def broken(:", "SyntaxError"),
            ("import os\nfor end in range(3, 64):\n    try: os.write(end, bytes(9 << 20))\n    except OSError: pass",
             "ended without a verdict"),
        ],
    }  # fmt: skip
    for cells in zip(*wanted.values(), strict=True):
        found = outcomes(dict(zip(wanted, (cell for cell, _ in cells), strict=True)), seconds=PATIENCE)
        for (outcome, message), (cell, part) in zip(found.values(), cells, strict=True):
            assert outcome == "wrong", (cell, message)
            assert part in message, (cell, message)


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_what_is_honest_is_judged_by_the_answer() -> None:
    """A name that means something else by now, a cell without its last line, a blank, an exercise that is not there."""
    fake = "class Fake:\n    def check(self, *answers): return 'right'\n\nq2 = Fake()\n"
    found = outcomes({"q1": "q1.check(____)", "q2": fake + WRONG["q2"], "q4": ""})
    assert [outcome for outcome, _ in found.values()] == ["not attempted", "wrong", "wrong"]
    found = outcomes({"q1": "", "q2": RIGHT["q2"].replace("q2.check(first)", ""), "q3": TEXTS["q3"].starter})
    assert [outcome for outcome, _ in found.values()] == ["not attempted", "right", "not attempted"]


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("chapter", NUMBERS)
def test_solutions_are_right_in_a_sandbox_and_with_other_values(chapter: int) -> None:
    texts = read_exercises(folder_of(chapter) / "exercises.md")
    verdicts = judge_answers(chapter, {text.name: [text.solution] for text in texts})
    assert {name: one["message"] for name, one in verdicts.items() if one["outcome"] != "right"} == {}


@pytest.mark.slow
def test_without_a_sandbox_an_answer_is_judged_and_has_the_same_limits() -> None:
    big = "kept = bytearray(8 << 30)"
    q1, q2 = outcomes({"q1": RIGHT["q1"], "q2": big}, confined=False).values()
    assert q1[0] == "right", q1[1]
    assert q2 == ("wrong", "MemoryError: ")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda module: setattr(module, "check_q1", len), "check_q1"),
        (lambda module: setattr(module.check_q1, "__code__", (lambda: 1).__code__), "check_q1"),
        (lambda module: setattr(module, "WANTED", [2]), "WANTED"),
        (lambda module: setattr(module, "str", len), "str"),
        (lambda module: setattr(module.Given, "__eq__", len), "Given.__eq__"),
        (lambda module: delattr(module, "check_q1"), "check_q1"),
        (lambda module: None, ""),
    ],
)
def test_what_is_changed_new_or_gone_in_a_sealed_module_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], expected: str
) -> None:
    name = "hookscope_course.lessons.00_of_this_test.checks_00"
    module = ModuleType(name)
    exec("WANTED = [1]\ndef check_q1(): pass\nclass Given: pass", vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    sealed = judge_protocol._take_fingerprint()
    change(module)
    assert judge_protocol._find_change(sealed) == (f"{name}.{expected}" if expected else "")


@pytest.mark.parametrize("mode", [TorchFunctionMode, TorchDispatchMode])
def test_a_mode_of_torch_that_is_left_on_is_found(mode: type[Any]) -> None:
    sealed = judge_protocol._take_fingerprint()
    with mode():
        assert judge_protocol._find_change(sealed) == "torch.overrides"
    assert judge_protocol._find_change(sealed) == ""


@pytest.mark.parametrize(("name", "is_found"), [("__eq__", True), ("smart_apply_of_a_test", False)])
def test_a_new_method_of_torch_counts_if_it_stands_before_another(
    monkeypatch: pytest.MonkeyPatch, name: str, is_found: bool
) -> None:
    sealed = judge_protocol._take_fingerprint()
    monkeypatch.setattr(nn.Module, name, lambda self, other: True, raising=False)
    assert (judge_protocol._find_change(sealed) == f"torch.nn.modules.module.Module.{name}") is is_found


def test_a_name_that_a_package_loads_later_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from hookscope import widgets

    monkeypatch.delitem(vars(widgets), "TokenPicker", raising=False)
    sealed = judge_protocol._take_fingerprint()
    assert widgets.TokenPicker is not None
    assert judge_protocol._find_change(sealed) == ""
    monkeypatch.setitem(vars(widgets), "TokenPicker", len)
    assert judge_protocol._find_change(sealed) == "hookscope.widgets.TokenPicker"


# -- a class --------------------------------------------------------------------------------------------------------


def test_a_course_folder_is_not_overwritten_and_chapters_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for numbers, complaint in (
        (["77"], "no exercises for chapter '77'. The chapters with exercises are 00, 01"),
        ([], "name the chapters"),
    ):
        assert main(["write", *numbers, "--to", str(tmp_path / "new")]) == 1
        assert complaint in capsys.readouterr().err
    assert main(["write", "02", "--to", str(tmp_path)]) == 1
    assert "already exists. Name a new folder" in capsys.readouterr().err
    tmp_path.chmod(0o755)
    assert main(["grade", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "is not a course folder. `make nbgrader` creates one" in said
    assert f"chmod 700 {tmp_path}" in said
    assert list(tmp_path.iterdir()) == []


def hand_in(course: Path, student: str, page: str | None) -> Path:
    """Put a notebook where a student's work goes; None is a folder without one."""
    folder = course / "submitted" / student / "02_call_order"
    folder.mkdir(parents=True)
    if page is not None:
        (folder / "02_call_order.ipynb").write_text(page, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_what_cannot_be_graded_has_a_blank_and_a_reason_and_keeps_nobody_from_a_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything but nbgrader itself: the table is written after each, and its commas are quoted."""
    seen: list[str] = []

    def nbgrader(course: Path, command: str, name: str, student: str, *more: str, **settings: Any) -> None:
        table = course / "grades.csv"
        seen.append(f"{student}: {len(table.read_text().splitlines()) if table.exists() else 0}")
        with grading._open_gradebook(course) as book:
            book.update_or_create_student(student.partition("=")[2])
            book.update_or_create_submission(name, student.partition("=")[2])
        (course / "autograded" / student.partition("=")[2] / name).mkdir(parents=True)
        if "eve" in student:
            raise RuntimeError("nbgrader\nautograde: \x1b[2Jcrash, of course")

    monkeypatch.setattr(grading, "_run_nbgrader", nbgrader)
    monkeypatch.setattr(grading, "_check_own_solution", lambda name, unconfined: None)
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()")
    (tmp_path / "source" / "02_call_order").mkdir(parents=True)
    with grading._open_gradebook(tmp_path) as book:
        book.add_assignment("02_call_order")
    cells = make_assignment(2)["cells"]
    page, chapter = (
        json.dumps({"nbformat": 4, "cells": kept, "metadata": {"widgets": {}}})
        for kept in (cells, [cell for cell in cells if not cell["id"].endswith("-answer")])
    )
    hand_in(tmp_path, "cora", chapter)
    for student in ("anna", "Müller, Anna", "eve", "zoe-Mu\u0308ller"):
        hand_in(tmp_path, student, page)
    (hand_in(tmp_path, "ben", None) / "02_call_order (1).ipynb").touch()
    (hand_in(tmp_path, "dan", page) / "timestamp.txt").write_text("/dev/zero")
    (tmp_path / "submitted" / "anna" / "my_own").mkdir()
    assert main(["grade", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    with (tmp_path / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["student_id"], row["assignment"]): row for row in csv.DictReader(file)}
    assert {key[0]: row["score"] for key, row in rows.items() if key[1] == "02_call_order"} == {
        "anna": "0.0", "ben": "", "cora": "", "dan": "", "eve": "", "Müller, Anna": "", "zoe-Mu\u0308ller": "0.0",
    }  # fmt: skip
    for student, reason in (
        ("ben", "there is '02_call_order (1).ipynb'"),
        ("cora", "has no answer cell of the assignment. It may be a chapter of the course"),
        ("dan", "timestamp.txt has no time"),
        ("eve", "nbgrader autograde: \ufffd[2Jcrash, of course"),
        ("Müller, Anna", "cannot be a student's name for nbgrader. Rename the folder"),
    ):
        assert reason in rows[student, "02_call_order"]["reason"]
        assert any(
            line.startswith(student) and f"not graded: {rows[student, '02_call_order']['reason']}" in line
            for line in said
        )
    assert rows["anna", "my_own"]["reason"] == f"there is no assignment my_own in {tmp_path / 'source'}"
    assert seen == ["--student=anna: 2", "--student=eve: 6", "--student=zoe-Mu\u0308ller: 7"]
    assert (tmp_path / "submitted" / "anna" / "02_call_order" / "02_call_order.ipynb").read_text() == page
    assert "widgets" not in (tmp_path / "stripped" / "anna" / "02_call_order" / "02_call_order.ipynb").read_text()


def test_a_folder_with_a_strange_name_is_a_row_like_others(tmp_path: Path) -> None:
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()")
    hand_in(tmp_path, "anna", "")
    for name in ("01\udcff", "=1+1\x1b[31m"):
        (tmp_path / "submitted" / "anna" / name).mkdir()
    (tmp_path / "submitted" / "anna" / "long").symlink_to("x" * 300)
    rows = [*grade(tmp_path)]
    with (tmp_path / "grades.csv").open(encoding="utf-8", newline="") as file:
        assert [row["assignment"] for row in csv.DictReader(file)] == [row["assignment"] for row in rows]
    assert {row["assignment"] for row in rows} == {"01\ufffd", "'=1+1\ufffd[31m", "long", "02_call_order"}
    assert all("there is no assignment" in row["reason"] for row in rows)


@pytest.mark.parametrize("name", ["anna", "Anna Müller", "a.b_c-d@e.org", "42", "Jose\u0301"])
def test_a_folder_may_be_called_like_a_person(name: str) -> None:
    assert grading._check_student_name(name) == ""


@pytest.mark.parametrize("name", ["Müller, Anna", "*", "[a]", ".anna", "-x", "a ", "=1+1", "a\nb", "\udcff", "a/b", ""])
def test_what_nbgrader_or_a_table_reads_as_something_else_is_no_name(name: str) -> None:
    assert "Rename the folder" in grading._check_student_name(name)


def test_a_student_that_is_a_link_to_another_is_not_graded(tmp_path: Path) -> None:
    hand_in(tmp_path, "anna", "{}")
    (tmp_path / "submitted" / "ben").symlink_to("anna")
    assert grading._check_files(tmp_path / "submitted" / "anna" / "02_call_order", "02_call_order") == ""
    said = grading._check_files(tmp_path / "submitted" / "ben" / "02_call_order", "02_call_order")
    assert said == f"{tmp_path / 'submitted' / 'ben'} is a link. Only files and folders are graded"


@pytest.mark.parametrize("what", ["link", "folder that is a link", "fifo", "large", "many", "whole"])
def test_what_is_no_plain_file_or_too_large_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(grading, "_BYTES", 1000)
    monkeypatch.setattr(grading, "_FILES", 10)
    folder = tmp_path / "submitted" / "anna" / "02_call_order"
    folder.mkdir(parents=True)
    page, elsewhere = folder / "02_call_order.ipynb", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "02_call_order.ipynb").touch()
    if what == "link":
        page.symlink_to(elsewhere / "02_call_order.ipynb")
    elif what == "folder that is a link":
        folder.rmdir()
        folder.symlink_to(elsewhere)
    elif what == "fifo":
        os.mkfifo(page)
    else:
        page.write_bytes(bytes(2000 if what == "large" else 10))
        for number in range(20 if what == "many" else 0):
            (folder / f"{number}").touch()
    said = grading._check_files(folder, "02_call_order")
    wanted = {"link": f"{page} is a link", "folder that is a link": f"{folder} is a link",
              "fifo": f"{page} is not a regular file", "large": "more than 10 files or 0 MiB",
              "many": "more than 10 files", "whole": ""}  # fmt: skip
    assert said.startswith(wanted[what]) if what in ("link", "folder that is a link", "fifo") else wanted[what] in said
    assert bool(said) == (what != "whole")


def test_nothing_is_graded_where_the_own_solution_is_not_right(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = {"outcome": "wrong", "message": "no torch"}
    monkeypatch.setattr(judge, "judge_answers", lambda chapter, cells, confined: dict.fromkeys(cells, verdict))
    with pytest.raises(RuntimeError, match=r"02_call_order was not graded, .*q1: no torch"):
        grading._check_own_solution("02_call_order", unconfined=False)


def edited(release: Path, answers: dict[str, str], also: Callable[[Any], None] = lambda page: None) -> str:
    """A submission: the notebook that students get, with answers in its cells."""
    page = nbformat.read(release, as_version=4)
    for cell in page.cells:
        name, _, what = cell.metadata.nbgrader.grade_id.partition("-")
        if what == "answer" and name in answers:
            cell.source = answers[name]
    also(page)
    return nbformat.writes(page)


def edits_the_tests(page: Any) -> None:
    """Write a test that always passes, worth a hundred points, with the result that it would like to have."""
    for cell in page.cells:
        if cell.metadata.nbgrader.get("grade"):
            cell.source = "100"
            cell.metadata.nbgrader.points = 100
            cell.metadata.nbgrader.locked = False
            cell.outputs = [nbformat.v4.new_output("execute_result", data={"text/plain": "100"}, execution_count=1)]


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_a_class_is_graded_with_the_real_nbgrader(tmp_path: Path) -> None:
    course = tmp_path / "course"
    (release,) = write_course(["2"], course)
    bytes_of_it = release.read_text(encoding="utf-8")
    assert not [line for text in TEXTS.values() for line in solutions_in(text, bytes_of_it.replace('\\"', '"'))]
    assert "HIDDEN" not in bytes_of_it
    assert "starter" not in bytes_of_it
    added = nbformat.v4.new_code_cell(
        "def helper(layer, hook):\n    return layer.register_forward_hook(hook, prepend=True)"
    )

    def adds_a_cell(page: Any) -> None:
        page.cells.insert(2, added)

    uses_it = {"q2": "def first(layer, hook):\n    return helper(layer, hook)\n\nq2.check(first)"}
    submissions = {
        "half": (edited(release, {"q1": RIGHT["q1"], "q2": WRONG["q2"], "q3": RIGHT["q3"]}), 3),
        "helper": (edited(release, uses_it, adds_a_cell), 1),
        "surrogate": (
            edited(release, RIGHT | {"q1": "raise ValueError('\\udcff')"}).replace("# 1 point", "\\udcff"),
            3,
        ),
        "tests": (edited(release, WRONG, edits_the_tests), 0),
    }
    for student, (page, _) in submissions.items():
        hand_in(course, student, page)
    hand_in(course, "broken", "not a notebook")
    (course / "gradebook.db").unlink()  # lost: the assignments are made again
    rows = {row["student_id"]: row for row in grade(course)}
    trouble = rows.pop("broken")
    assert trouble["score"] == ""
    assert "is not a notebook: it is not JSON" in trouble["reason"]
    assert {student: (float(row["score"] or -1), row["reason"]) for student, row in rows.items()} == {
        student: (float(points), "") for student, (_, points) in submissions.items()
    }
    assert {float(row["max_score"]) for row in rows.values()} == {4.0}
    told = (course / "autograded" / "half" / release.stem / release.name).read_text(encoding="utf-8")
    assert "q2: wrong." in told
    for path in (course, course / "grades.csv", course / "gradebook.db", course / "autograded" / "half"):
        assert path.stat().st_mode & 0o077 == 0, path
