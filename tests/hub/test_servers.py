"""Learners' servers: each at a socket in a folder of its learner's, found again when it has died."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from hub import spawner
from hub.ending import processes_of
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub

HUB = {"learners": 3}


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
    """The process that is a learner's server."""
    of = processes_of(hub.home(person.name).stat().st_uid)
    found = [pid for pid in of if b"jupyterhub.singleuser" in Path(f"/proc/{pid}/cmdline").read_bytes()]
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
    before = server_of(hub, anna)
    os.kill(before, signal.SIGKILL)
    until(lambda: not anna.up(), "that the hub notices", 120)
    until(lambda: not list(processes_of(user)), "the end of what it had started", 60)
    anna.open()
    assert server_of(hub, anna) != before
    assert anna.ask("GET", "api/contents/work.txt").json()["content"] == "what she wrote"


@pytest.mark.slow
def test_nobody_takes_the_place_of_a_server_that_died(hub: RunningHub, anna: Learner, ben: Learner) -> None:
    """A classmate waits for the death, and tries to answer in its place; the page must never be hers."""
    place = hub.settings.run / ben.name / "server.sock"
    takes = f"""
import os, socket, time
ways = 0
end = time.monotonic() + 30
while time.monotonic() < end and not os.path.exists("/tmp/{ben.name}.over"):
    for try_ in (lambda: os.unlink({str(place)!r}), lambda: socket.socket(socket.AF_UNIX).bind({str(place)!r}),
                 lambda: os.rename({str(place.parent)!r}, {str(place.parent) + "x"!r}),
                 lambda: os.mkdir({str(place.parent)!r})):
        try: try_(); ways += 1
        except OSError: pass
print(ways)
"""
    words = [sys.executable, "-I", "-S", "-c", takes]
    over = Path(f"/tmp/{ben.name}.over")
    with subprocess.Popen(words, user=anna.name, group=anna.name, extra_groups=[], cwd="/", stdout=-1) as attack:
        os.kill(server_of(hub, ben), signal.SIGKILL)
        until(lambda: not ben.up(), "that the hub notices")
        over.touch()
        assert attack.communicate()[0] == b"0\n"
    over.unlink()
    ben.open()


@pytest.mark.slow
def test_a_link_in_place_of_the_socket_leads_root_nowhere(hub: RunningHub, ben: Learner) -> None:
    """The proxy is root's, and would open what the learner cannot: its own door for routes, say."""
    place = hub.settings.run / ben.name / "server.sock"
    moves = f"import os; os.rename({str(place)!r}, {str(place) + '.old'!r}); os.symlink(os.sys.argv[1], {str(place)!r})"
    words = [sys.executable, "-I", "-S", "-c", moves, str(hub.settings.proxy_socket)]
    subprocess.run(words, user=ben.name, group=ben.name, extra_groups=[], cwd="/", check=True)
    assert place.is_symlink()
    with ThreadPoolExecutor(30) as crowd:  # more than the proxy has connections open, from before
        answers = list(crowd.map(lambda _: ben.ask("GET", "api/kernels"), range(60)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "[]")}
    place.unlink()


@pytest.mark.slow
def test_what_a_learner_still_holds_counts_after_the_server_has_ended(hub: RunningHub, ben: Learner) -> None:
    """A file in memory that somebody else has open outlives all processes of the one who wrote it."""
    groups = [*Path("/sys/fs/cgroup").glob(f"**/hookscope/{hub.settings.run.name}/{ben.name}")]
    if not groups:
        pytest.skip("no cgroups here")
    ben.stop()
    until(lambda: not ben.up(), "the end of his server", 60)
    assert all(group.exists() for group in groups)
    ben.open()


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
