"""Code that runs in interpreters that have imported torch and nothing else: forks of one, as torch takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable

from tests.shared import PATIENCE

FORKS = """
import json, os, sys, tempfile, torch
printed = []
for code in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as file:
        if not (child := os.fork()):
            os.dup2(file.fileno(), 1)
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        file.seek(0)
        printed.append(file.read())
print(json.dumps(printed))
"""


def run_afresh(codes: Iterable[str]) -> list[str]:
    """Run each code in an interpreter of its own, and return what it prints; one that fails shows its traceback."""
    if not hasattr(os, "fork"):
        return [_run(code) for code in codes]
    printed: list[str] = json.loads(_run(FORKS, json.dumps([*codes])))
    return printed


def _run(code: str, given: str = "") -> str:
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
