"""Exercises graded with the real nbgrader: each submission gets what it deserves, and nothing is given away."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.preprocessors import ClearHiddenTests

from hookscope_course.classroom import grading, judging
from hookscope_course.classroom.grading import POINTS, assignment, grade, main, write_course
from hookscope_course.classroom.judging import Starters, verdicts_on
from hookscope_course.lessons import folder_of
from hookscope_course.practice.text import ExerciseText, read_exercises
from lessons.build import reading
from tests.shared.patience import PATIENCE

NUMBERS = [int(reading.name_of(path)[:2]) for path in reading.chapter_files()]
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
    made = nbformat.from_dict(assignment(chapter))
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
    made, whole = for_students(chapter), "\n".join(cell["source"] for cell in assignment(chapter)["cells"])
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
    whole = "\n".join(cell["source"] for cell in assignment(2)["cells"])
    assert all(solutions_in(text, whole) for text in TEXTS.values())


def reachable() -> bool:
    """Whether the user that answers run as, where this is root, can run this Python."""
    try:
        judging._judge(confined=True)
    except RuntimeError:
        return False
    return True


REACHABLE = reachable()


@pytest.fixture(autouse=True)
def _as_root_where_nobody_else_can(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Where Python lies in a home of root's, as in some containers, everything but the user can be tested."""
    if not REACHABLE and "root_is_refused" not in request.node.name:
        monkeypatch.setattr(judging, "_judge", lambda confined: {})


# -- one submission -------------------------------------------------------------------------------------------------


def outcomes(cells: dict[str, str], **settings: Any) -> dict[str, tuple[str, str]]:
    """Judge a cell for each exercise of chapter 02; returns outcome and message."""
    verdicts = verdicts_on(2, {name: [cell] for name, cell in cells.items()}, **settings)
    return {name: (verdict["outcome"], verdict["message"]) for name, verdict in verdicts.items()}


def test_right_patched_and_without_network() -> None:
    q1, q2, q3 = outcomes({"q1": RIGHT["q1"], "q2": PATCH + WRONG["q2"], "q3": CALL + RIGHT["q3"]}).values()
    assert q1[0] == "right", q1[1]
    assert q2 == ("wrong", f"the submission changed `{EXERCISE}.check`, which does not belong to it: no points")
    assert q3 == ("wrong", "OSError: [Errno 101] Network is unreachable")


EXERCISE = "hookscope_course.practice.exercise.Exercise"


@pytest.mark.slow
def test_what_a_submission_cannot_reach() -> None:
    denied = "PermissionError: [Errno 13] Permission denied"
    wanted: dict[str, list[tuple[str, str]]] = {
        "q1": [
            (READ + RIGHT["q1"], denied),
            ("from pathlib import Path\nPath('/tmp/mine').touch()\n" + RIGHT["q1"], denied),
            ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + RIGHT["q1"], "PermissionError: [Errno 1]"),
            ("from hookscope_course import exercises\nexercises(2)[0].solution()", denied),
        ],
        "q2": [
            (CHECK.format("q2") + WRONG["q2"], "changed `hookscope_course.lessons.02_call_order.checks_02.check_q2`"),
            (CODE.format("q2") + WRONG["q2"], "changed `hookscope_course.lessons.02_call_order.checks_02.check_q2`"),
            (IN_CALL, "changed `torch.allclose`"),
            (FORGE, "ended without a verdict"),
        ],
        "q3": [
            ("q3.check(", "SyntaxError"),
            ("kept = bytearray(8 << 30)", "MemoryError"),
            ("open('big', 'wb').write(bytes(100 << 20))", "OSError: [Errno 27] File too large"),
            ("def broken(:", "SyntaxError"),
        ],
    }
    for cells in zip(*wanted.values(), strict=True):
        found = outcomes(dict(zip(wanted, (cell for cell, _ in cells), strict=True)), seconds=PATIENCE)
        for (outcome, message), (cell, part) in zip(found.values(), cells, strict=True):
            assert outcome == "wrong", (cell, message)
            assert part in message, (cell, message)
    # Alone, for whatever else runs would have to be done in these seconds, too.
    stopped = ("wrong", "stopped: it took longer than 2 seconds")
    assert outcomes({"q3": "while True: pass"}, seconds=2)["q3"] == stopped


LOOK = """
import os
said = [name for name in ("/dev/shm", os.getcwd()) if os.listdir(name)]
for name in ("/dev/shm/left", "left"): open(name, "wb").write(bytes(40 << 20))
raise RuntimeError(f"saw {said} as {os.getuid()}")
"""
FILL = """
for n in range(9): open(f"/dev/shm/{n}", "wb").write(bytes(60 << 20))
"""


