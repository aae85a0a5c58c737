"""What breaks in a lesson disturbs nobody else, and nothing is lost: on a real hub, with real users."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from hub.ending import processes_of
from hub.running import alive, taken
from hub.spawner import COURSE
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub, running_hub
from tests.shared import ROOT
from tests.shared.disks import a_small_disk

pytestmark = pytest.mark.slow  # a real hub, with users of this machine
HUB = {"MEMORY": "700M"}

SLOW_CELL = "import time\nfor step in range(20): time.sleep(1); print(step, flush=True)"
STEPS = [str(step) for step in range(20)]


def answers(hub: RunningHub) -> bool:
    try:
        return requests.get(f"{hub.url}/hub/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def test_a_port_that_is_taken_is_said_in_a_line(hub: RunningHub, tmp_path: Path) -> None:
    environment = hub.environment | {"HUB_STATE": str(tmp_path)}
    words = [sys.executable, "-m", "hub"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    port = hub.settings.port
    assert done.returncode
    proxy = hub.settings.proxy_pid.read_text()
    assert done.stderr.startswith(f"PORT={port}: node (process {proxy} of user root) is already listening"), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hub_that_is_killed_and_started_again_finds_what_runs(hub: RunningHub, anna: Learner) -> None:
    kernel = anna.kernel()
    with anna.connected(kernel, "lesson-1") as cells:
        cells.run("kept = 6 * 7")
        number = cells.send(SLOW_CELL)
        hub.process.send_signal(signal.SIGKILL)
        hub.process.wait()
        said, ended = cells.until_cut(number)  # the proxy ends with the hub
        until(lambda: not answers(hub), "the end of the proxy")
        hub.start()
    with anna.connected(kernel, "lesson-1") as cells:  # as JupyterLab's page does it
        said += "" if ended else cells.printed(number)
        assert said.split() == STEPS, "no line is missed"
        assert cells.run("print(kept)") == "42"
    assert anna.open().url.startswith(anna.base)
    signed_in_still = anna.web.get(f"{hub.url}/hub/home", timeout=60)
    assert signed_in_still.url.endswith("/hub/home")


def test_a_proxy_that_is_killed_comes_back(hub: RunningHub, anna: Learner) -> None:
    kernel = anna.kernel()
    with anna.connected(kernel, "lesson-1") as cells:
        cells.run("kept = 6 * 7")
        number = cells.send(SLOW_CELL)
        said = next(cells.heard(number))  # else the proxy might die with the cell in its hands
        before = alive(hub.settings.proxy_pid)
        os.kill(before, signal.SIGKILL)
        more, ended = cells.until_cut(number)
        assert not ended, "it was to be cut"
    until(lambda: alive(hub.settings.proxy_pid) not in (0, before) and answers(hub), "a new proxy", 30)
    until(lambda: anna.ask("GET", "api/kernels").status_code == 200, "the way to the server", 30)
    with anna.connected(kernel, "lesson-1") as cells:
        assert (said + more + cells.printed(number)).split() == STEPS
        assert cells.run("print(kept)") == "42"


def test_who_eats_memory_loses_that_kernel_and_nobody_else_anything(
    hub: RunningHub, anna: Learner, ben: Learner
) -> None:
    with ben.connected(ben.kernel()) as bens, anna.connected(anna.kernel()) as hers:
        bens.run("kept = 'of ben'")
        hers.run("kept = 'of another notebook'")
        kernel = anna.kernel()
        with anna.connected(kernel) as eats:
            eats.run("kept = 'lost'")
            said = eats.run("eaten = []\nwhile True: eaten.append(bytearray(b'x' * (10 << 20)))")
            assert "the kernel died" in said or "MemoryError" in said
        assert bens.run("print(kept)") == "of ben"
        assert hers.run("print(kept)") == "of another notebook"
    with anna.connected(kernel) as again:  # Jupyter has started it again
        assert "NameError" in again.run("print(kept)")
    assert answers(hub)


def test_processes_without_end_end_with_the_learner(hub: RunningHub, anna: Learner, ben: Learner) -> None:
    many = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(5,), daemon=True).start()"
    with ben.connected(ben.kernel()) as bens, anna.connected(anna.kernel()) as cells:
        assert "can't start new thread" in cells.run(many)
        assert bens.run("import subprocess; print(subprocess.run(['echo', 'mine'], capture_output=True).stdout)") == (
            "b'mine\\n'"
        )


def test_a_full_disk_of_one_learner_is_theirs_alone_and_loses_nothing(tmp_path: Path) -> None:
    with running_hub(tmp_path, learners=2) as hub:
        name, _ = hub.learners[0]
        home = hub.home(name)
        user = pwd.getpwnam(name)
        home.rename(home.with_suffix(".away"))
        with a_small_disk(home, "8m"), closing(hub):
            os.chown(home, user.pw_uid, user.pw_gid)
            home.chmod(0o700)
            anna = hub.learner(0)
            work = {"type": "file", "format": "text", "content": "what she wrote"}
            assert anna.ask("PUT", "api/contents/work.txt", json=work).status_code == 201
            with anna.connected(anna.kernel()) as cells:
                assert "No space left" in cells.run("open('big', 'wb').write(bytes(64 << 20))")
                assert cells.run("print(6 * 7)").startswith("42")  # and IPython says that it keeps no history
            failed = anna.ask("PUT", "api/contents/work.txt", json={**work, "content": "y" * (1 << 20)})
            assert failed.status_code >= 400
            assert (home / COURSE / "work.txt").read_text() == "what she wrote"
            # Even a new server starts on the full disk: there, room can be made.
            anna.stop()
            until(lambda: not list(processes_of(user.pw_uid)), "the end of the server", 60)
            anna.open()
            assert anna.ask("DELETE", "api/contents/big").status_code == 204
            with anna.connected(anna.kernel()) as cells:
                assert cells.run("print(open('work.txt').read())") == "what she wrote"
            ben = hub.learner(1)
            with ben.connected(ben.kernel()) as cells:
                assert cells.run("print(6 * 7)") == "42"


@contextmanager
def closing(hub: RunningHub) -> Iterator[None]:
    """Stop the hub in the end, or a disk of its learners would be busy."""
    try:
        yield
    finally:
        hub.command("stop")


def test_at_the_bell_all_get_in(tmp_path: Path) -> None:
    with running_hub(tmp_path, learners=30) as hub:
        begin = time.monotonic()

        def comes(place: int) -> float:
            person = hub.learner(place, 300)
            assert person.ask("GET", "api/contents/02_call_order.ipynb?content=0").status_code == 200
            return time.monotonic() - begin

        with ThreadPoolExecutor(30) as all_at_once:
            seconds = sorted(all_at_once.map(comes, range(30)))
        print(
            f"in after {seconds[0]:.0f} s, half of them after {seconds[15]:.0f} s, the last after {seconds[-1]:.0f} s"
        )
        assert hub.process.poll() is None


# Ignores what asks it to end, and is another process every few milliseconds.
HOPS = """trap '' TERM INT HUP; sleep 0.01; /bin/sh -c "$0" "$0" &"""


def test_a_clean_stop_leaves_learners_work_and_the_other_command_ends_all_of_it(tmp_path: Path) -> None:
    with running_hub(tmp_path, learners=1) as hub:
        anna = hub.learner(0)
        uid = pwd.getpwnam(anna.name).pw_uid
        kernel = anna.kernel()
        with anna.connected(kernel) as cells:
            cells.run(f"import subprocess, sys\nsubprocess.Popen(['/bin/sh', '-c', {HOPS!r}, {HOPS!r}])\nkept = 6 * 7")
        proxy = alive(hub.settings.proxy_pid)
        hub.process.send_signal(signal.SIGINT)
        assert hub.process.wait(60) == 0
        assert "Learners' servers keep running" in hub.said.read_text()
        until(lambda: not Path(f"/proc/{proxy}").exists(), "the end of the proxy")
        hub.start()
        with anna.connected(kernel) as cells:
            assert cells.run("print(kept)") == "42"
        said = hub.command("stop").stdout
        assert "stopped the proxy" in said
        assert "ended the processes of 1 learner" in said
        assert not list(processes_of(uid)), "what learners run has ended when the command says so"
        assert not hub.settings.run.exists()
        assert hub.command("stop").stdout == "No part of this hub is running.\n"


def test_while_the_hub_is_away_a_learner_can_take_none_of_its_places(tmp_path: Path) -> None:
    """What stood behind the proxy, and the guesses: a sign-in page of a learner's would collect passphrases."""
    port = next(port for port in range(700, 1000) if not taken("127.0.0.1", port))
    with running_hub(tmp_path, learners=2, teacher=True, GUESSES="on", PORT=str(port)) as hub:
        anna = hub.learner(0)
        run = hub.settings.run
        places = [hub.settings.hub_socket, hub.settings.proxy_socket, hub.settings.guesses_socket, run / "other.sock"]
        assert all(place.exists() for place in places[:3])
        with anna.connected(anna.kernel()) as cells:
            cells.run("kept = 1")
        for number in (signal.SIGINT, signal.SIGKILL):
            hub.process.send_signal(number)
            hub.process.wait(60)
            until(lambda: not answers(hub), "the end of the proxy")
            got = [place for place in places if as_user(anna.name, "import os; os.unlink(place)", place)]
            got += [place for place in places if as_user(anna.name, "socket.socket(socket.AF_UNIX).bind(place)", place)]
            assert got == []
            assert not as_user(anna.name, "socket.socket().bind(('127.0.0.1', int(place)))", port)
            hub.start()
            assert "Note: while the hub is not running" not in hub.said.read_text()


def as_user(name: str, code: str, place: object) -> bool:
    """Whether a learner can do something with a place."""
    words = [sys.executable, "-I", "-S", "-c", f"import os, socket, sys\nplace = sys.argv[1]\n{code}", str(place)]
    return subprocess.run(words, user=name, group=name, extra_groups=[], cwd="/", capture_output=True).returncode == 0
