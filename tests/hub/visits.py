"""A learner as the hub sees one: signs in, starts the server, opens a notebook, runs cells over a websocket."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from websocket import WebSocket, create_connection

PATIENCE = 180.0  # seconds, for what a full machine may keep waiting


class Visitor:
    """One learner, or the teacher, with a browser's cookies."""

    def __init__(self, url: str, name: str, passphrase: str) -> None:
        self.url, self.name, self._passphrase = url.rstrip("/"), name, passphrase
        self.http = requests.Session()
        self.http.trust_env = False

    def _xsrf(self, path: str) -> str:
        """The token that belongs to the path: every server of the hub has one of its own."""
        fitting = [
            each for each in self.http.cookies if each.name == "_xsrf" and path.startswith(each.path.rstrip("/"))
        ]
        assert fitting, f"no _xsrf for {path}"
        return str(max(fitting, key=lambda each: len(each.path)).value)

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """A request as the pages' scripts make it."""
        headers = {"X-XSRFToken": self._xsrf(path), "Referer": f"{self.url}{path}"} | more.pop("headers", {})
        return self.http.request(method, f"{self.url}{path}", headers=headers, timeout=PATIENCE, **more)

    def sign_in(self) -> None:
        self.http.get(f"{self.url}/hub/login", timeout=PATIENCE).raise_for_status()
        words = {"username": self.name, "password": self._passphrase, "_xsrf": self._xsrf("/hub/login")}
        there = self.http.post(f"{self.url}/hub/login", data=words, timeout=PATIENCE, allow_redirects=False)
        assert there.status_code == 302, f"{self.name} was not signed in: {there.status_code}"
        self.http.get(f"{self.url}/hub/home", timeout=PATIENCE).raise_for_status()

    def start(self) -> None:
        """Start the server, wait until it is up, and open it."""
        said = self.ask("POST", f"/hub/api/users/{self.name}/server", json={})
        assert said.status_code in (201, 202), f"{self.name}'s server was not started: {said.status_code} {said.text}"
        end = time.monotonic() + PATIENCE
        while not self._model()["servers"].get("", {}).get("ready"):
            assert time.monotonic() < end, f"{self.name}'s server is not up after {PATIENCE:g} s"
            time.sleep(0.5)
        self.http.get(f"{self.url}/user/{self.name}/lab", timeout=PATIENCE).raise_for_status()

    def stop(self) -> None:
        self.ask("DELETE", f"/hub/api/users/{self.name}/server")

    def _model(self) -> dict[str, Any]:
        said = self.ask("GET", f"/hub/api/users/{self.name}")
        said.raise_for_status()
        model: dict[str, Any] = said.json()
        return model

    def notebook(self, path: str) -> dict[str, Any]:
        said = self.ask("GET", f"/user/{self.name}/api/contents/{path}")
        assert said.ok, f"{path}: {said.status_code} {said.text[:200]}"
        content: dict[str, Any] = said.json()["content"]
        return content

    def open(self, path: str) -> Kernel:
        """Open a notebook's kernel, as JupyterLab does."""
        wanted = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        said = self.ask("POST", f"/user/{self.name}/api/sessions", json=wanted)
        assert said.status_code == 201, f"{path}: {said.status_code} {said.text[:300]}"
        kernel = said.json()["kernel"]["id"]
        where = urlsplit(self.url)
        scheme = "wss" if where.scheme == "https" else "ws"
        base = f"/user/{self.name}/api/kernels/{kernel}/channels"
        cookies = requests.Request("GET", f"{self.url}{base}", cookies=self.http.cookies)
        cookie = self.http.prepare_request(cookies).headers.get("Cookie", "")
        socket = create_connection(
            f"{scheme}://{where.netloc}{base}?session_id={uuid.uuid4().hex}",
            cookie=cookie, origin=self.url, timeout=PATIENCE,
        )  # fmt: skip
        return Kernel(socket)


class Kernel:
    """A kernel at the other end of a websocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket, self.session = socket, uuid.uuid4().hex
        self.pid = 0

    def send(self, kind: str, content: dict[str, Any], channel: str = "shell", metadata: Any = None) -> str:
        number = uuid.uuid4().hex
        header = {
            "msg_id": number,
            "username": "",
            "session": self.session,
            "msg_type": kind,
            "version": "5.3",
            "date": "",
        }
        message = {"header": header, "parent_header": {}, "metadata": metadata or {}, "content": content}
        self.socket.send(json.dumps(message | {"channel": channel, "buffers": []}))
        return number

    def messages(self) -> Iterator[tuple[dict[str, Any], int]]:
        """What comes, and the bytes that came along."""
        while True:
            frame = self.socket.recv()
            if isinstance(frame, str):
                yield json.loads(frame), 0
                continue
            parts = int.from_bytes(frame[:4], "big")
            ends = [int.from_bytes(frame[4 * (n + 1) : 4 * (n + 2)], "big") for n in range(parts)] + [len(frame)]
            yield json.loads(frame[ends[0] : ends[1]]), len(frame) - ends[1]

    def until(self, number: str, wanted: Callable[[dict[str, Any], int], bool]) -> list[tuple[dict[str, Any], int]]:
        """Collect what answers a message, up to and with what is wanted."""
        came = []
        for message, size in self.messages():
            if message.get("parent_header", {}).get("msg_id") == number:
                came.append((message, size))
                if wanted(message, size):
                    return came
        raise ConnectionError("the kernel's socket was closed")

    def run(self, code: str, cell: str = "") -> tuple[float, str, str]:
        """Run a cell: the seconds, what was printed or shown as text, and the error's first line."""
        begin = time.perf_counter()
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        number = self.send("execute_request", content, metadata={"cellId": cell} if cell else {})
        came = self.until(number, lambda m, _: m["msg_type"] == "status" and m["content"]["execution_state"] == "idle")
        took = time.perf_counter() - begin
        text, error = "", ""
        for message, _ in came:
            content = message["content"]
            text += content.get("text", "") if message["msg_type"] == "stream" else ""
            text += content.get("data", {}).get("text/plain", "")
            if message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}".splitlines()[0]
        return took, text, error

    def close(self) -> None:
        self.socket.close()


def chapters_cells(notebook: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The code cells of a notebook: id, source, and whether an error in it is part of the lesson."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        (cell["id"], "".join(cell["source"]), "raises-exception" in cell["metadata"].get("tags", []))
        for cell in cells
        if not re.fullmatch(r"\s*", "".join(cell["source"]))
    ]
