"""Start a learner's JupyterLab: as that learner, in limits, at a socket that root then keeps."""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Float, Integer, Unicode

from hub.ending import end_all, erase
from hub.limits import Limits, Share
from hub.settings import HubError
from hub.sockets import at, keep

COURSE = "course"  # in a learner's home
LOG = ".hookscope-server.log"
_TRIES = 3  # to start a server
_COURSE_TAKES = 60  # seconds, at most, to bring the course up to date
_UPLOAD = 64 << 20  # bytes, in one piece; JupyterLab sends larger files in pieces of one megabyte
SERVER = [
    # Sockets in a folder of the learner's: at a port, everybody on the machine could hear what a kernel prints.
    "--KernelManager.transport=ipc",
    "--ServerApp.terminals_enabled=False",
    "--LabApp.extension_manager=readonly",
    "--ServerApp.quit_button=False",
    f"--ServerApp.max_body_size={_UPLOAD}",
    f"--ServerApp.max_buffer_size={_UPLOAD}",
    "--LanguageServerManager.autodetect=False",  # there is none, and each server would run npm twice to find out
]
"""What a learner's server is told."""


class NotStartedError(HubError):
    """A learner's server did not start."""

    @property
    def jupyterhub_message(self) -> str:
        """What JupyterHub shows to the learner."""
        return str(self)


