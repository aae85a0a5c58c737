"""Run a module of Python in a bubblewrap sandbox, ask it one question, and end all that it started. Linux only.

`bwrap` gives the process namespaces of its own: no network, no other process, and no file but those that are bound
here, read-only. `/` itself is never bound. What is not closed: a socket to the host of a virtual machine (AF_VSOCK),
the kernel's keys of the same session, and timing. The limit of memory holds for each process, not
for all of them together.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform == "win32":
    raise ImportError("answers are judged in a sandbox of Linux. On Windows, use WSL")

__all__ = ["Sandbox", "SandboxError", "ask"]

_NOBODY = 65534
_START, _END = 300, 60
"""Seconds that a process may take to load torch on a busy machine, and that the kernel may take to end it."""
_LONGEST = 100_000
_FOLDER = 256 << 20
_SETTINGS = ("ld.so.cache", "localtime", "nsswitch.conf", "hosts", "host.conf")
"""Of /etc: what loads libraries, tells the time and finds loopback by its name."""
_TOO_WIDE = {Path("/"), Path("/home"), Path("/root"), Path("/var"), Path("/tmp"), Path("/etc"), Path.home()}
_INSTALL = "apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
_UNCONFINED = "On a machine that you can throw away, you can grade without a sandbox: make grade UNCONFINED=yes"


class SandboxError(RuntimeError):
    """A sandbox cannot be run here, or nothing starts in it; the message says why and what to do."""


@dataclass(frozen=True)
class Sandbox:
    """What a process in a sandbox can read, and no more.

    Attributes:
        readable: folders and files that it can read, beside /usr; they are bound at their own names.
        hidden: folders that are empty for it, where they lie in one that is readable.
        shown: files that it can read in spite of `hidden`.

    """

    readable: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()

    def command(self, *more: str) -> list[str]:
        """Return the command line of bubblewrap, up to the program that runs in it.

        Root becomes nobody first: neither a number of processes nor what root owns in /proc and /dev holds root back.
        That takes another bubblewrap around, in which nobody can reach a Python that lies in root's home.

        Args:
            more: options of the outer bwrap.

        Raises:
            SandboxError: bubblewrap is not installed, or a readable folder is too wide.

        """
        programs = [shutil.which(name) for name in ("bwrap", "setpriv")]
        if programs[0] is None:
            raise SandboxError(f"submissions are graded in bubblewrap, which is missing: {_INSTALL}. {_UNCONFINED}")
        binds, words = [*self._list_binds()], list[str]()
        if os.getuid() == 0:
            # A namespace of processes, too: the inner one, of another user, would not die with the outer one.
            words += [programs[0], *more, "--unshare-pid", "--die-with-parent", "--cap-drop", "ALL"]
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            words += [*binds, "--dev-bind", "/dev", "/dev", "--dev-bind", "/proc", "/proc"]
            words += ["--dir", "/tmp", "--"]  # where the inner bwrap builds its root
            words += [programs[1] or "setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
        # No namespace of users inside: in one, an answer could mount folders of any size.
        words += [programs[0], *(() if words else more), "--unshare-all", "--unshare-user", "--disable-userns"]
        words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        for name, value in _make_environment("/tmp").items():
            words += ["--setenv", name, value]
        words += ["--size", f"{_FOLDER}", "--tmpfs", "/tmp", *binds, "--dev", "/dev"]
        words += ["--size", f"{_FOLDER}", "--tmpfs", "/dev/shm", "--proc", "/proc"]
        for name in ("/", "/dev", "/proc"):
            words += ["--remount-ro", name]
        return [*words, "--chdir", "/tmp", "--"]

    def _list_binds(self) -> Iterator[str]:
        yield from ("--ro-bind", "/usr", "/usr")
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            path = Path("/", name)
            if path.is_symlink():
                yield from ("--symlink", f"{path.readlink()}", f"{path}")
            elif path.is_dir():
                yield from ("--ro-bind", f"{path}", f"{path}")
        usr = Path("/usr")
        names = {path: path.resolve() for given in self.readable for path in (given, given.resolve())} | {usr: usr}
        closed = {
            path / folder.relative_to(real)
            for folder in map(Path.resolve, self.hidden)
            for path, real in names.items()
            if real in folder.parents
        }

        def reach(path: Path) -> Iterator[str]:
            """Make the folders on the way, which bwrap would close to others."""
            for folder in reversed(path.parents):
                inside = {folder, *folder.parents}
                if folder != folder.parent and (not inside & names.keys() or inside & closed):
                    yield from ("--perms", "0755", "--dir", f"{folder}")

        for name in _SETTINGS:
            yield from (*reach(Path("/etc", name)), "--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
        for path, real in sorted(names.items()):
            if _TOO_WIDE & {path, real}:
                raise SandboxError(f"Python is installed in {path}, which an answer must not read as a whole. Move it")
            if path != usr and usr not in path.parents:
                yield from (*reach(path), "--ro-bind", f"{real}", f"{path}")
        for folder in sorted(closed):
            yield from ("--perms", "0755", "--tmpfs", f"{folder}")
        for file in self.shown:
            yield from (*reach(file), "--ro-bind", f"{file.resolve()}", f"{file}")
        for folder in sorted(closed):
            yield from ("--remount-ro", f"{folder}")


def _make_environment(home: str) -> dict[str, str]:
    quiet = {"HOME": home, "TMPDIR": home, "MPLCONFIGDIR": home, "OMP_NUM_THREADS": "1"}
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **quiet}


def ask(module: str, question: bytes, seconds: float, sandbox: Sandbox | None) -> bytes | None:
    r"""Start a module, send it a question, and return its answer; then end it with all that it started.

    The module gets the number of a socket as its argument. It reads the question to its end, gets ready, sends a line
    `ready\n`, and then its answer.

    Args:
        module: its dotted name.
        question: of any length.
        seconds: for the answer, once it is ready.
        sandbox: None runs it without one.

    Returns:
        What was sent after the first line, at most a little over 100,000 bytes; None if it took too long.

    Raises:
        SandboxError: it did not get ready; says what it, or bubblewrap, wrote.

    """
    ours, theirs = socket.socketpair()  # a pipe could be opened again and read, by way of /proc
    with ours, tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="hookscope-") as scratch:
        with theirs:
            running = _SandboxProcess(module, theirs, errors.fileno(), Path(scratch), sandbox)
        try:
            ours.settimeout(_START)
            with suppress(OSError):  # it has ended; the error that it wrote says more
                ours.sendall(question)
                ours.shutdown(socket.SHUT_WR)
            first = _receive(ours, time.monotonic() + _START, up_to=b"\n")
            if first != b"ready\n":
                running.end()
                errors.seek(0)
                said = errors.read(100_000).decode("utf-8", "replace").strip()[-500:] or "nothing, and took too long"
                raise SandboxError(
                    f"no answer can be judged on this machine: {module} did not start. It said: {said}. {_UNCONFINED}"
                )
            return _receive(ours, time.monotonic() + seconds)
        finally:
            running.end()


class _SandboxProcess:
    """A process, and if it is in a sandbox, also the first process of its namespace."""

    def __init__(
        self, module: str, channel: socket.socket, errors: int, scratch: Path, sandbox: Sandbox | None
    ) -> None:
        number = channel.fileno()
        told, tells = os.pipe()
        words = sandbox.command("--info-fd", f"{tells}") if sandbox is not None else []
        try:
            self.process = subprocess.Popen(
                [*words, sys.executable, "-I", "-m", module, f"{number}"],
                pass_fds=(number, tells),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/" if sandbox is not None else scratch,
                env=_make_environment(f"{scratch}"),
                start_new_session=True,
            )
        finally:
            os.close(tells)
        self.is_shut_in = sandbox is not None
        self.first = -1
        with os.fdopen(told, "rb") as end:
            if self.is_shut_in:
                with suppress(ValueError, KeyError, ProcessLookupError):
                    self.first = os.pidfd_open(json.loads(end.read(10_000))["child-pid"])

    def end(self) -> None:
        """End all of it, and wait until it is gone: the kernel ends a namespace together with its first process."""
        if self.process.returncode is None:
            if not self.is_shut_in:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # the others die with their parent
            self.process.wait()
        if self.first >= 0:
            gone = select.select([self.first], [], [], _END)[0]
            os.close(self.first)
            self.first = -1
            if not gone:
                raise SandboxError(f"what an answer started has not ended {_END} seconds after it was killed")


def _receive(end: socket.socket, until: float, up_to: bytes = b"") -> bytes | None:
    """What comes before the other side closes, or the first bytes that are wanted; None if it takes too long."""
    text = b""
    while len(text) <= _LONGEST and (left := until - time.monotonic()) > 0:
        end.settimeout(left)
        try:
            part = end.recv(1 if up_to else 65_536)
        except TimeoutError:
            return None
        except OSError:
            part = b""
        text += part
        if not part or (up_to and text.endswith(up_to)):
            return text
    return text if len(text) > _LONGEST else None
