"""A learner at a hub, as a browser would be: signs in, opens JupyterLab's pages, runs cells through a websocket."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
import websocket

PATIENCE = 180.0  # seconds, for what a full machine may keep waiting
_ENDED = ("restarting", "dead")


def until(is_so: Callable[[], Any], what: str = "it", seconds: float = PATIENCE, every: float = 0.1) -> Any:
    """Wait until something is so, and return it."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds:g} s"
        time.sleep(every)
    return found


class Learner:
    """Somebody with a browser: a learner, or the teacher.

    Args:
        url: of the hub, without a / at the end.
        name: theirs.
        passphrase: theirs.
        certificate: file with the hub's, where it encrypts.

    """

    def __init__(self, url: str, name: str, passphrase: str, certificate: str = "") -> None:
        self.url, self.name, self.base, self._passphrase = url, name, f"{url}/user/{name}", passphrase
        self.web = requests.Session()
        self.web.trust_env = False  # neither proxies nor certificates of the environment
        self.web.verify = certificate or True

    def token(self, path: str) -> str:
        """What the page that belongs to a path sends back with each request, so that no other page can."""
        fitting = [each for each in self.web.cookies if each.name == "_xsrf" and path.startswith(each.path.rstrip("/"))]
        assert fitting, f"no _xsrf for {path}"
        return str(max(fitting, key=lambda each: len(each.path)).value)

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """Ask as the pages' scripts do: the hub (/hub/…), or the learner's own server (what has no / in front)."""
        path = path if path.startswith("/") else f"/user/{self.name}/{path}"
        own = {"X-XSRFToken": self.token(path), "Referer": f"{self.url}{path}", "Sec-Fetch-Mode": "cors"}
        headers = own | more.pop("headers", {})
        return self.web.request(method, f"{self.url}{path}", headers=headers, timeout=PATIENCE, **more)

    def sees(self, path: str) -> requests.Response:
        """Open a page."""
        return self.web.get(f"{self.url}{path}", timeout=PATIENCE)

    def fill_in(self, passphrase: str = "") -> requests.Response:
        """Fill in the hub's form, with another passphrase if one is given; returns the page that follows."""
        self.sees("/hub/login")
        form = {"username": self.name, "password": passphrase or self._passphrase, "_xsrf": self.token("/hub/")}
        return self.web.post(f"{self.url}/hub/login?next=%2Fhub%2Fhome", data=form, timeout=PATIENCE)

    def sign_in(self) -> None:
        """Sign in, which must work."""
        there = self.fill_in()
        assert there.url.endswith("/hub/home"), f"{self.name} was not signed in: {there.status_code} {there.url}"
        assert self.name in there.text

    def open(self, seconds: float = PATIENCE) -> requests.Response:
        """Open JupyterLab, which starts the server, and wait until the page is there."""

        def page() -> requests.Response | None:
            answer = self.sees("/hub/spawn")
            return answer if answer.url.startswith(self.base) else None

        there: requests.Response = until(page, f"the server of {self.name}", seconds, every=0.5)
        return there

    def stop(self) -> None:
        """Ask the hub to stop the server."""
        self.ask("DELETE", f"/hub/api/users/{self.name}/server")

    def model(self) -> dict[str, Any]:
        """What the hub says about them."""
        said = self.ask("GET", f"/hub/api/users/{self.name}")
        said.raise_for_status()
        model: dict[str, Any] = said.json()
        return model

    def up(self) -> bool:
        """Whether the hub says that the server is up."""
        return bool(self.model()["servers"].get("", {}).get("ready"))

    def own_token(self, **more: Any) -> str:
        """Make a token such as a learner can on the hub's own page."""
        said = self.ask("POST", f"/hub/api/users/{self.name}/tokens", json=more)
        assert said.status_code == 201, said.text
        return str(said.json()["token"])

    def notebook(self, path: str) -> dict[str, Any]:
        """What is in a notebook."""
        said = self.ask("GET", f"api/contents/{path}")
        assert said.ok, f"{path}: {said.status_code} {said.text[:200]}"
        content: dict[str, Any] = said.json()["content"]
        return content

    def kernel(self, notebook: str = "") -> str:
        """Start a kernel, for a notebook if one is named, and return its number."""
        if notebook:
            wanted = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
            said = self.ask("POST", "api/sessions", json=wanted)
        else:
            said = self.ask("POST", "api/kernels", json={"name": "python3", "path": ""})
        assert said.status_code == 201, f"{notebook}: {said.status_code} {said.text[:300]}"
        return str(said.json()["kernel"]["id"] if notebook else said.json()["id"])

    def cookies(self, path: str = "") -> str:
        """The cookies that a browser sends with a path, as a header; without one, those of the learner's server."""
        where = requests.Request("GET", f"{self.url}{path or f'/user/{self.name}/'}", cookies=self.web.cookies)
        return str(self.web.prepare_request(where).headers.get("Cookie", ""))

    def connected(self, kernel: str, session: str = "") -> Cells:
        """Connect to a kernel; the server keeps what a session misses while it is away."""
        session, where = session or uuid.uuid4().hex, urlsplit(self.url)
        scheme = "wss" if where.scheme == "https" else "ws"
        socket = websocket.create_connection(
            f"{scheme}://{where.netloc}/user/{self.name}/api/kernels/{kernel}/channels?session_id={session}",
            timeout=PATIENCE, cookie=self.cookies(), origin=self.url,
            sslopt={} if self.web.verify is True else {"ca_certs": self.web.verify},
        )  # fmt: skip
        return Cells(socket, session)


