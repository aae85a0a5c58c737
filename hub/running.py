"""Start the hub in this process, and end all that belongs to one."""

from __future__ import annotations

import os
import pwd
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from hub.ending import end_all, erase, processes_of
from hub.limits import Share
from hub.settings import CONFIG, PROXY, HubError, Settings

_TRY = """
import importlib.util, hookscope_course.learner.copies, jupyterhub
missing = [name for name in ("torch", "jupyterlab") if not importlib.util.find_spec(name)]
if missing: raise ImportError(f"cannot read {missing[0]}")
"""
_NOBODY = 65534
_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
PATIENCE = 20  # seconds until what does not end is killed


def run(settings: Settings) -> None:
    """Check that everything is there, and run the hub until it is stopped.

    Raises:
        HubError: something is not there, or learners could not reach it.

    """
    check(settings)
    if process := alive(settings.pid):
        raise HubError(f"A hub that uses {settings.state} is already running (process {process}).")
    if whose := taken(settings.host, settings.port):
        raise HubError(
            f"PORT={settings.port}: {whose} is already listening there. Stop it, or choose another port, for example "
            f"PORT={settings.port + 10 if settings.port < 65000 else 8010}."
        )
    prepare(settings)
    if settings.port >= (first := int(_UNPRIVILEGED.read_text())):
        print(
            f"Note: while the hub is not running, any user of this machine can listen on port {settings.port} and show "
            f"a fake sign-in page. Only root can listen on ports below {first}, such as 80, or 443 with TLS.",
            file=sys.stderr,
        )
    # What the hub, its proxy and its services make is for root alone; what a learner's server makes, for the learner.
    os.umask(0o077)
    os.chdir(settings.state)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as the proxy does, which has two for one of the hub's
    from hub.configuring import Classroom

    with suppress(KeyboardInterrupt):
        Classroom.launch_instance(["-f", str(CONFIG)])


def taken(host: str, port: int) -> str:
    """Say which process listens at a port, as in "nginx (process 812 of user www-data)"; empty if none does."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended count for nothing
        with suppress(OSError):  # also of an address that is not this machine's: the proxy says so
            trying.bind((host, port))
            return ""
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port:
            with suppress(psutil.Error, TypeError):
                process = psutil.Process(each.pid)
                return f"{process.name()} (process {each.pid} of user {process.username()})"
            return "another program"
    return ""


def check(settings: Settings) -> None:
    """Find out now what would fail for every learner later.

    Raises:
        HubError: says what, and the way out.

    """
    if os.getuid() != 0:
        raise HubError("The hub starts servers for several users, so it must run as root: sudo make hub")
    if not PROXY.exists():
        raise HubError("configurable-http-proxy is missing. `make hub` installs it with npm.")
    if not settings.learners:
        raise HubError("Nobody can sign in yet. Create accounts first: python -m hub add anna ben …")
    check_interpreter()


def check_interpreter(python: str = sys.executable) -> None:
    """Try whether learners can run Python, and read the course.

    Raises:
        HubError: they cannot; names the folder that lets nobody in, if it is that.

    """
    words = [python, "-P", "-c", _TRY]
    try:
        done = subprocess.run(
            words, user=_NOBODY, group=_NOBODY, extra_groups=[], cwd="/", env={"HOME": "/nonexistent"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
        said = done.stderr.strip().rpartition("\n")[2]
    except PermissionError as error:
        said = str(error)
    closed = [str(part) for part in _on_the_way(Path(python)) if not part.stat().st_mode & 0o001]
    where = f"other users cannot open {closed[0]}" if closed else said
    raise HubError(
        f"Learners cannot run {python}: {where}. Put this checkout into a folder that everyone can open, such as "
        "/opt, and set it up with the system's own Python: sudo make hub PYTHON=/usr/bin/python3"
    )


def _on_the_way(path: Path) -> Iterator[Path]:
    """List the folders that lead to a file, and to what it is a link to."""
    while True:
        yield from reversed(path.absolute().parents)
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def prepare(settings: Settings) -> None:
    """Make the folders: what the hub remembers for root alone, the sockets where learners may pass."""
    settings.state.mkdir(parents=True, exist_ok=True)
    settings.state.chmod(0o700)
    for folder, mode in (
        (settings.run.parent, 0o711), (settings.run, 0o711), (settings.private, 0o700)
    ):  # fmt: skip
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    if not settings.accounts_token.exists():
        with os.fdopen(os.open(settings.accounts_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def stop(settings: Settings) -> Iterator[str]:
    """End the hub, its proxy, and what learners run; yields what was done, a line each."""
    for what, process in (("hub", alive(settings.pid)), ("proxy", alive(settings.proxy_pid))):
        if process:
            _end(process)
            yield f"stopped the {what} (process {process})"
    ended, left = 0, []
    for folder in settings.run.glob("*/"):
        if folder.name in settings.learners:
            user = pwd.getpwnam(folder.name).pw_uid
            ended += any(processes_of(user))
            left += end_all(user)
        Share(f"{settings.run.name}/{folder.name}").remove()
    if ended:
        yield f"ended the processes of {ended} {'learner' if ended == 1 else 'learners'}"
    if left:
        yield f"these processes could not be ended: {', '.join(map(str, left))}; `ps -o user,args -p` shows them"
    for name in (settings.run.name, "."):  # the second stays as long as another hub is here
        Share(name).remove()
    erase(settings.run)


def alive(file: Path) -> int:
    """Return the number in a file, if a process of that number is there; else 0."""
    with suppress(OSError, ValueError):
        process = int(file.read_text())
        words = Path(f"/proc/{process}/cmdline").read_bytes()
        # Not another one, which got the number after a restart of the machine.
        if b"hub" in words or b"configurable-http-proxy" in words:
            return process
    return 0


def _end(process: int) -> None:
    """End one of root's own processes: ask, wait, kill."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(psutil.NoSuchProcess):
            its, end = psutil.Process(process), time.monotonic() + PATIENCE
            its.send_signal(number)
            while its.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
                time.sleep(0.05)
