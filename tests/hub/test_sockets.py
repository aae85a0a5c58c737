"""At sockets that all can reach one user takes little room, and root takes nothing else for a learner's socket."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import requests

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from hub import sockets
from hub.sockets import keep
from tests.hub.client import PATIENCE, Learner, until
from tests.hub.running import RunningHub

HUB = {"teacher": True, "GUESSES": "on", "learners": 3}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_only_a_socket_at_which_its_owner_listens_is_kept() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as one:
        place, door, real = Path(folder, "server.sock"), Path(folder, "door"), Path(folder, "real")
        one.bind(str(real))
        with pytest.raises(ConnectionRefusedError):
            keep(real, door, 0)
        one.listen()
        assert keep(real, door, 0)
        assert not keep(real, door, 61_234), "of somebody else's"
        place.symlink_to(real)
        assert not keep(place, door, 0), "a link"
        os.chown(real, 61_234, 61_234)
        assert not keep(real, door, 61_234), "where somebody else listens"
        place.unlink()
        os.mkfifo(place)
        assert not keep(place, door, 0), "no socket"
        assert not door.exists()


def test_a_request_whose_body_never_comes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_BODY_TAKES", 0.1)

    async def half() -> bytes:
        server = HTTPServer(Application())
        server.add_socket(bind_unix_socket(str(tmp_path / "s")))
        sockets.bound(server)
        reads, writes = await asyncio.open_unix_connection(tmp_path / "s")
        writes.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        said = await asyncio.wait_for(reads.read(), PATIENCE)
        writes.close()
        server.stop()
        return said

    assert b"200" not in asyncio.run(half())


# -- with a real hub -------------------------------------------------------------------------------------------------


def as_user(name: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a learner could in a cell."""
    words = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(
        words, user=name, group=name, extra_groups=[], cwd="/", capture_output=True, text=True, check=False
    )


HALF = """
import select, socket, sys, time
half = b"POST /hub/login HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1000\\r\\n\\r\\n"
made = []
for _ in range(200):
    made.append(socket.socket(socket.AF_UNIX))
    made[-1].connect(sys.argv[1])
    try: made[-1].sendall(half)
    except OSError: pass
end = time.monotonic() + 20
while (kept := 200 - len(select.select(made, [], [], 0)[0])) > 32 and time.monotonic() < end: time.sleep(0.1)
print(kept)
input()
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["hub_socket", "guesses_socket"])
def test_one_learner_keeps_only_few_connections_open(hub: RunningHub, which: str) -> None:
    soft, hard = resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    place, lines, name = getattr(hub.settings, which), hub.log.count("\n"), hub.learners[1][0]
    words = [sys.executable, "-I", "-S", "-c", HALF, str(place)]
    with subprocess.Popen(words, user=name, group=name, extra_groups=[], cwd="/", stdin=-1, stdout=-1) as holds:
        assert 0 < int(holds.stdout.readline()) <= 32
        assert Learner(hub.url, *hub.learners[0]).fill_in().url.endswith("/hub/home"), "others get in"
        connects = f"""
import socket
asks = socket.socket(socket.AF_UNIX)
asks.connect({str(place)!r})
asks.sendall(b"GET /hub/health HTTP/1.0\\r\\n\\r\\n")
assert asks.recv(9)
"""
        assert as_user(hub.learners[2][0], connects).returncode == 0
        holds.communicate(b"\n")
    assert hub.log.count("\n") - lines < 50, "a line for each would fill the disk"


@pytest.mark.slow
def test_an_address_in_the_log_is_the_real_one(hub: RunningHub) -> None:
    forged = {"X-Real-IP": "203.0.113.9", "X-Forwarded-For": "203.0.113.8"}
    assert requests.get(f"{hub.url}/hub/api/users", headers=forged, timeout=60).status_code == 403
    until(lambda: "403 GET /hub/api/users (@127.0.0.1)" in hub.log, "the line in the log", 30)
    assert "203.0.113" not in hub.log
    asks = f"""
import http.client, socket
asks = http.client.HTTPConnection("hub")
asks.sock = socket.socket(socket.AF_UNIX)
asks.sock.connect({str(hub.settings.hub_socket)!r})
asks.request("GET", "/hub/login"); said = asks.getresponse(); said.read()
cookies = dict(each.split(";")[0].split("=", 1) for each in said.headers.get_all("Set-Cookie"))
form = f"username=x&password=y&_xsrf={{cookies['_xsrf'].strip(chr(34))}}"
kept = "; ".join("=".join(each) for each in cookies.items())
asks.request("POST", "/hub/login", form, {{"Cookie": kept, "Content-Type": "application/x-www-form-urlencoded"}})
print(asks.getresponse().status)
"""
    # Each name waits for its turn at each address, so nobody may sign in where addresses can be invented.
    assert as_user(hub.learners[1][0], asks).stdout == "403\n"
    assert "Sign in at the hub's page" in hub.log
