"""What torchrun runs, once per rank: a process that waits, and forks a child for each task."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import re
import signal
import socket
import struct
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import torch

from hookscope_course.paths import LESSONS

Pipe: TypeAlias = "Connection[bytes, bytes]"
HOST = "127.0.0.1"
WHERE, FINISH, STARTED = b"where", b"finish", b"started"
PRELOADED_MODULES = ("torch._dynamo", "hookscope")  # what takes seconds to import: before a run, not in it

if sys.platform == "win32":
    raise ImportError("`ranks` forks processes, and Windows cannot; use WSL")

TORCH = Path(torch.__file__).parent
OUR_FOLDERS = [Path(__file__).resolve().parents[2], LESSONS]
"""hookscope and hookscope_course; and the chapters, the checks of which call what the learner wrote."""
OTHER_FOLDERS = [*map(Path, {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}), *OUR_FOLDERS]


class RankAnswer(NamedTuple):
    """What one rank had to say: `kind` is "returned", "raised" or "died"."""

    kind: str
    value: Any = None
    printed: str = ""
    frames: Sequence[tuple[str, int, str]] = ()


class RankFiles(NamedTuple):
    """Where a child writes what it cannot send: its stack, and what C++ says."""

    stacks: Path
    stderr: Path

    @classmethod
    def of_rank(cls, rank: int) -> RankFiles:
        """The files of a rank, in the group's folder."""
        folder = Path(os.environ["RANKS_FOLDER"])
        return cls(folder / f"stacks{rank}", folder / f"said{rank}")

    def empty(self) -> None:
        """Forget the run before."""
        for file in self:
            file.write_text("")


def bytes_received() -> int:
    """Count the bytes that have come to this process from other ranks, as the operating system counts them.

    It asks each TCP connection of this process, but the ones to torchrun's store and to the notebook. With two ranks,
    this is what the other one has sent. Linux only.
    """
    tcp_info, offset = 11, 128  # struct tcp_info in linux/tcp.h: u64 tcpi_bytes_received
    others = {int(os.environ["MASTER_PORT"]), int(os.environ["RANKS_PORT"])}
    total = 0
    for path in [path for path in Path("/proc/self/fd").iterdir() if path.is_socket()]:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.getpeername()[1] not in others:
                info = connection.getsockopt(socket.IPPROTO_TCP, tcp_info, 256)
                total += struct.unpack_from("Q", info, offset)[0]
    return total


def _serve() -> None:
    """Wait for tasks, and fork a child for each. torchrun runs this, once per rank."""
    for module in PRELOADED_MODULES:
        import_module(module)
    connection: Pipe = Connection(socket.create_connection((HOST, int(os.environ["RANKS_PORT"]))).detach())
    connection.send_bytes(f"{os.environ['RANKS_TOKEN']} {os.environ['RANK']} {os.getpid()}".encode())
    fork = multiprocessing.get_context("fork")
    files = RankFiles.of_rank(int(os.environ["RANK"]))
    with contextlib.suppress(EOFError, ConnectionError):  # the notebook has gone, so there is no more to do
        while True:
            task = connection.recv_bytes()
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=_work, args=(task, sender, files), daemon=True)
            child.start()
            sender.close()
            connection.send_bytes(pickle.dumps((STARTED, child.pid)))
            try:
                _relay_answers(child, connection, receiver, files)
            finally:
                child.kill()
                child.join()
            connection.send_bytes(pickle.dumps((FINISH, None)))
    os._exit(0)


def _relay_answers(child: Any, connection: Pipe, receiver: Pipe, files: RankFiles) -> None:
    """Hand on what the child answers and say where it is, until told to finish.

    A child that has answered must not go yet: another rank may still be reading from it.
    """
    waiting = [connection, receiver]
    while True:
        ready = wait(waiting)
        if receiver in ready:
            connection.send_bytes(_receive_answer(child, receiver, files))
            waiting.remove(receiver)
        if connection in ready:
            if connection.recv_bytes() == FINISH:
                return
            connection.send_bytes(pickle.dumps((WHERE, _read_stack(child, files.stacks))))


