"""Tell a process that waits from one that works, by what the operating system says of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

IDLE_SHARE = 0.1  # of one processor; gloo's own thread looks around all the time, and needs about 0.02


class Idleness:
    """For how long each of some processes has done nothing. Where there is no /proc, none is ever idle."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, float]] = {}

    def measure(self, pid: int) -> float:
        """Return the seconds since which the main thread of a process was asleep, whenever this was asked.

        A thread that waits for a processor or for a disk is not asleep, so a busy machine makes nobody idle. And the
        other threads must have used hardly any time.
        """
        now, (asleep, used) = time.monotonic(), _read_cpu_use(pid)
        since, before = self._since.get(pid, (now, used))
        if not asleep or used - before > IDLE_SHARE * (now - since) + 0.1:
            since, before = now, used
        self._since[pid] = since, before
        return now - since

    def forget(self) -> None:
        """Begin anew."""
        self._since.clear()


def _read_cpu_use(pid: int) -> tuple[bool, float]:
    """Whether the main thread sleeps, and the processor time in seconds of all threads so far."""
    try:
        # After the name, which may hold anything: the main thread's state, and 11 fields on, two times of all threads.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # the process has just ended, or this system has no /proc
        return False, 0.0
    if sys.platform == "win32":
        return False, 0.0
    return fields[0] == "S", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
