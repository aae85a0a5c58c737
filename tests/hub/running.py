"""A real hub with real users of the machine, for the length of a block."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hub.people import People
from hub.running import check_interpreter
from hub.settings import PROXY, HubError, Settings
from tests.hub.client import PATIENCE, Learner
from tests.shared import ROOT

_ANY = ssl._create_unverified_context()  # a test's certificate is nobody's


@dataclass
class RunningHub:
    """A hub that runs.

    Attributes:
        url: of its pages, without a / at the end.
        learners: name and passphrase of each.
        settings: of the hub.
        environment: in which it, and its commands, run.
        process: the hub's own.
        said: the file with what it prints.

    """

    url: str
    learners: list[tuple[str, str]]
    settings: Settings
    environment: dict[str, str]
    said: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start the hub, or start it again, and wait until it answers."""
        with self.said.open("ab") as said:
            words = [sys.executable, "-m", "hub"]
            self.process = subprocess.Popen(words, cwd=ROOT, env=self.environment, stdout=said, stderr=said)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process.poll() is None, self.said.read_text()
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/hub/health", timeout=5, context=_ANY):
                if not self.settings.guesses or self.settings.guesses_socket.exists():
                    return
            time.sleep(0.2)
        raise AssertionError(f"the hub did not come: {self.said.read_text()[-3000:]}")

    def command(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run `python -m hub …` for this hub."""
        return subprocess.run(
            [sys.executable, "-m", "hub", *words], cwd=ROOT, env=self.environment, input=given, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip

    def person(self, place: int) -> Learner:
        """One of the learners, with a browser that knows nothing yet."""
        return Learner(self.url, *self.learners[place], self.settings.tls_cert)

    def learner(self, place: int, seconds: float = PATIENCE) -> Learner:
        """One of the learners, signed in, with JupyterLab open."""
        made = self.person(place)
        made.sign_in()
        made.open(seconds)
        return made

    @property
    def log(self) -> str:
        """What stands in the hub's log."""
        return self.settings.log.read_text() if self.settings.log.exists() else ""

    def home(self, name: str) -> Path:
        """Where a learner's home is."""
        return self.settings.homes / name


def why_not() -> str:
    """Say why no hub can run here; empty if one can."""
    if os.getuid() != 0:
        return "only root can start servers of several users"
    if not PROXY.exists():
        return "configurable-http-proxy is not there: make hub-proxy"
    for program in ("useradd", "chpasswd", "userdel", "groupadd"):
        if not shutil.which(program):
            return f"this machine has no {program}"
    try:
        check_interpreter()
    except HubError as error:
        return str(error)
    return ""


def free_port() -> int:
    """Find a port that is free, and that the system gives to no connection."""
    for port in (secrets.randbelow(10_000) + 20_000 for _ in range(100)):
        with suppress(OSError), socket.socket() as trying:
            trying.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


@contextmanager
def running_hub(folder: Path, learners: int = 2, teacher: bool = False, **settings: str) -> Iterator[RunningHub]:
    """Run a hub with throw-away users; in the end nothing of them is left.

    Args:
        folder: for its state, and what it prints.
        learners: how many.
        teacher: whether the first of them is the teacher.
        settings: more of what `hub.settings` reads, as in MEMORY="512M".

    """
    reason = why_not()
    if reason:
        pytest.skip(reason)
    mark = secrets.token_hex(3)
    homes = Path("/var/tmp") / f"hub-{mark}"  # learners must get there, and pytest's folders are closed
    port = int(settings.pop("PORT", 0)) or free_port()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PORT": str(port),
        "HUB_STATE": str(folder / "state"), "HUB_HOMES": str(homes), "HUB_GROUP": f"hx{mark}", **settings,
    }  # fmt: skip
    if teacher:
        environment["TEACHER"] = f"l{mark}0"
    url = f"http{'s' if 'TLS_KEY' in settings else ''}://127.0.0.1:{port}"
    hub = RunningHub(url, [], Settings.of(environment), environment, folder / "said.txt")
    people = People(hub.settings)
    homes.mkdir(mode=0o755)
    try:
        for number in range(learners):
            name = f"l{mark}{number}"
            hub.learners.append((name, people.add(name)))
        hub.start()
        yield hub
    finally:
        hub.command("stop")
        for name in people.names():
            people.remove(name, with_home=True, now=True)
        subprocess.run(["groupdel", hub.settings.group], check=False, capture_output=True)
        shutil.rmtree(homes, ignore_errors=True)
