"""What Jupyter starts in place of a kernel: asks for a fork, stands for it until it ends, hands on its signals.

Runs without site-packages, since Jupyter waits for it: `python -I -S launch.py SOCKET -f CONNECTION_FILE`. When this
process is killed, its socket closes, and the server kills the fork. Where nobody serves, it becomes a usual kernel.
With `-m MODULE …` it stands for a module run as a program, not for a kernel.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

if sys.platform == "win32":
    raise ImportError("this stands for a forked kernel, which Windows cannot have")

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from typing import Any

KERNEL = "ipykernel_launcher"
MESSAGE = 1 << 17  # bytes, at most; a Unix socket takes so much in one piece


def main() -> int:
    """Stand for a fork; returns its exit status."""
    path, *arguments = sys.argv[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(path)
            umask = os.umask(0)
            os.umask(umask)
            wanted = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "umask": umask}  # noqa: PTH109
            socket.send_fds(server, [json.dumps(wanted).encode()], [0, 1, 2])
            answer = _answer(server)
            if "kernel" not in answer:
                raise ConnectionError(answer.get("refused", "it does not answer"))
            return _stand_for(answer["kernel"], server)
    except OSError as error:
        if arguments[:1] == ["-m"]:
            os.execv(sys.executable, [sys.executable, *arguments])
        sys.stderr.write(f"No preloaded kernel ({error}); this one imports torch itself, which takes seconds.\n")
        os.execv(sys.executable, [sys.executable, "-m", KERNEL, *arguments])


def _stand_for(kernel: int, server: socket.socket) -> int:
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda number, frame: _hand_on(kernel, number))
    ending = os.pidfd_open(kernel)
    ended = _answer(server)
    if "status" not in ended:  # the server has gone, the kernel has not
        select.select([ending], [], [])
        return 1
    status: int = ended["status"]
    return status if status >= 0 else 128 - status


def _hand_on(kernel: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may just have ended
        os.killpg(kernel, number)  # with what its cells have started, as Jupyter does it


def _answer(server: socket.socket) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(server.recv(MESSAGE) or "{}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
