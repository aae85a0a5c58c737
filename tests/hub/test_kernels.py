"""The process that kernels are forked from is there again when it dies, and outlives the hub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub.kernels import serving
from tests.hub.client import until
from tests.shared import ROOT


def keeper(socket: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "hub.kernels", str(socket)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def ends(process: int) -> None:
    """End what a test has started, and wait."""
    if process:
        os.kill(process, signal.SIGKILL)
        until(
            lambda: (
                not Path(f"/proc/{process}/cmdline").exists() or Path(f"/proc/{process}/cmdline").read_bytes() == b""
            )
        )


def test_it_is_started_again_and_found_by_the_next_one(tmp_path: Path) -> None:
    socket = tmp_path / "k.sock"
    first = keeper(socket)
    try:
        assert "k are forked from process" in first.stdout.readline()
        before = serving(socket)
        assert before
        first.kill()  # as the hub, when that is killed
        first.wait()
        assert serving(socket) == before, "it goes on"
        second = keeper(socket)
        assert second.stdout.readline() == f"k are forked from process {before}\n"
        os.kill(before, signal.SIGKILL)
        assert "has died" in second.stdout.readline()
        second.stdout.readline()
        assert serving(socket) not in (0, before)
        second.kill()
        second.wait()
    finally:
        first.kill()
        ends(serving(socket))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_ends_with_the_hub_however_that_ends(number: signal.Signals) -> None:
    service = [sys.executable, "-m", "hub.kernels", "--", "/bin/sleep", "100"]
    starts = f"import subprocess, time; print(subprocess.Popen({service!r}).pid, flush=True); time.sleep(100)"
    hub = subprocess.Popen([sys.executable, "-c", starts], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(hub.stdout.readline())
    until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0][-5:] == b"sleep", seconds=20)
    hub.send_signal(number)
    hub.wait()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)
