"""The command of the matrix: `python -m tools.matrix [TORCH[:PYTHON] ...] [--against TORCH]`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.matrix import report
from tools.matrix.environments import PAIRS, InstallFailedError, install
from tools.matrix.running import run_all, run_pytest, saved_anew


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, and return the exit status: 1 if anything was wrong or could not be installed."""
    parser = argparse.ArgumentParser(description="Run tests and chapters on other releases of torch and Python.")
    parser.add_argument("pairs", nargs="*", metavar="TORCH[:PYTHON]", help="such as 2.8 or 2.15:3.13; else all")
    parser.add_argument("--against", metavar="TORCH", help="hold the cells to what they show on this torch instead")
    chosen = parser.parse_args(arguments)
    pairs = [(torch, python or "3.11") for torch, _, python in (pair.partition(":") for pair in chosen.pairs)]
    # A polite end (SIGTERM) must remove the environments as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if chosen.against:
        return sum(compare(torch, python, chosen.against) for torch, python in pairs) and 1
    return sum(run(torch, python) for torch, python in pairs or PAIRS) and 1


def run(torch: str, python: str) -> int:
    """Run one pair, record it, and renew the table; return how many tests and cells were wrong."""
    with tempfile.TemporaryDirectory(prefix="hookscope-matrix-") as name:
        folder = Path(name)
        try:
            interpreter = ready(torch, python, folder)
        except InstallFailedError as error:
            print(f"torch {torch} on Python {python} could not be installed: {error}", flush=True)
            return 1
        found = run_all(interpreter, folder)
    report.store(found, datetime.now(UTC).date().isoformat())
    report.write()
    results = [("package", found.package), *([("chapters", found.chapters)] if found.chapters else [])]
    for what, result in results:
        print(f"  {what}: {report.said(result)}", flush=True)
        for place, words in result.wrong.items():
            print(f"    {place}: {report.reason(words)}")
    return sum(len(result.wrong) for _, result in results)


def compare(torch: str, python: str, against: str) -> int:
    """Say which cells show something else on a torch than on another one; return how many."""
    with tempfile.TemporaryDirectory(prefix="hookscope-matrix-") as name:
        try:
            notebooks = saved_anew(ready(against, python, Path(name) / against), Path(name))
            shutil.rmtree(Path(name) / against)  # 8 GB
            result = run_pytest(ready(torch, python, Path(name) / torch), Path(name), notebooks)
        except InstallFailedError as error:
            print(f"this could not be installed: {error}")
            return 1
        for place, words in result.wrong.items():
            print(f"{place}: {report.reason(words)}")
            print(*(f"    | {line}" for line in report.sentences(place, notebooks)), sep="\n")
    print(f"torch {torch} against {against}: {report.said(result)}. Read again what stands below these cells.")
    return len(result.wrong)


def ready(torch: str, python: str, folder: Path) -> Path:
    """Install a pair, and return its interpreter."""
    print(f"torch {torch} on Python {python} …", flush=True)
    interpreter = install(torch, python, folder)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return interpreter


if __name__ == "__main__":
    sys.exit(main())
