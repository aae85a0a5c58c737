"""End all processes of a user and free the memory they shared, and let a process end with the one that started it.

python -m hub.ending -- COMMAND …       become a command that ends with its parent, however that ends
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["end_all", "erase", "processes_of"]

_PATIENCE = 20.0  # seconds; what a process in the kernel may need until it has gone
# kill(-1) reaches every process that the caller may signal. Real, effective and saved user must all be the learner:
# with root as one of them, it would end root's processes. Linux signals all of them in one step, so no fork escapes.
_KILL = """
import os, sys
user = int(sys.argv[1])
os.setresuid(user, user, user)
if user > 0 and os.getresuid() == (user, user, user): os.kill(-1, 9)
"""
_PR_SET_PDEATHSIG = 1


def end_all(user: int) -> list[int]:
    """End every process of a user, wait until none is left, and free the memory that would outlive them.

    Args:
        user: the number of the user; never 0.

    Returns:
        The numbers of the processes that are there even so; usually none.

    """
    if user <= 0:
        raise ValueError("root's processes are never ended")
    end = time.monotonic() + _PATIENCE
    while True:  # the signal first: a list of what forks all the time may be empty
        subprocess.run([sys.executable, "-I", "-S", "-c", _KILL, str(user)], check=False, capture_output=True)
        if not (left := list(processes_of(user))) or time.monotonic() > end:
            _free(user)
            return left
        time.sleep(0.05)


def _free(user: int) -> None:
    """Remove a user's files in shared memory, and what the user made or has of System V's."""
    find = ["find", "/dev/shm", "-xdev", "-mindepth", "1", "-depth", "-user", str(user), "-delete"]
    subprocess.run(find, check=False, capture_output=True)
    libc = ctypes.CDLL(None)
    for kind, remove in ("shm", libc.shmctl), ("sem", libc.semctl), ("msg", libc.msgctl):
        with suppress(FileNotFoundError):  # of a system that has none
            columns, *lines = map(str.split, Path("/proc/sysvipc", kind).read_text().splitlines())
            for line in lines:
                if str(user) in (line[columns.index("uid")], line[columns.index("cuid")]):
                    remove(int(line[1]), 0, None)  # IPC_RMID


def erase(path: Path) -> str:
    """Delete a file or a folder, however deep, follow no link, and leave other disks alone; return what went wrong."""
    words = ["rm", "-rf", "--one-file-system", "--", str(path)]
    return subprocess.run(words, check=False, capture_output=True, text=True).stderr[:300].strip()


def processes_of(user: int) -> Iterator[int]:
    """List the processes of a user that run, by number; not those that have ended and wait for their parent to ask."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            status = (folder / "status").read_text()
            if int(status.partition("\nUid:")[2].split()[0]) == user and "\nState:\tZ" not in status:
                yield int(folder.name)


def end_with_parent() -> None:
    """Let the system end this process when its parent dies, however that dies."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent has gone")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    os.execv(sys.argv[2], sys.argv[2:])
