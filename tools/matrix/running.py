"""Run the package's tests and the chapters in one environment, and read what came of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.matrix.environments import COURSE_FROM, ROOT, minor

NOTEBOOKS = ROOT / "notebooks"
_VERSIONS = "import json, torch, torchvision, platform; print(json.dumps([torch.__version__.partition('+')[0], \
torchvision.__version__.partition('+')[0], platform.python_version()]))"


@dataclass
class NotebookResult:
    """What came of one set of tests.

    Attributes:
        right: how many passed.
        elsewhere: how many cells ran, and say that they show something else on this torch.
        wrong: for each that did not pass, what it said.

    """

    right: int = 0
    elsewhere: int = 0
    wrong: dict[str, str] = field(default_factory=dict)


@dataclass
class MatrixRun:
    """What came of one torch on one Python; the chapters are None where the course does not promise that torch."""

    torch: str
    torchvision: str
    python: str
    package: NotebookResult
    chapters: NotebookResult | None

    def as_json(self) -> dict[str, Any]:
        """Return it as it is recorded."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> MatrixRun:
        """Read what `as_json` returned."""
        chapters = record["chapters"] and NotebookResult(**record["chapters"])
        return cls(**{**record, "package": NotebookResult(**record["package"]), "chapters": chapters})


def run_all(interpreter: Path, folder: Path) -> MatrixRun:
    """Run everything that is promised for the torch of an environment."""
    _said(interpreter, "-c", "import matplotlib.pyplot")  # which says at its first time that it looks for fonts
    torch, torchvision, python = json.loads(_said(interpreter, "-c", _VERSIONS))
    package = run_pytest(interpreter, folder, ROOT / "tests" / "package")
    chapters = run_pytest(interpreter, folder, NOTEBOOKS) if minor(torch) >= COURSE_FROM else None
    return MatrixRun(torch, torchvision, python, package, chapters)


def run_pytest(interpreter: Path, folder: Path, *what: Path, processes: int = 2) -> NotebookResult:
    """Run tests or notebooks with pytest, in so many processes (0: in its own), and return what came of them."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    root = ROOT if what[0].is_relative_to(ROOT) else what[0].parent  # what names are told from
    ours = ("-c", ROOT / "pyproject.toml", "--rootdir", root, "-p", "hookscope_course.strict", "-p", "no:cacheprovider")
    words = ("-m", "pytest", "-vv", "-n", str(processes), "--dist", "loadfile", f"--junitxml={report}")
    done = _run(interpreter, *words, *ours, *what)
    result = read(report) if report.exists() else NotebookResult()
    if not (result.right or result.wrong or result.elsewhere):  # it did not even begin
        names = ", ".join(path.name for path in what)
        result.wrong["pytest"] = f"nothing of {names} was run\n{done.stderr}\n{done.stdout[-2000:]}"
    return result


def read(report: Path) -> NotebookResult:
    """Read a report of pytest: the tests that passed, and what the others said; a skipped test is neither."""
    result = NotebookResult()
    for case in ElementTree.parse(report).iter("testcase"):
        place = (case.get("classname") or "").removesuffix(".ipynb").rpartition(".")[2]
        name = f"{place}::{case.get('name')}"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            result.wrong[name] = f"{problem.get('message') or ''}\n{problem.text or ''}"
        elif case.find("skipped") is None:
            result.right += 1
        elif name.rpartition("::")[2].startswith("Cell "):
            result.elsewhere += 1
    return result


def saved_anew(interpreter: Path, folder: Path) -> Path:
    """Run copies of all notebooks in an environment and save them with what came out; return their folder."""
    copies = folder / "notebooks"
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        shutil.copy(notebook, copies)
    _run(interpreter, "-m", "hookscope_course.strict", *sorted(copies.glob("*.ipynb")))
    return copies


def _settings(interpreter: Path) -> dict[str, str]:
    own = {
        "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
        # Of this one patch of 3.13, which may be the only one at hand, torch warns whenever it compiles.
        "PYTHONWARNINGS": "ignore:Guards may run slower on Python 3.13.0",
        "MPLCONFIGDIR": str(interpreter.parents[1] / "matplotlib"),  # its list of fonts names this environment's
    }
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | own


def _run(interpreter: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter, *words], cwd=ROOT, env=_settings(interpreter), capture_output=True, text=True, check=False
    )


def _said(interpreter: Path, *words: str) -> str:
    done = _run(interpreter, *words)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout
