"""`make check` chooses what git says has changed, nearest first, keeps to its time, and says what it left out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.test_repository import tracked_files
from tests.shared import ROOT
from tools import changed_tests, check


class Checkout:
    """A git repository with the files of this one, and a plan for what was changed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path in tracked_files():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")

    def change(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write("\n")

    def plan(self, *arguments: str) -> dict[str, str]:
        """What would run, with the reasons."""
        done = self.run("--plan", *arguments)
        assert done.returncode == 0, done.stderr
        return dict(re.findall(r"^  (\S+) \((.+)\)$", done.stdout, re.MULTILINE))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tools.check", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def checkout(made: Checkout) -> Checkout:
    """As committed on main, with nothing changed."""
    made.git("checkout", "--quiet", "--force", "main")
    made.git("clean", "--quiet", "--force", "-d")
    return made


def own_tests_of(room: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests/package" / room).glob("test_*.py"))]


@pytest.mark.slow
def test_nothing_changed(checkout: Checkout) -> None:
    assert checkout.plan() == {}


def test_the_tests_of_a_package_come_first_then_those_of_its_dependents(checkout: Checkout) -> None:
    checkout.change("helpers/hookscope/captures/inplace.py")
    reasons = checkout.plan()
    plan, own = list(reasons), own_tests_of("captures")
    assert len(own) > 3
    assert plan[: len(own)] == own
    assert set(own_tests_of("widgets")) | set(own_tests_of("explanations")) <= set(plan)
    others = [*own_tests_of("layers"), *own_tests_of("recordings")]  # some of them import captures themselves
    assert not [name for name in others if "depends on" in reasons.get(name, "")]
    assert not [name for name in plan if name.startswith("tests/browser/")]


def test_what_a_small_room_changes_reaches_all_above_it_nearest_first(checkout: Checkout) -> None:
    checkout.change("helpers/hookscope/pytree.py")
    plan = list(checkout.plan())
    above = [plan.index(own_tests_of(room)[0]) for room in ("captures", "explanations")]
    assert above == sorted(above)


def test_committed_not_yet_committed_and_new(checkout: Checkout) -> None:
    checkout.git("checkout", "--quiet", "-B", "branch")
    checkout.change("tests/package/layers/test_layers.py")
    checkout.commit()
    checkout.change("tests/package/pictures/test_grid.py", "tests/package/pictures/test_new.py")
    (checkout.folder / "tests/package/pictures/test_picture.py").unlink()
    changed = ["tests/package/layers/test_layers.py", "tests/package/pictures/test_grid.py"]
    changed += ["tests/package/pictures/test_new.py"]
    assert list(checkout.plan()) == changed, "a deleted file is not run"
    assert list(checkout.plan("--base", "HEAD")) == changed[1:]


def test_what_main_has_got_meanwhile_is_no_change_of_this_branch(checkout: Checkout) -> None:
    checkout.git("checkout", "--quiet", "-B", "branch")
    checkout.git("checkout", "--quiet", "main")
    checkout.change("tests/package/layers/test_layers.py")
    checkout.commit()
    checkout.git("checkout", "--quiet", "branch")
    assert checkout.plan() == {}
    checkout.git("branch", "--force", "main", "HEAD")


def test_a_chapter_is_found_by_its_folder(checkout: Checkout) -> None:
    checkout.change("lessons/07_tensor_hooks/exercises.md", "notebooks/05_feature_maps.ipynb")
    plan = checkout.plan()
    assert [*plan][:2] == ["lessons/07_tensor_hooks/facts_07.py", "notebooks/07_tensor_hooks.ipynb"]
    assert list(plan)[-1] == "notebooks/05_feature_maps.ipynb"
    assert set(changed_tests.EVERY_CHAPTER) <= set(plan)
    for name in changed_tests.EVERY_CHAPTER:
        assert (ROOT / name).is_file(), name


REACHED = {
    "lessons/build/chapter_notebook.py": ("tests/course/test_build.py", "imports lessons.build"),
    "helpers/hookscope_course/ranks/group.py": ("tests/course/test_ranks.py", "imports hookscope_course.ranks"),
    "helpers/hookscope_course/figures/gradient_playground/figure.js": (
        "tests/course/figures/test_gradient_playground.py",
        "the figure gradient_playground changed",
    ),
    "tests/shared/recording_helpers.py": (
        "tests/package/recordings/test_warnings.py",
        "imports tests.shared.recording_helpers",
    ),
    "benchmarks/speed.py": ("tests/repository/test_benchmarks.py", "imports benchmarks.speed"),
    "tools/page_blocks.py": ("tests/repository/test_architecture.py", "imports tools.page_blocks"),
    "environment.yml": ("tests/repository/test_environment.py", "speaks of environment.yml"),
    "tests/browser/test_lab.py": ("tests/browser/test_lab.py", "changed"),
    "lessons/07_tensor_hooks/lesson.md": ("lessons/07_tensor_hooks/facts_07.py", "proves sentences of the lesson"),
}


def test_whatever_is_changed_reaches_its_tests(checkout: Checkout) -> None:
    checkout.change(*REACHED)
    plan = checkout.plan()
    for changed, (reached, reason) in REACHED.items():
        assert plan.get(reached) == reason, changed


def test_a_page_reaches_the_tests_that_speak_of_it(checkout: Checkout) -> None:
    checkout.change("README.md")
    assert checkout.plan()["tests/repository/test_readme.py"] == "speaks of README.md"


def test_a_base_that_git_does_not_know(checkout: Checkout) -> None:
    done = checkout.run("--plan", "--base", "mian")
    assert done.returncode == 1
    assert "git knows no commit 'mian'" in done.stderr


RUN = """
import sys
from tools.check import run_tests
well, tally = run_tests(sys.argv[2:], float(sys.argv[1]))
print("well:", well, "failed:", sorted(tally.failed), "left:", tally.left_out(sys.argv[2:]))
"""


def run_tests(folder: Path, seconds: float, *names: str) -> str:
    """Run test files as the command does, and return the last line of what it says."""
    command = [sys.executable, "-c", RUN, str(seconds), *names]
    # Without nbval, which needs three seconds to be imported: there are no notebooks here.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "-p no:nbval"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_tests_that_fail_are_counted(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("def test_1(): pass\ndef test_2(): assert False\n")
    (tmp_path / "test_b.py").write_text("def test_3(): pass\n")
    said = run_tests(tmp_path, 100, "test_a.py", "test_b.py")
    assert said == "well: False failed: ['test_a.py::test_2'] left: []"
    assert run_tests(tmp_path, 100, "test_b.py") == "well: True failed: [] left: []"


def test_a_file_that_cannot_be_imported_is_not_well(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("import nothing_of_this_name\n")
    assert run_tests(tmp_path, 100, "test_a.py").startswith("well: False")


@pytest.mark.slow
def test_it_stops_in_time_also_in_a_long_test_and_says_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("def test_1(): pass\n")
    (tmp_path / "test_b.py").write_text("import time\ndef test_2(): time.sleep(10**6)\ndef test_3(): pass\n")
    (tmp_path / "test_c.py").write_text("import time\ndef test_4(): time.sleep(10**6)\n")
    said = run_tests(tmp_path, 7, "test_a.py", "test_b.py", "test_c.py")
    assert re.fullmatch(r"well: True failed: \[\] left: \[('test_a.py', )?'test_b.py', 'test_c.py'\]", said)


def test_the_last_lines_say_what_was_run_and_what_was_not() -> None:
    said = check.closing(["tests/a.py", "tests/b.py"], ["tests/b.py"], 7, [])
    assert "7 tests of 1 files" in said
    assert "no time for the rest: .venv/bin/python -m pytest tests/b.py" in said
    assert "for everything: make test" in said
    assert said.endswith("green as far as it went")
    assert check.closing(["tests/a.py"], [], 7, []).endswith("\ngreen")
    assert check.closing(["tests/a.py"], [], 7, ["types", "tests (2)"]).endswith("\nFAILED: types, tests (2)")