def test_each_submission_has_empty_folders_of_its_own_bounded_and_thrown_away() -> None:
    before = {*Path("/dev/shm").iterdir()}
    q1, q2, q3 = outcomes({"q1": LOOK, "q2": LOOK, "q3": FILL}).values()
    user = 65534 if os.getuid() == 0 and REACHABLE else os.getuid()
    assert q1 == q2 == ("wrong", f"RuntimeError: saw [] as {user}")
    assert q3 == ("wrong", "OSError: [Errno 28] No space left on device")
    assert {*Path("/dev/shm").iterdir()} <= before


ASK = """
import ctypes, socket
found = []
segment = ctypes.CDLL(None).shmget(4711, 0, 0)
if segment >= 0: found.append("shared memory")
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try: socket.socket(socket.AF_UNIX, kind).connect({0!r} + str(int(kind)))
    except OSError: pass
    else: found.append(kind.name)
try: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", {0!r} + "2")
except OSError: pass
else: found.append("a pair")
for family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG):
    try: socket.socket(family, socket.SOCK_STREAM)
    except OSError as error: found += [] if error.errno == 13 else [family.name]
    else: found.append(family.name)
ring = ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(120))
if ring >= 0: found.append("a ring")
one, other = socket.socketpair()
other.sendall(b"mine")
raise RuntimeError(f"reached {{found}}, {{one.recv(4)}}")
"""


def test_no_answer_reaches_a_process_outside_by_memory_or_by_a_socket() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = f"{folder}/s"
        segment = ctypes.CDLL(None).shmget(4711, 4096, 0o1666)  # made, and open to all
        assert segment >= 0
        try:
            with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as two:
                for kind, each in ((1, one), (2, two)):
                    each.bind(f"{place}{kind}")
                    Path(f"{place}{kind}").chmod(0o666)
                one.listen()
                assert outcomes({"q1": ASK.format(place)})["q1"] == ("wrong", "RuntimeError: reached [], b'mine'")
        finally:
            ctypes.CDLL(None).shmctl(segment, 0, None)


CLOSED = """
import os
found = []
for name in ("/etc/shadow", "/etc/passwd", "/root", "/home", "/var", "/run", os.path.expanduser("~root")):
    try: os.listdir(name) if os.path.isdir(name) else open(name).read()
    except OSError: continue
    found.append(name)
raise RuntimeError(f"read {found}")
"""


def test_of_the_machines_settings_an_answer_reads_nothing_and_it_never_runs_as_root() -> None:
    assert outcomes({"q1": CLOSED})["q1"] == ("wrong", "RuntimeError: read []")


