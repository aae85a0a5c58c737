"""Learners' servers are forks; where they cannot be, they start as usual, and who kills one starts another."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from hookscope_course.kernels import launch
from hub import spawner
from hub.kernels import serving
from hub.limits import processes_of
from hub.ports import free_port, listeners
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub
from tests.shared import ROOT

HUB = {"learners": 3}


# -- without a hub ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process that servers are forked from."""
    place = tmp_path_factory.mktemp("servers") / "s.sock"
    words = [sys.executable, "-m", "hub.servers", str(place)]
    with subprocess.Popen(words, cwd=ROOT, env={"PATH": os.defpath, "HOME": "/"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield place
        process.terminate()


@contextmanager
def answering() -> Iterator[str]:
    """What a server asks first is whether there is a hub; this says yes, and nothing else."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hub/api"
        server.shutdown()


def asks(place: Path, home: Path, *words: str, hub: str = "") -> subprocess.CompletedProcess[str]:
    """Ask for a server as the spawner does, in another home and folder than the process that forks."""
    command = [sys.executable, "-I", "-S", launch.__file__, str(place), "--or", "jupyterhub.singleuser", *words]
    environment = {
        "PATH": os.defpath, "HOME": str(home), "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:9",
        "JUPYTERHUB_API_URL": hub, "JUPYTERHUB_API_TOKEN": "none", "JUPYTERHUB_CLIENT_ID": "none",
        "JUPYTERHUB_HOST": "", "JUPYTERHUB_SERVICE_PREFIX": "/user/anna/",
    }  # fmt: skip
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_fork_has_the_home_of_who_asked_also_where_it_was_loaded_in_another(forking: Path, tmp_path: Path) -> None:
    with answering() as hub:
        said = asks(forking, tmp_path, "--show-config", hub=hub)
    assert said.returncode == 0, said.stderr
    assert "No preloaded" not in said.stderr
    for name, folder in ("user_settings_dir", "user-settings"), ("workspaces_dir", "workspaces"):
        found = re.search(rf"\.{name} = .*?'([^']*)'", said.stdout)
        assert found, said.stdout
        assert found[1] == f"{tmp_path}/.jupyter/lab/{folder}"


def test_where_nobody_forks_the_server_starts_as_usual_and_not_from_the_folder_it_stands_in(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub.py").write_text("raise SystemExit('what a learner has written')")
    said = asks(tmp_path / "none.sock", tmp_path, "--version")
    assert "No preloaded server" in said.stderr
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+", said.stdout.strip())


def test_a_free_port_is_none_of_those_that_connections_get() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = {free_port() for _ in range(20)}
    assert len(found) > 1
    assert not [port for port in found if lowest <= port <= highest]


def test_who_listens_at_a_port_is_known() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert port not in listeners(), "it does not listen yet"
        bound.listen()
        assert listeners()[port] == {os.getuid()}
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert connection.getsockname()[1] not in listeners(), "this end only speaks"
    assert port not in listeners()


def test_the_last_line_of_a_log_is_told_and_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n\x1b[31mNo port is left\n\n")
    assert spawner.last_line(log, os.getuid()) == "[31mNo port is left"
    assert spawner.last_line(log, os.getuid() + 1) == "nothing"
    link = tmp_path / "link"
    link.symlink_to(log)
    assert spawner.last_line(link, os.getuid()) == "nothing"
    os.mkfifo(tmp_path / "pipe")
    assert spawner.last_line(tmp_path / "pipe", os.getuid()) == "nothing"


# -- with a real hub -------------------------------------------------------------------------------------------------


def server_of(hub: RunningHub, person: Learner) -> int:
    """The process that is a learner's server, a fork or not, and not the one that stands for it."""
    found = []
    for process in processes_of(hub.home(person.name).stat().st_uid):
        words = _words(process)
        if launch.__file__ not in words and re.search(r"-m (hub\.servers|jupyterhub\.singleuser)", words):
            found.append(process)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.slow
def test_a_server_that_is_killed_is_missed_and_another_one_finds_the_work(hub: RunningHub, anna: Learner) -> None:
    work = {"type": "file", "format": "text", "content": "what she wrote"}
    assert anna.ask("PUT", "api/contents/work.txt", json=work).status_code == 201
    kernel, user = anna.kernel(), hub.home(anna.name).stat().st_uid
    with anna.connected(kernel) as cells:
        assert cells.run("import os; print(os.environ['HOME'])") == str(hub.home(anna.name))
    assert (hub.home(anna.name) / ".hookscope-server.log").stat().st_uid == user
    assert not Path("/.jupyter/lab").exists(), "JupyterLab has written into the home that it was loaded in"
    before = server_of(hub, anna)
    os.kill(before, signal.SIGKILL)
    until(lambda: not anna.up(), "that the hub notices", 120)
    until(lambda: not list(processes_of(user)), "the end of what it had started", 60)
    anna.open()
    assert server_of(hub, anna) != before
    assert anna.ask("GET", "api/contents/work.txt").json()["content"] == "what she wrote"


@pytest.mark.slow
def test_when_the_servers_origin_dies_servers_go_on_and_new_ones_start(
    hub: RunningHub, anna: Learner, ben: Learner
) -> None:
    with anna.connected(anna.kernel()) as cells:
        cells.run("kept = 6 * 7")
        keeper = next(pid for pid in _children(hub.process.pid) if str(hub.settings.servers) in _words(pid))
        os.kill(keeper, signal.SIGSTOP)  # or a new one would be there at once
        try:
            origin = serving(hub.settings.servers)
            os.kill(origin, signal.SIGKILL)
            until(lambda: not serving(hub.settings.servers), "the end of the origin", 20)
            chloe = hub.learner(2)
            assert "hub.servers" not in _words(server_of(hub, chloe)), "nobody can have forked it"
            assert "No preloaded server" in (hub.home(chloe.name) / ".hookscope-server.log").read_text()
            with chloe.connected(chloe.kernel()) as hers:
                assert hers.run("import os; print(os.environ['HOME'])") == str(hub.home(chloe.name))
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert cells.run("print(kept)") == "42"
    until(lambda: serving(hub.settings.servers) not in (0, origin), "a new process to fork from", 30)
    ben.stop()
    until(lambda: not ben.up(), "the end of his server", 60)
    ben.open()
    assert "hub.servers" in _words(server_of(hub, ben))


def _words(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
def test_a_server_that_cannot_start_is_given_up_soon_with_what_it_said_last(hub: RunningHub, ben: Learner) -> None:
    ben.stop()
    until(lambda: not ben.up(), "the end of his server", 60)
    broken = hub.home(ben.name) / ".jupyter" / "jupyter_server_config.py"
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("import sys; sys.exit('his own settings are broken')")
    ben.sees("/hub/spawn")
    said = f"The server of {ben.name} did not start, in 3 attempts"
    try:
        until(lambda: said in hub.log, "that the hub gives up", 60)  # it alone would wait for three minutes
        assert re.search(f"{said}.*hookscope-server.log: his own settings are broken", hub.log)
        until(lambda: said in ben.sees(f"/hub/spawn-pending/{ben.name}").text, "that his page says so", 30)
    finally:
        broken.unlink()
    ben.open()
