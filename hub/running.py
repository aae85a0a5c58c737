"""Start the hub in this process, and end all that belongs to one."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hookscope_course.kernels import write_spec
from hub.kernels import serving
from hub.limits import Limits, Share, processes_of
from hub.ports import taken
from hub.settings import CONFIG, PROXY, HubError, Settings

_TRY = """
import importlib.util, hookscope_course.learner.copies, jupyterhub
missing = [name for name in ("torch", "jupyterlab") if not importlib.util.find_spec(name)]
if missing: raise ImportError(f"cannot read {missing[0]}")
"""
_NOBODY = 65534
PATIENCE = 20  # seconds until what does not end is killed


def run(settings: Settings) -> None:
    """Check that everything is there, and run the hub until it is stopped.

    Raises:
        HubError: something is not there, or learners could not reach it.

    """
    check(settings)
    if process := alive(settings.pid):
        raise HubError(f"A hub with its state in {settings.state} runs already (process {process}).")
    if port := taken(_listens(settings)):
        raise HubError(
            f"PORT={settings.port}: another program listens at port {port}. Choose another one, as in PORT="
            f"{settings.port + 10 if settings.port < 65000 else 8010}; the next three ports must be free, too."
        )
    prepare(settings)
    # What the hub, its proxy and its services make is for root alone; what a learner's server makes, for the learner.
    os.umask(0o077)
    os.chdir(settings.state)
    from hub.configuring import Classroom

    with suppress(KeyboardInterrupt):
        Classroom.launch_instance(["-f", str(CONFIG)])


def _listens(settings: Settings) -> list[tuple[str, int]]:
    """List where the hub will listen: not where its proxy and the guesses do that have outlived a hub that died."""
    pages, proxy, hub, guesses = range(settings.port, settings.port + 4)
    others = [("127.0.0.1", proxy), ("127.0.0.1", guesses), (settings.host or "0.0.0.0", pages)]
    return [("127.0.0.1", hub), *([] if alive(settings.proxy_pid) else others)]


def check(settings: Settings) -> None:
    """Find out now what would fail for every learner later.

    Raises:
        HubError: says what, and the way out.

    """
    if os.getuid() != 0:
        raise HubError("A hub starts servers of several users, and that takes root: sudo make hub")
    if not PROXY.exists():
        raise HubError("configurable-http-proxy is missing; `make hub` brings it, with npm.")
    with suppress(KeyError):
        if not grp.getgrnam(settings.group).gr_mem:
            raise KeyError
        check_interpreter()
        return
    raise HubError("Nobody could sign in yet: python -m hub add anna ben … makes accounts.")


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
    where = f"others may not enter {closed[0]}" if closed else said
    raise HubError(
        f"Learners cannot run {python}: {where}. Put this checkout into a folder that all can enter, as in /opt, and "
        "set it up with the system's own Python: sudo make hub PYTHON=/usr/bin/python3"
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
    for folder in (settings.run.parent, settings.run):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
    write_spec(settings.run / "share", settings.kernels)
    for path in (settings.run / "share", *(settings.run / "share").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def stop(settings: Settings) -> Iterator[str]:
    """End the hub, its proxy, and what learners run; yields what was done, a line each."""
    for what, process in (("hub", alive(settings.pid)), ("proxy", alive(settings.proxy_pid))):
        if process:
            _end([process])
            yield f"the {what} has ended (process {process})"
    # Their servers first, which end kernels in an orderly way; then what they have left behind.
    running = learners_servers(settings)
    if running:
        _end(running)
        yield f"{len(running)} learners' servers have ended"
    for folder in settings.run.glob("*/"):
        share = Share(f"{settings.run.name}/{folder.name}", Limits(0, 0, 0))
        left = share.processes()
        with suppress(KeyError):  # where there are no cgroups
            if folder.name in grp.getgrnam(settings.group).gr_mem:
                left |= set(processes_of(pwd.getpwnam(folder.name).pw_uid))
        _end(left)
        share.remove()
    for socket in (settings.kernels, settings.servers):
        if process := serving(socket):
            _end([process])
            yield f"the process that {socket.stem} were forked from has ended"
    for name in (settings.run.name, "."):  # the second stays as long as another hub is here
        Share(name, Limits(0, 0, 0)).remove()
    shutil.rmtree(settings.run, ignore_errors=True)


def learners_servers(settings: Settings) -> list[int]:
    """List the processes of this hub's learners that are their servers."""
    found = []
    for folder in settings.run.glob("*/"):
        with suppress(KeyError):
            for process in processes_of(pwd.getpwnam(folder.name).pw_uid):
                with suppress(OSError):
                    if b"jupyterhub.singleuser" in Path(f"/proc/{process}/cmdline").read_bytes():
                        found.append(process)
    return found


def alive(file: Path) -> int:
    """Return the number in a file, if a process of that number is there; else 0."""
    with suppress(OSError, ValueError):
        process = int(file.read_text())
        words = Path(f"/proc/{process}/cmdline").read_bytes()
        # Not another one, which got the number after a restart of the machine.
        if b"hub" in words or b"configurable-http-proxy" in words:
            return process
    return 0


def _end(processes: list[int] | set[int]) -> None:
    """End processes: ask, wait, kill."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        end = time.monotonic() + PATIENCE
        while any(map(_runs, processes)) and time.monotonic() < end:
            time.sleep(0.05)
        if not any(map(_runs, processes)):
            return


def _runs(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
