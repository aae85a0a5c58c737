"""Keep the process that learners' kernels are forked from: start it, and start it again when it has died.

It outlives this one and the hub, since kernels are its children: a hub that starts again finds it. It gets none of the
environment, for every kernel can read all that it knows.

    python -m hub.kernels SOCKET
    python -m hub.kernels -- COMMAND …       no kernels: another command that shall end with the hub
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def serving(path: Path) -> int:
    """Return the number of the process that serves at a socket; 0 when there is none."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(str(path))
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    return 0


def start(path: Path) -> int:
    """Start the process, and return its number when kernels can ask it."""
    words = [sys.executable, "-P", "-m", "hookscope_course.kernels", str(path)]
    # One thread, as learners' servers have it: libgomp reads it when torch is loaded.
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "HOME": "/", "MPLCONFIGDIR": f"{path.parent}/matplotlib"}
    begun = subprocess.Popen(
        words, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert begun.stdout is not None
    begun.stdout.readline()
    begun.stdout.close()
    return begun.pid


def keep(path: Path) -> None:
    """Keep it, for ever."""
    while True:
        begun = time.monotonic()
        process = serving(path) or start(path)
        print(f"kernels are forked from process {process}", flush=True)
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(process)], [], [])
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
        print(f"process {process} has died; kernels that run go on, and a new one is started for others", flush=True)
        time.sleep(max(0.0, 1 - (time.monotonic() - begun)))


def end_with_parent() -> None:
    """Let the system end this process when the hub dies, however that dies."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the hub has gone")


def main() -> None:
    """Keep the process for kernels, or become another command."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    if sys.argv[1] == "--":
        os.execv(sys.argv[2], sys.argv[2:])
    keep(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
