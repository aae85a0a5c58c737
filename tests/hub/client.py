"""A learner at a hub, as a browser would be: signs in, opens JupyterLab's pages, runs cells through a websocket."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
import websocket

from tests.hub.running import RunningHub

PATIENCE = 60


def until(is_so: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """Wait until something is so, and return it."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.1 if seconds <= PATIENCE else 1)
    return found


class Learner:
    """Somebody with a browser.

    Args:
        hub: where they go.
        name: theirs.

    """

    def __init__(self, hub: RunningHub, name: str) -> None:
        self.hub, self.name = hub, name
        self.web = requests.Session()
        self.web.trust_env = False  # neither proxies nor certificates of the environment
        self.web.verify = hub.settings.tls_cert or True
        self.base = f"{hub.url}/user/{name}"

    def sign_in(self, passphrase: str) -> requests.Response:
        """Fill in the form; returns the page that follows."""
        self.web.get(f"{self.hub.url}/hub/login", timeout=PATIENCE)
        form = {"username": self.name, "password": passphrase, "_xsrf": self.web.cookies.get("_xsrf", path="/hub/")}
        return self.web.post(f"{self.hub.url}/hub/login?next=%2Fhub%2Fhome", data=form, timeout=PATIENCE)

    def open(self, seconds: float = PATIENCE) -> requests.Response:
        """Open JupyterLab, and wait until it is there."""

        def page() -> requests.Response | None:
            answer = self.web.get(f"{self.hub.url}/hub/spawn", timeout=PATIENCE)
            return answer if answer.url.startswith(self.base) else None

        return until(page, f"the server of {self.name}", seconds)

    @property
    def token(self) -> str:
        """What JupyterLab's page sends back with each request, so that no other page can."""
        return next(each.value for each in self.web.cookies if each.name == "_xsrf" and self.name in each.path)

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """Ask the learner's server."""
        headers = {"X-XSRFToken": self.token} | more.pop("headers", {})
        return self.web.request(method, f"{self.base}/{path}", headers=headers, timeout=PATIENCE, **more)

    def kernel(self) -> str:
        """Start a kernel, and return its number."""
        answer = self.ask("POST", "api/kernels", json={"name": "python3", "path": ""})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def cookies(self) -> str:
        """The cookies that a browser sends to the learner's server, as a header."""
        paths = ("/", f"/user/{self.name}/")
        return "; ".join(f"{each.name}={each.value}" for each in self.web.cookies if each.path in paths)

    @contextmanager
    def connected(self, kernel: str, session: str = "") -> Iterator[Cells]:
        """Connect to a kernel; the server keeps what a session misses while it is away."""
        url = f"{self.base.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={session or uuid.uuid4()}"
        socket = websocket.create_connection(
            url,
            timeout=PATIENCE,
            cookie=self.cookies(),
            origin=self.hub.url,
            sslopt={"ca_certs": self.hub.settings.tls_cert or None},
        )
        try:
            yield Cells(socket, session)
        finally:
            socket.close()


class Cells:
    """Cells that run through one websocket."""

    def __init__(self, socket: websocket.WebSocket, session: str) -> None:
        self.socket, self.session = socket, session

    def send(self, code: str) -> str:
        """Run a cell, and do not wait; returns its number."""
        number = str(uuid.uuid4())
        header = {
            "msg_id": number,
            "msg_type": "execute_request",
            "username": "",
            "session": self.session,
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self.socket.send(json.dumps(message))
        return number

    def printed(self, number: str) -> str:
        """Wait for the end of a cell, and return what it printed, or its error."""
        return "".join(self._heard(number)).strip()

    def until_cut(self, number: str) -> str:
        """Return what a cell prints until the connection is cut."""
        said: list[str] = []
        with suppress(websocket.WebSocketConnectionClosedException, ConnectionError):
            for text in self._heard(number):
                said.append(text)  # what was heard before the cut counts
            raise AssertionError(f"the cell ended before the connection was cut: {said}")
        return "".join(said)

    def _heard(self, number: str) -> Iterator[str]:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            _, data = self.socket.recv_data()
            message = json.loads(data)
            content = message["content"]
            if message["msg_type"] == "status" and content.get("execution_state") in ("restarting", "dead"):
                yield "the kernel died"
                return
            if message["parent_header"].get("msg_id") != number:
                continue
            if message["msg_type"] == "stream":
                yield content["text"]
            elif message["msg_type"] == "error":
                yield f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return
        raise AssertionError(f"no end of the cell in {PATIENCE} s")

    def run(self, code: str) -> str:
        """Run a cell, and return what it printed."""
        return self.printed(self.send(code))


def learner(hub: RunningHub, place: int, seconds: float = PATIENCE) -> Learner:
    """One of the hub's learners, signed in, with JupyterLab open."""
    name, passphrase = hub.learners[place]
    made = Learner(hub, name)
    answer = made.sign_in(passphrase)
    assert answer.url.endswith("/hub/home"), answer.url
    assert f"{name}" in answer.text
    made.open(seconds)
    return made
