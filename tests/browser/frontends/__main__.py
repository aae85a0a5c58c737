"""The command, `python -m tests.browser.frontends [NAME ...]`: try front ends, and renew the table of docs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.browser.frontends.jupyter import LAB, NOTEBOOK, Jupyter
from tests.browser.frontends.marimo import Marimo
from tests.browser.frontends.table import PAGE, RECORDS, read, rows
from tests.browser.frontends.trials import Frontend, Tried, try_out
from tests.shared import ROOT
from tests.shared.lab import CHROMIUM, CHROMIUM_FLAGS, STEP_MILLISECONDS
from tools.matrix.environments import LOCKS, uv
from tools.page_blocks import put, table

# The distribution of each front end, and how it is opened.
FRONTENDS = {"JupyterLab": "jupyterlab", "Notebook": "notebook", "marimo": "marimo"}


def main(chosen: list[str]) -> int:
    """Try the front ends with these names, or all, each on a fresh copy of the course."""
    if unknown := set(chosen) - {*FRONTENDS}:
        print(f"no front end {', '.join(sorted(unknown))}; there are: {', '.join(FRONTENDS)}")
        return 2
    os.environ.pop("PYTHONPATH", None)  # what is tried is the wheel, not this folder
    with tempfile.TemporaryDirectory(prefix="hookscope-frontends-") as name, sync_playwright() as playwright:
        folder = Path(name)
        python = installed(folder)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        expect.set_options(timeout=STEP_MILLISECONDS)
        ways: dict[str, Frontend] = {
            "JupyterLab": Jupyter(python, browser, LAB),
            "Notebook": Jupyter(python, browser, NOTEBOOK),
            "marimo": Marimo(python, browser),
        }
        for title in chosen or FRONTENDS:
            course = folder / title / "course"
            course.parent.mkdir()
            subprocess.run([python.with_name("hookscope"), "course", "--to", course], check=True, capture_output=True)
            tried = try_out(ways[title], course, release(python, FRONTENDS[title]))
            print(title, tried, flush=True)
            store(title, tried)
    return 0


def store(title: str, tried: Tried) -> None:
    """Put what came of one front end into the records, in its place, and into the table of the page."""
    found = read() if RECORDS.exists() else {}
    found[title] = {"made_on": datetime.now(UTC).date().isoformat(), **asdict(tried)}
    ordered = {name: found[name] for name in FRONTENDS if name in found}
    RECORDS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    put(PAGE, "frontends", table(rows(ordered)))


def installed(folder: Path) -> Path:
    """Install the course's wheel as a learner would, and the front ends; return the interpreter."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    interpreter = folder / "env" / "bin" / "python"
    uv(folder, "venv", "--python", sys.executable, folder / "env")
    pins = [word for lock in LOCKS[:1] for word in ("-c", ROOT / lock)]
    uv(folder, "pip", "install", "--python", interpreter, *pins, f"{wheel}[course]", *FRONTENDS.values())
    return interpreter


def release(python: Path, distribution: str) -> str:
    """Which release of a distribution an interpreter has."""
    code = f"import importlib.metadata; print(importlib.metadata.version({distribution!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
