"""Unix sockets: their addresses, who is at the other end, and how many connections one user may keep open."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

_MOST = 32  # connections of one user; fewer than the hub has threads for passphrases
_BODY_TAKES = 30.0  # seconds, at most, until a request's body is there


def at(place: Path) -> str:
    """Return the address of a Unix socket, as JupyterHub and its proxy write it."""
    return f"http+unix://{quote(str(place), safe='')}"


def peer(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def bound(server: Any) -> None:
    """Let each user but root keep few connections to a tornado server open, and none with half a body.

    Root is the proxy, which hands on everybody's requests.
    """
    server.conn_params.body_timeout = _BODY_TAKES
    serve, kept = server.handle_stream, defaultdict[int, set[Any]](set)

    def handle(stream: Any, address: Any) -> Any:
        user = peer(stream.socket)
        kept[user] = {each for each in kept[user] if not each.closed()}
        if user and len(kept[user]) >= _MOST:
            return stream.close()  # without a line in the log, which would fill the disk
        kept[user].add(stream)
        return serve(stream, address)

    server.handle_stream = handle


def keep(place: Path, door: Path, user: int) -> bool:
    """Give a user's socket a second name in a folder of root's, where the user cannot put something else in its place.

    Returns:
        Whether it is a socket of that user's, at which that user listens. If not, there is no second name.

    Raises:
        OSError: nothing is there, or nobody listens.

    """
    door.unlink(missing_ok=True)
    os.link(place, door, follow_symlinks=False)
    found, kept = door.lstat(), False
    try:
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == user:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(str(door))
                kept = peer(asking) == user
    finally:
        if not kept:
            door.unlink()
    return kept
