"""nginx in front of JupyterHub's proxy: a request that hides another one does not reach a server behind them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.smuggling import METHODS, Backend, attack, backend
from tests.shared import ROOT

pytestmark = pytest.mark.slow
CONFIG = ROOT / "deploy" / "docker" / "nginx.conf"
PROGRAMS = ("configurable-http-proxy", "nginx", "openssl")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """Keep a program for the length of a block, from the moment when it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            assert process.poll() is None, process.communicate()[1]
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def behind() -> Iterator[Backend]:
    with backend() as made:
        yield made


@pytest.fixture
def proxy(behind: Backend) -> Iterator[int]:
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        pytest.skip("no configurable-http-proxy, nginx or openssl on this machine")
    port, api = _free_port(), _free_port()
    words = ["--ip", "127.0.0.1", "--port", str(port), "--api-port", str(api), "--no-include-prefix"]
    command = ["configurable-http-proxy", *words, "--default-target", f"http://127.0.0.1:{behind.port}"]
    with _running(command, port):
        yield port


@pytest.fixture
def front(proxy: int, tmp_path: Path) -> Iterator[int]:
    """Our nginx.conf, with ports and folders of this test."""
    port = _free_port()
    (tmp_path / "tls").mkdir()
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", "tls/key.pem", "-out", "tls/cert.pem", "-subj", "/CN=test"]
    subprocess.run(["openssl", "req", "-x509", *new], cwd=tmp_path, check=True, capture_output=True)
    text = CONFIG.read_text()
    for old, ours in (
        ("listen 80;", f"listen 127.0.0.1:{_free_port()};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("http://127.0.0.1:8000;", f"http://127.0.0.1:{proxy};"),
        ("events {}", f"pid {tmp_path}/pid;\nevents {{}}"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, ours)
    places = [f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    text = text.replace("http {", "http {\naccess_log off;\n" + "\n".join(places), 1)
    (tmp_path / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"]
    with _running(command, port):
        yield port


def test_the_attack_works_without_nginx(behind: Backend, proxy: int) -> None:
    attack(proxy, "DELETE")
    assert "GET /hidden HTTP/1.1" in behind.seen, (
        "configurable-http-proxy no longer forwards hidden requests; change deploy/docker/README.md"
    )


@pytest.mark.parametrize("more", ["", "Connection: Upgrade\r\nUpgrade: websocket\r\n"], ids=["plain", "websocket"])
@pytest.mark.parametrize("method", METHODS)
def test_behind_nginx_each_visitor_gets_their_own_answer(behind: Backend, front: int, method: str, more: str) -> None:
    attacker, visitor, again = attack(front, method, tls=True, more=more)
    assert not any("/hidden" in line for line in behind.seen), behind.seen
    assert visitor == "answer to /visitor with secret, 0 bytes"
    assert again == "answer to /attacker-again with no cookie, 0 bytes"
    assert "secret" not in attacker
