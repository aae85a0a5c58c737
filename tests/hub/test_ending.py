"""Ending means ended: nothing of a user escapes, and nothing of the hub outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hub import ending
from hub.ending import end_all, processes_of
from tests.hub.client import until

USER = 61_234
# Ignores what asks it to end, is another process every few milliseconds, and leaves a file in its folder each time.
HOPS = """trap '' TERM INT HUP; touch alive; sleep 0.01; /bin/sh -c "$0" "$0" &"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("many", [1, 20])
def test_what_forks_all_the_time_ends(many: int) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # a list of /proc can miss what lives so shortly
        os.chown(folder, USER, USER)
        alive = Path(folder, "alive")
        for _ in range(many):
            subprocess.run(
                ["/bin/sh", "-c", HOPS, HOPS], user=USER, group=USER, extra_groups=[], cwd=folder, check=True
            )
        alive.unlink()
        until(alive.exists)
        other = subprocess.Popen(["sleep", "600"], user=USER + 1)
        try:
            assert end_all(USER) == []
            alive.unlink(missing_ok=True)
            time.sleep(0.5)
            assert not alive.exists()
            assert other.poll() is None, "another user's goes on"
        finally:
            other.kill()
            other.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_processes_are_found_by_their_user() -> None:
    with subprocess.Popen(["sleep", "600"], user=USER) as sleeps:
        assert list(processes_of(USER)) == [sleeps.pid]
        sleeps.kill()
    assert not list(processes_of(USER))


SHARES = """
import ctypes, pathlib
for number in (ctypes.CDLL(None).shmget(0, 4096, 0o1600), ctypes.CDLL(None).semget(0, 1, 0o1600),
               ctypes.CDLL(None).msgget(0, 0o1600)): assert number >= 0
pathlib.Path("/dev/shm/of a test").mkdir()
pathlib.Path("/dev/shm/of a test/file").write_bytes(bytes(1 << 20))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_memory_that_would_outlive_its_processes_is_freed_and_nobody_elses() -> None:
    def held(user: int) -> int:
        tables = "\n".join(Path("/proc/sysvipc", kind).read_text() for kind in ("shm", "sem", "msg"))
        own = [path for path in Path("/dev/shm").iterdir() if path.stat().st_uid == user]
        return sum(str(user) in line.split() for line in tables.splitlines()) + len(own)

    other = Path("/dev/shm", f"of {USER + 1}")
    other.touch()
    os.chown(other, USER + 1, USER + 1)
    try:
        # Python starts as root, and has imported all it needs before: others may not be able to read its files.
        become = f"import ctypes, os, pathlib; os.setgroups([]); os.setgid({USER}); os.setuid({USER})\n"
        subprocess.run([sys.executable, "-I", "-S", "-c", become + SHARES], cwd="/", check=True)
        assert held(USER) == 4
        assert end_all(USER) == []
        assert held(USER) == 0
        assert other.exists()
    finally:
        other.unlink()


def test_root_is_never_ended() -> None:
    with pytest.raises(ValueError, match="root's"):
        end_all(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_ends_with_the_hub_however_that_ends(number: signal.Signals) -> None:
    service = [sys.executable, "-I", "-S", ending.__file__, "--", "/bin/sleep", "600"]
    starts = f"import subprocess, time; print(subprocess.Popen({service!r}).pid, flush=True); time.sleep(600)"
    with tempfile.TemporaryDirectory() as folder:
        hub = subprocess.Popen([sys.executable, "-c", starts], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert hub.stdout is not None
        pid = int(hub.stdout.readline())
        words = Path(f"/proc/{pid}/cmdline")
        until(lambda: words.read_bytes().split(b"\0")[0].endswith(b"sleep"))
        hub.send_signal(number)
        hub.wait()
        until(lambda: not words.exists() or not words.read_bytes())
