"""The wheel, which brings the package and the whole course: what is in it, and that it works away from here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import nbformat
import pytest
import websocket

import hookscope
from hookscope_course.learner.copies import list_chapters, make_edition
from hookscope_course.paths import NOTEBOOKS
from hookscope_course.practice.exercise_parser import read_exercises
from lessons.build import lesson_source
from tests.shared import PATIENCE, ROOT
from tests.shared.lab import serving

CHAPTERS = [path.stem for path in list_chapters(NOTEBOOKS)]
# What a shell that knows nothing of this checkout has, nor of the kernels that tests in several processes share.
OURS = ("PYTHON", "HOOKSCOPE", "JUPYTER")
SURROUNDINGS = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def build(kind: str, project: Path, to: Path) -> Path:
    """Build a wheel or an sdist with the installed hatchling, and no network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    subprocess.run(command, cwd=project, env=SURROUNDINGS, capture_output=True, text=True, check=True)
    (made,) = to.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


class Installed:
    """The wheel in a folder of its own, which comes before this checkout on `sys.path`."""

    def __init__(self, place: Path, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.surroundings = SURROUNDINGS | {"PYTHONPATH": str(place)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "hookscope_course", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.surroundings, capture_output=True, text=True, check=False
        )

    def said(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Installed so that nobody may write there, and used from a folder with a name that needs care."""
    top = tmp_path_factory.mktemp("away")
    place, folder = top / "site", top / "un été"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    yield Installed(place, folder)
    for path in folders:
        path.chmod(0o755)


def test_the_wheel_has_the_package_and_the_course(names: list[str]) -> None:
    for path in (ROOT / "helpers").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            stays = path.name == "promises.py" or path.is_relative_to(ROOT / "helpers" / "hookscope_course" / "grading")
            assert (path.relative_to(ROOT / "helpers").as_posix() in names) is not stays
    for name in CHAPTERS:
        assert f"hookscope_course/notebooks/{name}.ipynb" in names
    for folder in sorted((ROOT / "lessons").glob("[0-9][0-9]_*")):
        for path in (path for kind in ("*.py", "exercises.md", "guesses.toml") for path in folder.glob(kind)):
            is_test = path.name.startswith("facts_")
            assert (f"hookscope_course/lessons/{folder.name}/{path.name}" in names) is not is_test
    for name in ("hookscope/py.typed", "hookscope_course/lessons/jupyter/labconfig/page_config.json"):
        assert name in names


def test_the_wheel_has_nothing_else(names: list[str]) -> None:
    assert {name.split("/")[0] for name in names} == {
        "hookscope",
        "hookscope_course",
        f"hookscope-{hookscope.__version__}.dist-info",
    }
    left = [name for name in names if re.search(r"(lesson|teaching)\.md$|/runs/|/build/|__pycache__|\.DS_Store", name)]
    assert left == [], "the text of the lessons and the teacher's pages, with every answer, are not for learners"


def test_the_library_alone_stays_light(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert sorted(needed) == ["numpy", "pillow", "torch"]
    assert re.findall(r"^Version: (.*)", metadata, re.MULTILINE) == [hookscope.__version__]


def test_the_wheel_brings_its_licences_and_names_the_versions_of_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        brought = {Path(name).name: file.read(name) for name in file.namelist() if ".dist-info/licenses/" in name}
    assert brought == {name: (ROOT / name).read_bytes() for name in ("LICENSE", "LICENCES.md")}
    versions = re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", metadata, re.MULTILINE)
    tested = re.findall(
        r"python: (\[.+\])", (ROOT / ".github" / "workflows" / "systems.yml").read_text(encoding="utf-8")
    )
    assert [versions] == [*map(json.loads, {*tested})]


def test_the_links_of_the_description_lead_somewhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    head, _, text = metadata.partition("\n\n")
    urls = dict(re.findall(r"^Project-URL: (\w+), (.+)$", head, re.MULTILINE))
    assert {*urls} == {"Documentation", "Source", "Issues", "Changelog"}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    for link in links:
        kind, _, path = link.removeprefix(f"{urls['Source']}/").partition("/main/")
        if link.startswith(urls["Documentation"]):
            continue
        assert kind in ("blob", "raw")
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_twine_finds_no_fault(wheel: Path, sdist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert one.namelist() == other.namelist()
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []


def test_a_learners_copy_from_the_wheel_is_the_checkouts(installed: Installed) -> None:
    copy = installed.folder / "course"
    assert installed.said("course").startswith(f"Your copy of the course is ready: {len(CHAPTERS)} notebooks.\n")
    for name in CHAPTERS:
        assert (copy / f"{name}.ipynb").read_bytes() == make_edition(NOTEBOOKS / f"{name}.ipynb")
    assert installed.said("progress").startswith("0 of ")
    (copy / "03_forward_hooks.ipynb").write_text("mine")
    assert "Your work is in earlier/03_forward_hooks, 20" in installed.said("reset", "03")
    inside = subprocess.run(
        [sys.executable, "-P", "-m", "hookscope_course", "progress"],
        cwd=copy, env=installed.surroundings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert inside.stdout == installed.said("progress"), "in the copy itself, that copy is meant"


@pytest.mark.slow
def test_check_tries_everything(installed: Installed) -> None:
    said = installed.said("check")
    assert said.splitlines()[-1] == "Everything works."
    assert "a forward hook fired once, and was removed" in said
    assert f"hookscope {hookscope.__version__}" in said


def test_what_is_missing_is_said_with_the_way_out(installed: Installed, tmp_path: Path) -> None:
    """As after `pip install WHEEL`, without the extra."""
    code = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "jupyterlab" else find(name, *more)
sys.argv[1:] = ["lab"]
runpy.run_module("hookscope_course", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=installed.surroundings, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    wheel = f"hookscope-{hookscope.__version__}-py3-none-any.whl"
    assert done.stderr == (
        "JupyterLab is not installed. In a terminal, install the course's wheel with all it needs: "
        f"`pip install '{wheel}[course]'`.\n"
    )


@pytest.mark.parametrize(
    "words", [["reset", "77"], ["progress", "--to", "nowhere"], ["nonsense"], ["lab", "--to", "file"]]
)
def test_what_goes_wrong_is_a_sentence(installed: Installed, words: list[str]) -> None:
    installed.said("course")
    (installed.folder / "file").write_text("")
    done = installed.run(*words)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert len(done.stderr) > 10


@pytest.mark.slow
def test_exercises_are_checked_by_the_installed_course(installed: Installed) -> None:
    """The notebook of chapter 01, with its solutions, runs on what is installed: checks, texts, the package."""
    installed.said("course")
    page = nbformat.read(NOTEBOOKS / "01_calling_a_module.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in page.cells if cell.cell_type == "code" and "%" not in cell.source)
    script = f"import hookscope, hookscope_course\n{code}\nprint(hookscope.__file__, hookscope_course.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=installed.folder / "course", env=installed.surroundings,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].count(str(installed.place)) == 2
    assert str(ROOT) not in done.stdout
    number = len(read_exercises(lesson_source.LESSONS / "01_calling_a_module" / "exercises.md"))
    kept = json.loads((installed.folder / "course" / ".hookscope" / "progress.json").read_text())
    assert len(kept) == number


def answers(url: str, token: str, notebook: str, cells: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run cells in the kernel that a server starts for a notebook; give kind and content of what comes back."""
    access = {"Authorization": f"token {token}"}
    wanted = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
    with urlopen(Request(f"{url}/api/sessions", json.dumps(wanted).encode(), access)) as answer:
        kernel = json.load(answer)["kernel"]["id"]
    channels = f"ws{url.removeprefix('http')}/api/kernels/{kernel}/channels"
    with closing(websocket.create_connection(channels, timeout=PATIENCE, header=access)) as line:
        for number, code in enumerate(cells):
            header = {"msg_id": f"cell {number}", "msg_type": "execute_request", "session": "a", "version": "5.3"}
            content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": False}
            asked = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
            line.send(json.dumps(asked))
            missing = {"execute_reply", "idle"}
            while missing:
                said = line.recv()
                if isinstance(said, bytes):  # pixels for a widget
                    continue
                message = json.loads(said)
                if message["parent_header"].get("msg_id") == header["msg_id"]:
                    kind, content = message["header"]["msg_type"], message["content"]
                    missing -= {kind, content.get("execution_state")}
                    yield kind, content


@pytest.mark.slow
def test_two_commands_from_a_wheel_to_the_end_of_chapter_00(wheel: Path, tmp_path: Path) -> None:
    """As a person has it who has Python and the wheel, and nothing else: no checkout, no make, and a careful umask."""
    folder = tmp_path / "Eigene Dateien"
    folder.mkdir()
    python, hookscope_command = (folder / "venv" / "bin" / name for name in ("python", "hookscope"))
    os_umask = "import os, sys; os.umask(0o077); os.execv(sys.argv[1], sys.argv[1:])"

    def run(*words: str | Path) -> str:
        command = [sys.executable, "-c", os_umask, *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=SURROUNDINGS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run(sys._base_executable, "-m", "venv", folder / "venv")  # type: ignore[attr-defined]
    run(python, "-m", "pip", "install", "-q", f"{wheel}[course]")
    assert run(hookscope_command, "check").splitlines()[-1] == "Everything works."
    lab = [str(hookscope_command), "lab", "--to", str(folder / "course")]
    with serving(lab, tmp_path, SURROUNDINGS) as (url, token):
        with urlopen(f"{url}/api/contents/00_start_here.ipynb?token={token}") as answer:
            page = json.load(answer)["content"]
        assert page["metadata"]["hookscope"]["edition"] == "learner"
        with urlopen(f"{url}/lab/api/settings/@jupyterlab/apputils-extension:notification?token={token}") as answer:
            assert json.load(answer)["schema"]["properties"]["fetchNews"]["default"] == "false", "the course's own"
        cells = [cell["source"] for cell in page["cells"] if cell["cell_type"] == "code"]
        whose = "import hookscope, hookscope_course\nprint(hookscope.__file__, hookscope_course.__file__)"
        said = list(answers(url, token, "00_start_here.ipynb", [*cells, whose]))
    shutil.rmtree(folder / "venv")  # six gigabytes, which pytest would keep
    replies = [content["status"] for kind, content in said if kind == "execute_reply"]
    assert replies == ["ok"] * (len(cells) + 1), [content for kind, content in said if kind == "error"]
    printed = dict.fromkeys(("stdout", "stderr"), "")
    for kind, content in said:
        if kind == "stream":
            printed[content["name"]] += content["text"]
    assert printed["stderr"] == ""
    assert printed["stdout"].splitlines()[-1].count(str(folder / "venv")) == 2, "the wheel's, and not this checkout's"
    shown = [content["data"]["text/plain"] for kind, content in said if kind in {"execute_result", "display_data"}]
    exercises = [cell for cell in page["cells"] if "exercise" in cell["metadata"].get("tags", [])]
    assert len([text for text in shown if text.startswith("Not attempted:")]) == len(exercises) > 0
    assert shown[-1].startswith("0 hooks")
