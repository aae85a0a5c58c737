"""Ports for learners' servers: one that nobody takes in between, and who listens there in the end."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["free_port", "listeners", "taken"]

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENS = "0A"  # in the system's own table


def free_port() -> int:
    """Find a port that is free, and that the system gives to no connection.

    `random_port` of JupyterHub takes one of those that connections get; with 30 learners at the bell, one may get it
    before the server listens there, and then that server ends.

    Raises:
        OSError: none was found.

    """
    lowest = int(_RANGE.read_text().split()[0])
    ports = range(max(1024, lowest - 10_000), lowest) or range(20_000, 30_000)
    for port in random.sample(ports, min(200, len(ports))):
        with suppress(OSError), socket.socket() as trying:
            trying.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port is free between {ports[0]} and {ports[-1]}")


def taken(places: Iterable[tuple[str, int]]) -> int:
    """Return the first port at which another program listens, of addresses and ports; 0 if there is none."""
    for host, port in places:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as trying:
            trying.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # connections that have ended count for nothing
            try:
                trying.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:  # another error is about the address
                    return port
    return 0


def listeners() -> dict[int, set[int]]:
    """Say at which ports of this machine somebody listens: the numbers of the users, by port."""
    found: dict[int, set[int]] = {}
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if state == _LISTENS:
                    found.setdefault(int(local.rpartition(":")[2], 16), set()).add(int(user))
    return found
