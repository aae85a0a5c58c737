"""Start the processes with torchrun, send them work, and say what became of it.

    group = ranks.start(2)            # torchrun starts two processes; they keep torch imported and wait
    group.run(worker, images)         # a list: what worker(images) returned on rank 0, what on rank 1
    group.stop()

In `worker`, torch's process group is up: `torch.distributed.get_rank()` tells which of the two it is. What it prints
comes back with the rank in front. For each `run`, each of the waiting processes forks a child that does the work. So
every run starts afresh, and a child that raises, dies or hangs takes nothing else along. No run outlives its time.

This needs `fork`, so it works on Linux, and not on Windows (there: in WSL). It has not been tried on macOS.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import linecache
import os
import pickle
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from hookscope_course.ranks.process import FINISH, HOST, STARTED, WHERE, RankAnswer, bytes_received
from hookscope_course.ranks.process_state import Idleness

__all__ = ["Group", "RankError", "bytes_received", "start"]

ENDED_OUTSIDE = "its process was ended from outside"
START_SECONDS = (
    110.0  # seconds for torchrun to come up, less than a cell may take; a busy machine needs 50, an idle one 12
)
GRACE_SECONDS = 1.0  # seconds the other ranks get to report, once one has failed
STUCK_SECONDS = (
    6.0  # seconds in which all that have not returned do nothing but wait, inside torch: they wait for each other
)
REPLY_SECONDS = 10.0  # seconds for a waiting process to answer, and for torchrun to end; both take less than one


class RankError(RuntimeError):
    """A run did not end well on some rank, or the processes did not start; the message says which, where and why."""

    def _render_traceback_(self) -> list[str]:
        """Show in a notebook the message, without the way through this module."""
        return [f"{type(self).__name__}: {self}"]


class Group:
    """Some waiting processes that torchrun has started; made by `start`."""

    def __init__(self, count: int) -> None:
        if not hasattr(os, "fork"):
            raise RankError("`ranks` forks processes, and this system cannot; on Windows, use WSL")
        self.count, self.runs = count, 0
        self._begin()

    def _begin(self) -> None:
        """Let torchrun start the processes."""
        with socket.create_server((HOST, 0)) as server:  # a free port
            self.port = int(server.getsockname()[1])
        self.folder = Path(tempfile.mkdtemp(prefix="ranks"))
        self.token = secrets.token_hex()
        self.server = socket.create_server((HOST, 0))
        self.connections: list[Connection[bytes, bytes]] = []
        self.pids: list[int] = []
        self.command = f"torchrun --nproc-per-node={self.count} -m hookscope_course.ranks.process"
        options = [f"--master-addr={HOST}", f"--master-port={self.port}", f"--local-addr={HOST}"]
        options += [f"--log-dir={self.folder}", f"--nproc-per-node={self.count}", "--no-python"]
        options += [*_get_python_command(), "-m", "hookscope_course.ranks.process"]
        loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
        settings = {
            "RANKS_PORT": str(self.server.getsockname()[1]),
            "RANKS_STORE_PORT": str(self.port),
            "RANKS_TOKEN": self.token,
            "RANKS_FOLDER": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GLOO_SOCKET_IFNAME": loopback,
        }
        with (self.folder / "log").open("wb") as log:
            self.torchrun = subprocess.Popen(
                [*_get_python_command(), "-m", "hookscope_course.ranks.torchrun", *options],
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt of the notebook is ours to handle, not torchrun's
            )
        atexit.register(self.stop)

    def __repr__(self) -> str:
        return f"{self.count} processes on this machine, started by `{self.command}`"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        """Whether the processes can take a run, or are about to."""
        return self.torchrun.poll() is None and self.folder.exists()

    def run(self, worker: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
        """Call `worker(*args)` on every rank, in a fresh process each, and wait until all have returned.

        If the processes have ended, they are started again first.

        Args:
            worker: a function, from a cell or a module; with it go the functions, classes and values that it uses.
            args: what it is called with, the same on each rank: numbers, tensors, anything that pickles.
            timeout: seconds until those that have not returned are killed.

        Returns:
            What each rank returned, rank 0 first. What they printed is printed, with the rank in front.

        Raises:
            RankError: a rank raised, died, did not return in time, or waited for a rank that did not come; or torchrun
                did not start.

        Example:
            >>> group.run(torch.distributed.get_rank)  # doctest: +SKIP
            [0, 1]

        """
        self.restart()
        self._wait_until_up()
        self.runs += 1
        task = cloudpickle.dumps((self.runs, timeout, worker, args))
        answers: dict[int, RankAnswer] = {}
        stuck = False
        try:
            for connection in self.connections:
                connection.send_bytes(task)
            stuck = self._gather(answers, time.monotonic() + timeout)
        except ConnectionError:
            pass  # a waiting process is gone; _finish says which
        finally:
            still_at = self._finish(answers)
        for rank, answer in sorted(answers.items()):
            for line in answer.printed.splitlines():
                print(f"rank {rank}: {line}")
        if still_at or _any_failed(answers):
            raise RankError(_explain_failure(answers, still_at, timeout, stuck=stuck))
        return [answers[rank].value for rank in range(self.count)]

    def restart(self) -> None:
        """Start the processes again if they have ended."""
        if not self.is_alive:
            self.stop()
            self._begin()

    def stop(self) -> None:
        """End all processes. A stopped group can be stopped again, and a run starts it again."""
        atexit.unregister(self.stop)
        self.server.close()
        for connection in self.connections:
            connection.close()  # at the end of its connection, each waiting process ends itself and its child
        self.connections = []
        self.torchrun.terminate()
        try:
            self.torchrun.wait(REPLY_SECONDS)
        except subprocess.TimeoutExpired:
            self.torchrun.kill()
            self.torchrun.wait()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):  # mostly there is nobody any more
                if sys.platform != "win32":
                    os.killpg(pid, signal.SIGKILL)
        self.pids = []  # later, these numbers may be those of others
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        """Accept one connection from each process that torchrun starts."""
        deadline = time.monotonic() + START_SECONDS
        arrived: dict[int, tuple[Connection[bytes, bytes], int]] = {}
        self.server.settimeout(0.2)
        while not self.connections:
            try:
                accepted, _ = self.server.accept()
            except TimeoutError:
                if self.torchrun.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
                    self.stop()
                    raise RankError(explain_failed_start(log, self.port)) from None
                continue
            accepted.setblocking(True)
            connection: Connection[bytes, bytes] = Connection(accepted.detach())
            token, rank, pid = connection.recv_bytes().decode().split() if connection.poll(5) else ("", "", "")
            if hmac.compare_digest(token, self.token):
                arrived[int(rank)] = connection, int(pid)
            if len(arrived) == self.count:
                self.connections = [arrived[rank][0] for rank in range(self.count)]
                self.pids = [arrived[rank][1] for rank in range(self.count)]

    def _gather(self, answers: dict[int, RankAnswer], deadline: float) -> bool:
        """Collect answers until all are there, or the deadline, or a moment after the first that failed.

        Returns:
            Whether it ended early, since those that have not answered wait for a rank that does not come.

        """
        children: dict[int, int] = {}
        idleness = Idleness()
        while (silent := self._list_silent(answers)) and (left := deadline - time.monotonic()) > 0:
            for connection in wait([self.connections[rank] for rank in silent], min(left, 0.5)):
                rank = self.connections.index(connection)  # type: ignore[arg-type]
                try:
                    kind, value = self._receive(rank, answers)
                except (EOFError, ConnectionError):
                    answers[rank] = RankAnswer("died", ENDED_OUTSIDE)
                else:
                    if kind == STARTED:
                        children[rank] = value
                if rank in answers and answers[rank].kind != "returned":
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if len(self._list_silent(answers)) < len(silent):
                idleness.forget()  # who has waited for the rank that has just come may need a moment to wake up
            idle = {rank: idleness.measure(pid) for rank, pid in children.items() if rank not in answers}
            if idle.keys() >= set(self._list_silent(answers)) and min(idle.values(), default=0) > STUCK_SECONDS:
                stacks = self._ask(list(idle), WHERE, answers)
                if all(in_torch for in_torch, _ in stacks.values()) and not _any_failed(answers) and stacks:
                    return bool(self._list_silent(answers))
                idleness.forget()
        return False

    def _list_silent(self, answers: dict[int, RankAnswer]) -> list[int]:
        return [rank for rank in range(self.count) if rank not in answers]

    def _finish(self, answers: dict[int, RankAnswer]) -> dict[int, str]:
        """End the children, and say where those that have not answered were; end everything if that fails."""
        silent = self._list_silent(answers)
        try:
            # First ask all, then end all: when one child ends, the others no longer are where they were.
            lines = {rank: _format_frames(frames) for rank, (_, frames) in self._ask(silent, WHERE, {}).items()}
            self._ask(range(self.count), FINISH, {})
        except (EOFError, ConnectionError):
            for rank in silent:
                answers[rank] = RankAnswer("died", ENDED_OUTSIDE)
            self.stop()
            return {}
        return lines

    def _ask(self, ranks: Iterable[int], order: bytes, answers: dict[int, RankAnswer]) -> dict[int, Any]:
        """Give an order to the waiting processes of some ranks, and collect what they say to it.

        Before it, there may be an answer to the run; that goes into `answers`.
        """
        for rank in ranks:
            self.connections[rank].send_bytes(order)
        replies = {}
        for rank in ranks:
            while rank not in replies:
                if not self.connections[rank].poll(REPLY_SECONDS):
                    raise EOFError
                kind, value = self._receive(rank, answers)
                if kind == order:
                    replies[rank] = value
        return replies

    def _receive(self, rank: int, answers: dict[int, RankAnswer]) -> tuple[bytes | None, Any]:
        """Take the next message of a waiting process: an answer to the run, which is noted, or a kind and a value."""
        kind, *values = pickle.loads(self.connections[rank].recv_bytes())
        if isinstance(kind, bytes):
            return kind, *values
        answers[rank] = RankAnswer(kind, *values)
        return None, None


_group: Group | None = None


def start(count: int = 2) -> Group:
    """Have torchrun start processes, and return at once; they are up some ten seconds later, and `run` waits for that.

    Args:
        count: how many processes.

    Returns:
        A Group. One that is already there with as many processes is returned again; if its processes have ended, they
        are started again.

    Raises:
        RankError: the system cannot fork.

    """
    global _group
    if _group and _group.count == count:
        _group.restart()
        return _group
    if _group:
        _group.stop()
    _group = Group(count)
    return _group


def explain_failed_start(log: str, port: int) -> str:
    if "EADDRINUSE" in log or "Address already in use" in log:
        return f"port {port} was taken by another program just now; run this cell again"
    errors = [line for line in log.splitlines() if re.match(r"\w*(Error|Exception)\b", line)]
    return "torchrun did not start the processes: " + (errors[-1] if errors else log[-500:] or "it said nothing")


def _any_failed(answers: dict[int, RankAnswer]) -> bool:
    return any(answer.kind != "returned" for answer in answers.values())


def _explain_failure(answers: dict[int, RankAnswer], still_at: dict[int, str], timeout: float, *, stuck: bool) -> str:
    """Put into words what each rank did that should not be; causes first, and what several did only once."""
    causes: dict[str, list[int]] = {}
    effects: dict[str, list[int]] = {}
    for rank, answer in sorted(answers.items()):
        if answer.kind == "raised" and "by peer" in answer.value:  # gloo's words, with addresses in them
            effects.setdefault(f"then lost the connection{_format_frames(answer.frames)}", []).append(rank)
        elif answer.kind != "returned":
            causes.setdefault(f"{answer.kind}: {answer.value}{_format_frames(answer.frames)}", []).append(rank)
    silent = f"did not return within {timeout:g} s"
    if stuck:
        silent = f"waited {STUCK_SECONDS:g} s for a rank that did not come"
    elif causes:
        silent = "did not return"
    for rank, lines in still_at.items():
        effects.setdefault(f"{silent}; its process was ended{lines}", []).append(rank)
    if still_at and answers and not causes:
        effects["had returned by then"] = sorted(answers)
    who = {1: "rank {}", 2: "ranks {} and {}"}
    statements = [*causes.items(), *effects.items()]
    return "\n".join(f"{who.get(len(ranks), 'ranks {}, {}, …').format(*ranks)} {what}" for what, ranks in statements)


def _format_frames(frames: Iterable[tuple[str, int, str]]) -> str:
    """Name the learner's own lines, outermost first."""
    lines = []
    for filename, number, function in frames:
        code = linecache.getline(filename, number).strip()
        lines.append(f"\n  in {function}, line {number}" + (f": `{code}`" if code else ""))
    return "".join(lines)


def _get_python_command() -> list[str]:
    """Return what starts a process: Python, or what the variable names, as this project's tests do to save imports."""
    return shlex.split(os.environ.get("HOOKSCOPE_RANKS", "")) or [sys.executable]