def test_in_a_wheel_lessons_and_notebooks_are_closed_though_they_lie_among_the_packages(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "site-packages"
    for name in ("torch/a.py", "hookscope_course/maps.py", "hookscope_course/lessons/02/exercises.md",
                 "hookscope_course/notebooks/02.ipynb"):  # fmt: skip
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    closed = {packages / "hookscope_course" / "lessons", packages / "hookscope_course" / "notebooks"}
    readable, seen = list[Path](), list[Path]()
    judging._open_but(tmp_path, closed, readable, seen)
    assert {*readable} == {packages / "torch", packages / "hookscope_course" / "maps.py"}
    assert {*seen} == {tmp_path, tmp_path / "lib", packages, packages / "hookscope_course"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be refused as root")
def test_where_nobody_else_can_run_python_root_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(judging.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RuntimeError, match="never judged as root"):
        verdicts_on(2, {"q1": [RIGHT["q1"]]})


@pytest.mark.slow
def test_what_is_honest_is_judged_by_the_answer() -> None:
    """A name that means something else by now, a cell without its last line, a process left running, a blank."""
    fake = "class Fake:\n    def check(self, *answers): return 'right'\n\nq2 = Fake()\n"
    left = "import subprocess\nsubprocess.Popen(['sleep', '4711'], start_new_session=True)\n"
    found = outcomes({"q1": "q1.check(____)", "q2": fake + WRONG["q2"], "q3": left + RIGHT["q3"]})
    assert [outcome for outcome, _ in found.values()] == ["not attempted", "wrong", "right"]
    assert not [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists() and b"sleep\x004711" in path.read_bytes()
    ]
    found = outcomes({"q1": "", "q2": RIGHT["q2"].replace("q2.check(first)", ""), "q3": TEXTS["q3"].starter})
    assert [outcome for outcome, _ in found.values()] == ["not attempted", "right", "not attempted"]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", NUMBERS)
def test_solutions_are_right_when_shut_in_and_with_other_values(chapter: int) -> None:
    texts = read_exercises(folder_of(chapter) / "exercises.md")
    verdicts = verdicts_on(chapter, {text.name: [text.solution] for text in texts})
    assert {name: one["message"] for name, one in verdicts.items() if one["outcome"] != "right"} == {}


SIXTEEN_DEEP = """
import sys
from pathlib import Path
from hookscope_course.classroom.confining import Limits, confine
from hookscope_course.classroom.judging import verdicts_on
for _ in range(16):  # Linux takes sixteen layers of rules about files, and no more
    confine([Path("/")], [Path("/")], Limits())
for confined in (True, False):
    try:
        print(verdicts_on(2, {"q1": ["q1.check('C, E, B, D, A')"]}, confined=confined)["q1"]["outcome"])
    except RuntimeError as error:
        print(error)
"""


def test_a_process_that_cannot_be_shut_in_is_told_why() -> None:
    code = """
import threading, time
from hookscope_course.classroom.confining import Limits, confine
threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
confine([], [], Limits())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert (
        "ConfinementError: the system refuses namespaces for network, folders and memory (unshare): Invalid argument"
        in said
    )


@pytest.mark.slow
def test_where_nothing_can_be_shut_in_nothing_is_graded_unless_told() -> None:
    if not REACHABLE:
        pytest.skip("root only, and nobody else can run this Python")
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    words = [sys.executable, "-c", SIXTEEN_DEEP]
    said = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, **other)
    refused, outcome = said.stdout.splitlines() or [said.stderr, ""]
    assert refused.startswith("submissions cannot be sandboxed on this machine: the system refuses ")
    assert refused.endswith("that you can throw away: make grade UNCONFINED=yes")
    assert outcome == "right"


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


def test_a_notebook_of_another_name_is_named_and_its_score_is_blank(tmp_path: Path) -> None:
    folder = tmp_path / "submitted" / "anna" / "02_call_order"
    folder.mkdir(parents=True)
    (folder / "02_call_order (1).ipynb").touch()
    said = grading._other_notebook(folder, "02_call_order")
    assert said == f"there is no 02_call_order.ipynb in {folder}; there is '02_call_order (1).ipynb'"
    file = tmp_path / "grades.csv"
    file.write_text("assignment,student_id,raw_score,score,max_score\n02,anna,0.0,0.0,4.0\n02,ben,3.0,3.0,4.0\n")
    grading._blank_where_not_graded(file, {"02": {"anna": said}})
    assert file.read_text().splitlines()[1:] == ["02,anna,,,4.0", "02,ben,3.0,3.0,4.0"]


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
    said = grading._unfit(folder, "02_call_order")
    wanted = {"link": f"{page} is a link", "folder that is a link": f"{folder} is a link",
              "fifo": f"{page} is not a regular file", "large": "more than 10 files or 0 MiB",
              "many": "more than 10 files", "whole": ""}  # fmt: skip
    assert said.startswith(wanted[what]) if what in ("link", "folder that is a link", "fifo") else wanted[what] in said
    assert bool(said) == (what != "whole")


def test_nothing_is_graded_where_the_own_solution_is_not_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope_course.classroom.judging._readable", lambda chapter: ([], []))
    with pytest.raises(RuntimeError, match=r"02_call_order was not graded|judging chapter 02 failed"):
        grading._own_solution("02_call_order", unconfined=False)


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
def test_a_class_is_graded_with_the_real_nbgrader(tmp_path: Path) -> None:
    if not REACHABLE:
        pytest.skip("root only, and nobody else can run this Python")
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
        "right": (edited(release, RIGHT), 4),
        "wrong": (edited(release, WRONG), 0),
        "half": (edited(release, {"q1": RIGHT["q1"], "q2": WRONG["q2"], "q3": RIGHT["q3"]}), 3),
        "blank": (edited(release, {}), 0),
        "crash": (edited(release, RIGHT | {"q1": "1 / 0"}), 3),
        "helper": (edited(release, uses_it, adds_a_cell), 1),
        "patches": (edited(release, {name: PATCH + cell for name, cell in WRONG.items()}), 0),
        "checks": (edited(release, {name: CHECK.format(name) + cell for name, cell in WRONG.items()}), 0),
        "tests": (edited(release, WRONG, edits_the_tests), 0),
        "reads": (edited(release, {name: READ + cell for name, cell in RIGHT.items()}), 0),
        "calls": (edited(release, {name: CALL + cell for name, cell in RIGHT.items()}), 0),
    }
    for student, (page, _) in submissions.items():
        place = course / "submitted" / student / release.stem / release.name
        place.parent.mkdir(parents=True)
        place.write_text(page, encoding="utf-8")
    broken = course / "submitted" / "broken" / release.stem / release.name
    broken.parent.mkdir(parents=True)
    broken.write_text("not a notebook", encoding="utf-8")
    rows = {row["student_id"]: row for row in grade(course)}
    trouble = rows.pop("broken")
    assert trouble["score"] == ""
    assert "nbgrader autograde" in trouble["trouble"]
    assert {student: float(row["score"]) for student, row in rows.items()} == {
        student: float(points) for student, (_, points) in submissions.items()
    }
    assert {float(row["max_score"]) for row in rows.values()} == {4.0}
    told = (course / "autograded" / "half" / release.stem / release.name).read_text(encoding="utf-8")
    assert "q2: wrong." in told
    for path in (course, course / "grades.csv", course / "gradebook.db", course / "autograded" / "half"):
        assert path.stat().st_mode & 0o077 == 0, path
