"""Ask many releases of torch the questions of facts.py, each in an environment of its own that goes again.

    python -m tools.history              every release in RELEASES (an hour, 10 GB of disk at a time)
    python -m tools.history 2.0.0 2.16.0  only these, also one that is not in RELEASES

The answers go to `records.json` beside facts.py, after each release, so an interrupted run keeps what it has.
A release that cannot be installed gets one line that says why, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hookscope_course.history.records import COMMAND, RECORDS, parse_release, read_records

FACTS = RECORDS.with_name("facts.py")

# Each release that has wheels on PyPI -> a Python it has them for. The newest comes last.
RELEASES = {
    **dict.fromkeys(("1.0.0", "1.0.1", "1.1.0", "1.2.0", "1.3.1", "1.4.0", "1.5.1", "1.6.0", "1.7.1"), "3.7"),
    **dict.fromkeys(("1.8.0", "1.9.0", "1.10.0", "1.11.0", "1.12.0", "1.13.1"), "3.9"),
    **dict.fromkeys(["2.0.0", "2.0.1", *(f"2.{minor}.0" for minor in range(1, 16))], "3.11"),
}
NEWEST_PYTHON = [*RELEASES.values()][-1]


class NotInstalledError(Exception):
    """A release that could not be asked; the message is one line that says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the releases named and write the records; the exit status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Ask releases of torch how hooks behave and write records.json.")
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help="such as 2.0.0; by default all of RELEASES")
    asked = parser.parse_args(arguments).releases or [*RELEASES]
    uv = find_uv()
    # A polite end (SIGTERM) must remove the environment as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed = 0
    for release in asked:
        python = RELEASES.get(release, NEWEST_PYTHON)
        print(f"torch {release} on Python {python} …", flush=True)
        try:
            answers = ask(uv, release, python)
        except NotInstalledError as error:
            failed += 1
            print(f"torch {release}: {error}", flush=True)
            store(release, reason=str(error))
        else:
            store(release, record={"python": python, "made_on": today(), "made_by": made_by(), "answers": answers})
    return int(failed > 0)


def find_uv() -> str:
    """Return the path of uv: the one of this environment, or the one on PATH."""
    own = Path(sysconfig.get_path("scripts")) / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    if not found:
        sys.exit(f"There is no uv. `{COMMAND}` sets up an environment that has it; or: pip install uv")
    return found


def ask(uv: str, release: str, python: str) -> dict[str, Any]:
    """Return what one release of torch answers.

    Raises:
        NotInstalledError: no such Python, no such release, or a torch that does not import.

    """
    with environment(uv, release, python) as (interpreter, settings):
        answers: dict[str, Any] = json.loads(call([interpreter, str(FACTS)], settings))
        return answers


@contextmanager
def environment(uv: str, release: str, python: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Install one release of torch into an environment that goes again.

    Yields:
        Its interpreter, and the environment variables to run it with.

    Raises:
        NotInstalledError: no such Python, or no such release.

    """
    with tempfile.TemporaryDirectory(prefix="hookscope-history-") as folder:
        home = Path(folder) / "env"
        # The cache goes with the folder: thirty releases would fill a disk.
        settings = {**os.environ, "UV_CACHE_DIR": str(Path(folder) / "cache"), "PYTHONPATH": ""}
        way_out = f"; install Python {python} (`uv python install {python}`) or put one on PATH"
        call([uv, "venv", "--python", python, str(home)], settings, way_out)
        scripts = home / ("Scripts" if os.name == "nt" else "bin")
        interpreter = str(scripts / "python")
        # No torch before 2.3 imports with numpy 2 without complaints; torch 1.10 imports pkg_resources unasked.
        packages = [f"torch=={release}", "numpy<2", "setuptools<81"]
        call([uv, "pip", "install", "--python", interpreter, *packages], settings)
        yield interpreter, settings


def call(command: list[str], settings: dict[str, str], way_out: str = "", given: str = "") -> str:
    """Run a command, give it a text, and return what it prints; its error becomes one line."""
    done = subprocess.run(command, env=settings, capture_output=True, text=True, input=given)
    if done.returncode:
        what = " ".join(Path(word).name for word in command[:3])
        raise NotInstalledError(f"`{what}` failed: {one_line(done.stderr)}{way_out}")
    return done.stdout


def one_line(errors: str) -> str:
    """Return an error of uv or of Python as one short line: from "error:" or "×" on, or the last line."""
    text = re.sub(r"\S*/\S+", lambda path: Path(path[0]).name, errors.strip())  # no path of this machine
    starts = re.search(r"(?:error: |× )(.*)", text, re.DOTALL)
    words = (starts[1] if starts else text.splitlines()[-1] if text else "it said nothing").split()
    line = " ".join(word for word in words if not set(word) <= set("╰─▶├│"))
    return line.replace(" cause:", ":").partition(" hint:")[0][:300]


def store(release: str, *, record: dict[str, Any] | None = None, reason: str = "") -> None:
    """Put one release's record, or the reason why there is none, into the records."""
    records = read_records() if RECORDS.exists() else {"versions": {}, "not_installed": {}}
    records["not_installed"].pop(release, None)
    if record:
        records["versions"][release] = record
    elif release not in records["versions"]:
        records["not_installed"][release] = reason
    for part in ("versions", "not_installed"):
        records[part] = {key: records[part][key] for key in sorted(records[part], key=parse_release)}
    RECORDS.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def made_by() -> str:
    """Return the command, and the kind of machine it ran on."""
    return f"{COMMAND}, on {platform.system()} {platform.machine()}, CPU"


def today() -> str:
    """Return the date as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
