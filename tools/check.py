"""What to run after each edit: lint, types, directions, lessons, and the tests of what changed, within a minute.

    python -m tools.check                  against where this branch left main
    python -m tools.check --base HEAD~3    against another commit (make check BASE=HEAD~3)
    python -m tools.check --plan           only say what would run

Changed is what git says: committed since the base, not yet committed, and new. Until the time is over, tests run in
this order: changed test files, tests of the packages that changed, chapters that changed, tests that import or name
what changed, tests of the packages that depend on it, nearest first, and notebooks that were only built again. Browser
tests run if they were changed themselves.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tools.changed_tests import ROOT, base_of, changed_since, chosen

SECONDS = 60
ENDING = 10  # seconds that pytest may take to end its processes
STEPS: dict[str, list[str]] = {
    "types": [sys.executable, "-m", "mypy"],
    "lessons": [sys.executable, "-m", "lessons.build", "--check"],
    "lint": [sys.executable, "-m", "ruff", "check", "--quiet", "."],
    "format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."],
    "directions": [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"],
    "architecture": [sys.executable, "-m", "tools.architecture", "--check"],
}
"""What is checked every time, longest first; two at once."""
_TIME_IS_OVER = 77  # an exit status that pytest itself never gives


def run_steps() -> list[str]:
    """Run what is checked every time, show what is wrong, and return the names of what failed."""

    def run(name: str) -> tuple[str, float, subprocess.CompletedProcess[str]]:
        start = time.monotonic()
        done = subprocess.run(STEPS[name], cwd=ROOT, capture_output=True, text=True, check=False)
        return name, time.monotonic() - start, done

    failed = []
    with ThreadPoolExecutor(2) as pool:
        for name, seconds, done in pool.map(run, STEPS):
            print(f"{name:<12} {'FAILED' if done.returncode else 'ok':<6} {seconds:5.1f} s", flush=True)
            if done.returncode:
                print((done.stdout + done.stderr).strip(), flush=True)
                failed.append(name)
    return failed


class Tally:
    """A pytest plugin that counts, by file, the tests there are, those that are done, and those that failed."""

    def __init__(self) -> None:
        self.there: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Count what one of the processes has collected; they all collect the same."""
        self.there = Counter(name.partition("::")[0] for name in ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of a test that failed."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Count a test that is done."""
        self.done[nodeid.partition("::")[0]] += 1

    def left_out(self, plan: Iterable[str]) -> list[str]:
        """List the files of which not every test was run."""
        return [name for name in plan if not self.there or self.done[name] < self.there[name]]


def run_tests(plan: Iterable[str], seconds: float) -> tuple[bool, Tally]:
    """Run test files in two processes, in their order, for so long; return whether nothing failed, and the count."""
    tally = Tally()

    def stop(number: int, frame: Any) -> None:
        pytest.exit("the time is over", returncode=_TIME_IS_OVER)

    if sys.platform != "win32":  # which has no such alarm: there, all of them run
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        # loadfile: the cells of a notebook share a kernel
        options = ["-q", "--no-header", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        status = pytest.main([*options, *plan], plugins=[tally])
    except pytest.exit.Exception:  # before there was anything to stop
        status = _TIME_IS_OVER
    finally:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    nothing_there = pytest.ExitCode.NO_TESTS_COLLECTED  # all of them slow, which only `make test-all` runs
    return status in (pytest.ExitCode.OK, nothing_there, _TIME_IS_OVER) and not tally.failed, tally


def main(arguments: list[str] | None = None) -> int:
    """Check what has changed, and say in the end what was run and what was not."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description="What to run after each edit.")
    parser.add_argument("--base", help="the branch or commit to compare with; else where this branch left main")
    parser.add_argument("--plan", action="store_true", help="only say which test files would run, and why")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it may take")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    os.chdir(ROOT)
    base = base_of(options.base)
    changed = changed_since(base)
    plan = chosen(changed)
    print(f"{len(changed)} files are not as in {base[:10]}; tests, first things first:")
    for name, reason in plan.items():
        print(f"  {name} ({reason})")
    if options.plan:
        return 0
    failed = run_steps()
    count, left = 0, list(plan)
    if plan and (seconds := options.seconds - ENDING - (time.monotonic() - start)) > 0:
        well, tally = run_tests(plan, seconds)
        count, left = tally.done.total(), tally.left_out(plan)
        failed += [] if well else [f"tests ({len(tally.failed)})"]
    print(f"\n{closing(list(plan), left, count, failed)}\n{time.monotonic() - start:.0f} s, against {base[:10]}")
    return 1 if failed else 0


def closing(plan: list[str], left: list[str], count: int, failed: list[str]) -> str:
    """Say what was run, what was not and how to run it, and in the last line how it went."""
    lines = [f"ran {', '.join(STEPS)}, and {count} tests of {len(plan) - len(left)} files"]
    if left:
        lines.append(f"no time for the rest: {' '.join(['.venv/bin/python -m pytest', *left])}")
    lines.append("never run here: what the change does not reach, slow tests, browser tests; for everything: make test")
    lines.append(f"FAILED: {', '.join(failed)}" if failed else "green as far as it went" if left else "green")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
