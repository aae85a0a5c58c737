"""Keep the process that learners' kernels, or servers, are forked from: start it, and again when it has died.

It outlives this one and the hub, since the forks are its children: a hub that starts again finds it. It gets none of
the environment, for every fork can read all that it knows.

    python -m hub.kernels SOCKET             kernels
    python -m hub.kernels SOCKET MODULE      what another module serves: hub.servers
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

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_PDEATHSIG = 1


def serving(path: Path) -> int:
    """Return the number of the process that serves at a socket; 0 when there is none."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(str(path))
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    return 0


def start(path: Path, module: str) -> int:
    """Start the process, and return its number when it can be asked."""
    words = [sys.executable, "-m", module, str(path)]
    # One thread, as learners' servers have it: libgomp reads it when torch is loaded.
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "HOME": "/", "MPLCONFIGDIR": f"{path.parent}/matplotlib"}
    begun = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert begun.stdout is not None
    begun.stdout.readline()
    begun.stdout.close()
    return begun.pid


def keep(path: Path, module: str = "hookscope_course.kernels") -> None:
    """Keep it, for ever."""
    while True:
        begun = time.monotonic()
        process = serving(path) or start(path, module)
        print(f"{path.stem} are forked from process {process}", flush=True)
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(process)], [], [])
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
        print(f"process {process} has died; {path.stem} that run go on, and it is started again for others", flush=True)
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
    keep(Path(sys.argv[1]), *sys.argv[2:])


if __name__ == "__main__":
    main()