def _receive_answer(child: Any, receiver: Pipe, files: RankFiles) -> bytes:
    try:
        return receiver.recv_bytes()
    except EOFError:
        child.join()
        code = child.exitcode
        how = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        stack = files.stacks.read_text(encoding="utf-8").rpartition("Fatal Python error")[2]
        return pickle.dumps(
            tuple(RankAnswer("died", how + _read_last_words(files.stderr), "", _find_learner_frames(stack)))
        )


def _read_last_words(stderr: Path) -> str:
    """What C++ wrote before it ended the process, in words that help; empty if it wrote nothing."""
    text = stderr.read_text(encoding="utf-8", errors="replace")
    if "op.preamble.length <= op.nbytes" in text:
        return (
            ". Another rank sent more than this one has room for: in a collective, all ranks need tensors of the same "
            "shape and dtype"
        )
    messages = re.findall(r"what\(\): +(.+)", text)
    return f". Its last words: {messages[-1][:300]}" if messages else ""


def _read_stack(child: Any, stacks: Path) -> tuple[bool, list[tuple[str, int, str]]]:
    """Ask a child whether it is inside torch, and at which of the learner's lines.

    This works inside a collective, too: the handler does not need the interpreter.
    """
    os.truncate(stacks, 0)
    os.kill(child.pid, signal.SIGUSR1)
    deadline, found = time.monotonic() + 1, ""
    while not found.count("\n\n") and "in _serve" not in found and time.monotonic() < deadline:
        time.sleep(0.05)
        found = stacks.read_text(encoding="utf-8")
    main_thread = re.findall(FRAME, found.rpartition("(most recent call first)")[2], re.MULTILINE)
    in_torch = bool(main_thread) and Path(main_thread[0][0]).is_relative_to(TORCH)
    return in_torch, _find_learner_frames(found)


FRAME = r'^  File "(.+)", line (\d+) in (.+)$'


def _find_learner_frames(stack: str) -> list[tuple[str, int, str]]:
    frames = re.findall(FRAME, stack, re.MULTILINE)[::-1]
    # What stands before our own first frame has started this process: Python, or a debugger.
    begin = next((index for index, (name, _, _) in enumerate(frames) if name == __file__), 0)
    return [(name, int(line), function) for name, line, function in frames[begin:] if _is_learner_code(name)]


def _work(task: bytes, sender: Pipe, files: RankFiles) -> None:
    """Do one task in a child: join the process group, call the function, send what came of it, wait for the end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()  # leave no orphan
    printed = io.StringIO()
    files.empty()
    with files.stacks.open("a") as stacks, files.stderr.open("a") as stderr, contextlib.redirect_stdout(printed):
        os.dup2(stderr.fileno(), 2)  # what C++ writes before it ends the process
        faulthandler.enable(file=stacks)
        faulthandler.register(signal.SIGUSR1, file=stacks)
        with contextlib.redirect_stderr(printed):
            try:
                answer = RankAnswer("returned", _call(task), printed.getvalue())
                message = cloudpickle.dumps(tuple(answer))
            except BaseException as error:  # whatever the learner's code does, SystemExit included
                frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
                frames = [frame for frame in frames if _is_learner_code(frame[0])]
                said_last = "".join(traceback.format_exception_only(error)).strip()
                message = pickle.dumps(tuple(RankAnswer("raised", said_last, printed.getvalue(), frames)))
        sender.send_bytes(message)
        while True:
            signal.pause()


def _call(task: bytes) -> Any:
    from torch import distributed

    number, timeout, worker, args = pickle.loads(task)
    # Every run has names of its own in torchrun's store: the ranks must not find each other's old addresses.
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    everybodys = distributed.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    store = distributed.PrefixStore(f"run {number}", everybodys)  # type: ignore[attr-defined]
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout),
    )
    return worker(*args)


def _is_learner_code(filename: str) -> bool:
    path = Path(filename)
    return not filename.startswith("<frozen") and not any(path.is_relative_to(folder) for folder in OTHER_FOLDERS)


if __name__ == "__main__":
    _serve()