class LearnersSpawner(LocalProcessSpawner):  # type: ignore[misc]  # it has no types
    """Starts servers of learners."""

    run = Unicode(help="the folder for sockets").tag(config=True)
    memory = Integer(1 << 30, help="bytes for each learner").tag(config=True)
    cpus = Float(1.0, help="processors for each learner").tag(config=True)
    processes = Integer(512, help="processes and threads for each learner").tag(config=True)
    at_once = Integer(3, help="how many servers start at the same time; the others wait").tag(config=True)
    idle = Integer(120 * 60, help="seconds of inactivity before kernels and servers are stopped").tag(config=True)
    told_why_no_cgroup: ClassVar[bool] = False
    _turns: ClassVar[asyncio.Semaphore | None] = None

    @property
    def share(self) -> Share:
        """The learner's share of the machine."""
        limits = Limits(int(self.memory), float(self.cpus), int(self.processes))
        return Share(f"{Path(str(self.run)).name}/{self.user.name}", limits)

    @property
    def _runtime(self) -> Path:
        """The learner's own folder, with sockets of kernels."""
        return Path(str(self.run), str(self.user.name))

    @property
    def _door(self) -> Path:
        """Where the hub and the proxy reach the server, in a folder that only root may enter."""
        return Path(str(self.run), "root", f"server-{self.user.name}.sock")

    @property
    def server(self) -> Any:
        """The server as the hub knows it; its database keeps of an address only what a port needs."""
        found = LocalProcessSpawner.server.fget(self)
        if found is not None and found.proto == "http+unix":
            found.connect_url = at(self._door)
        return found

    @server.setter
    def server(self, server: Any) -> None:
        LocalProcessSpawner.server.fset(self, server)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """What a learner's processes know: nothing of the hub but their own token."""
        # Not the account's shell, which lets nobody in: the `!` of a cell takes it.
        return {**super().user_env(env), "SHELL": "/bin/sh"}

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return what the new process does before it runs: limits, then the learner's rights, then a log."""
        become, log = self._become(name), Path(pwd.getpwnam(name).pw_dir) / LOG

        def begin() -> None:
            become()
            nothing = os.open(os.devnull, os.O_RDWR)
            said = nothing
            # Start even if the disk is full. O_NONBLOCK and O_NOFOLLOW: the learner can put a FIFO or a link here.
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
                said = os.open(log, flags, 0o600)
            for place, file in enumerate((nothing, said, said)):
                os.dup2(file, place)

        return begin

    def _become(self, name: str) -> Callable[[], None]:
        share, become = self._made_share(), super().make_preexec_fn(name)

        def begin() -> None:
            share.take()
            become()

        return begin

    async def start(self) -> str:
        """Bring the course up to date, start the server, and wait until it listens; a few at a time."""
        cls = type(self)
        if cls._turns is None:
            cls._turns = asyncio.Semaphore(int(self.at_once))
        user = pwd.getpwnam(self.user.name)
        await self._end_what_is_left()  # by one that died while no hub was there
        await self._bring_course(user)
        async with cls._turns:
            self.environment: dict[str, Any] = {**self.environment, "JUPYTER_RUNTIME_DIR": str(self._runtime)}
            # Without a copy, as when the disk was full the first time, there still is a home to make room in.
            has_course = (Path(user.pw_dir) / COURSE / "index.ipynb").is_file()
            self.notebook_dir = f"{user.pw_dir}/{COURSE}" if has_course else user.pw_dir
            self.default_url = "/lab/tree/index.ipynb" if has_course else "/lab"
            place = self._runtime / "server.sock"
            self.args: list[str] = [*SERVER, f"--ServerApp.sock={place}", *self._ends_when_idle()]
            self.ip, self.port = "127.0.0.1", 8888  # which Jupyter demands where there is a socket, and does not use
            for _ in range(_TRIES):
                erase(self._runtime)
                self._runtime.mkdir(mode=0o700)
                os.chown(self._runtime, user.pw_uid, user.pw_gid)
                await super().start()
                if await self._listening(place, user.pw_uid):
                    return at(self._door)
                await self.stop(now=True)
            # Said now: the hub itself would wait for minutes for a server that has ended.
            raise NotStartedError(
                f"The server of {user.pw_name} did not start, in {_TRIES} attempts. See {user.pw_dir}/{LOG}: "
                f"{last_line(Path(user.pw_dir) / LOG, user.pw_uid)}"
            )

    def _ends_when_idle(self) -> list[str]:
        """Jupyter's own way: idle kernels end, also those with a browser; then a server without kernels does."""
        look = max(10, min(300, int(self.idle) // 4))
        return [
            f"--MappingKernelManager.cull_idle_timeout={self.idle}",
            f"--MappingKernelManager.cull_interval={look}",
            "--MappingKernelManager.cull_connected=True",
            f"--ServerApp.shutdown_no_activity_timeout={self.idle}",
        ]

    async def stop(self, now: bool = False) -> None:
        """Stop the server, and end what it has left behind."""
        await super().stop(now)
        await self._end_what_is_left()

    async def poll_and_notify(self) -> int | None:
        """Look whether the server runs; where it has died, its kernels have nobody, and would keep their memory."""
        status: int | None = await super().poll_and_notify()
        if status is not None and not self.pending:  # else what is there is the next one
            await self._end_what_is_left()
        return status

    async def _end_what_is_left(self) -> None:
        user = pwd.getpwnam(self.user.name)
        if left := await asyncio.to_thread(end_all, user.pw_uid):
            self.log.error("Processes of %s could not be ended: %s", user.pw_name, left)
        self._door.unlink(missing_ok=True)
        # The cgroup stays, and with it counts what memory the learner still holds, as in files that others have open.

    async def _bring_course(self, user: pwd.struct_passwd) -> None:
        """Let the learner make or update the copy of the course."""
        words = [sys.executable, "-P", "-m", "hookscope_course", "course", "--to", f"{user.pw_dir}/{COURSE}"]
        environment = {"HOME": user.pw_dir, "USER": user.pw_name, "PATH": os.environ.get("PATH", os.defpath)}
        begun: Any = await asyncio.create_subprocess_exec(
            *words, env=environment, preexec_fn=self._become(user.pw_name), start_new_session=True, stdin=DEVNULL,
            stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(begun.communicate(), _COURSE_TAKES)
        except TimeoutError:
            begun.kill()
            await begun.wait()
            said = b"it took too long; perhaps a file there is not a notebook"
        tell = self.log.warning if begun.returncode else self.log.info
        for line in said.decode(errors="replace").splitlines()[:30]:
            tell("The course of %s: %s", user.pw_name, line[:300])

    async def _listening(self, place: Path, user: int) -> bool:
        """Wait until the learner's server listens; not if it has ended."""
        end = time.monotonic() + float(self.http_timeout)
        while await self.poll() is None:
            with suppress(OSError):
                return keep(place, self._door, user)
            if time.monotonic() > end:  # another attempt would only keep the others waiting
                raise NotStartedError(
                    f"The server of {self.user.name} did not listen in {self.http_timeout} s: this machine is "
                    "overloaded."
                )
            await asyncio.sleep(0.1)
        return False

    def _made_share(self) -> Share:
        share = self.share
        share.make()
        if share.instead and not type(self).told_why_no_cgroup:
            type(self).told_why_no_cgroup = True
            self.log.warning(
                "No cgroups (%s): the limit of %d MiB applies to each process of a learner, not to all of them "
                "together, and processor time is limited only by a lower priority.",
                share.instead,
                share.limits.memory >> 20,
            )
        return share


def last_line(log: Path, owner: int) -> str:
    """Return the last line of a learner's log, which is text from somebody else."""
    with suppress(OSError), os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_uid == owner:  # no link to a file of root's
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read(4096).decode(errors="replace").strip().splitlines()
            return "".join(filter(str.isprintable, lines[-1]))[:300] if lines else "nothing"
    return "nothing"