class Cells:
    """Cells that run through one websocket, until the end of a block with it."""

    def __init__(self, socket: websocket.WebSocket, session: str) -> None:
        self.socket, self.session = socket, session
        self.error = ""  # of the cell that ran last

    def __enter__(self) -> Cells:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the websocket; the kernel goes on."""
        self.socket.close()

    def send(self, code: str, cell: str = "") -> str:
        """Run a cell, and do not wait; returns the message's number."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        return self.tell("execute_request", content, {"cellId": cell} if cell else {})

    def tell(self, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None) -> str:
        """Send a message of any kind; returns its number."""
        number = uuid.uuid4().hex
        header = {
            "msg_id": number, "username": "", "session": self.session, "msg_type": kind, "version": "5.3", "date": "",
        }  # fmt: skip
        message = {"header": header, "parent_header": {}, "metadata": metadata or {}, "content": content}
        self.socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        return number

    def messages(self) -> Iterator[tuple[dict[str, Any], int]]:
        """What comes, and how many bytes came along; an error when nothing comes for a while."""
        last = time.monotonic()
        while True:
            # The server's pings, too: else they would put off the end of the patience for ever.
            kind, frame = self.socket.recv_data(control_frame=True)
            if kind == websocket.ABNF.OPCODE_CLOSE:
                raise ConnectionError("the kernel's socket was closed")
            if kind not in (websocket.ABNF.OPCODE_TEXT, websocket.ABNF.OPCODE_BINARY):
                assert time.monotonic() < last + PATIENCE, f"nothing came in {PATIENCE:g} s"
                continue
            last = time.monotonic()
            if kind == websocket.ABNF.OPCODE_TEXT:
                yield json.loads(frame), 0
                continue
            parts = int.from_bytes(frame[:4], "big")
            ends = [int.from_bytes(frame[4 * (n + 1) : 4 * (n + 2)], "big") for n in range(parts)] + [len(frame)]
            yield json.loads(frame[ends[0] : ends[1]]), len(frame) - ends[1]

    def answers(self, number: str) -> Iterator[tuple[dict[str, Any], int]]:
        """What answers a message, and the bytes that came along; and that the kernel died."""
        for message, size in self.messages():
            died = message["content"].get("execution_state") in _ENDED
            if died or message["parent_header"].get("msg_id") == number:
                yield message, size
            if died:
                return

    def heard(self, number: str) -> Iterator[str]:
        """What a cell prints or shows as text, and its error, as it comes, until the cell ends."""
        self.error = ""
        for message, _ in self.answers(number):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                yield content["text"]
            elif kind == "error":
                self.error = f"{content['ename']}: {content['evalue']}"
                yield self.error
            elif kind == "status" and content["execution_state"] == "idle":
                return
            elif kind == "status" and content["execution_state"] in _ENDED:
                yield "the kernel died"
            elif "text/plain" in content.get("data", {}):
                yield content["data"]["text/plain"]

    def printed(self, number: str) -> str:
        """Wait for the end of a cell, and return what it printed, or its error."""
        return "".join(self.heard(number)).strip()

    def until_cut(self, number: str) -> tuple[str, bool]:
        """Return what a cell prints until it ends, or the connection is cut; and whether it ended."""
        said: list[str] = []
        try:
            for text in self.heard(number):
                said.append(text)  # what was heard before the cut counts
        except (websocket.WebSocketConnectionClosedException, ConnectionError):
            return "".join(said), False
        return "".join(said), True

    def run(self, code: str, cell: str = "") -> str:
        """Run a cell, and return what it printed or showed, or its error."""
        return self.printed(self.send(code, cell))


def chapters_cells(notebook: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The code cells of a notebook: id, source, and whether an error in it is part of the lesson."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        (cell["id"], "".join(cell["source"]), "raises-exception" in cell["metadata"].get("tags", []))
        for cell in cells
        if not re.fullmatch(r"\s*", "".join(cell["source"]))
    ]
