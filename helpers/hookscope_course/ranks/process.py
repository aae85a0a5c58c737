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

Pipe: TypeAlias = "Connection[bytes, bytes]"
HOST = "127.0.0.1"
WHERE, FINISH = b"where", b"finish"
WARM = ("torch._dynamo", "torch.distributed.fsdp", "hookscope")  # what takes seconds to import: before a run, not in it

OUR_FOLDERS = [Path(__file__).resolve().parents[2]]  # hookscope and hookscope_course
NOT_THE_LEARNERS = [*map(Path, {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}), *OUR_FOLDERS]


class Answer(NamedTuple):
    """What one rank had to say: `kind` is "returned", "raised" or "died"."""

    kind: str
    value: Any = None
    printed: str = ""
    frames: Sequence[tuple[str, int, str]] = ()


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
    for module in WARM:
        import_module(module)
    connection: Pipe = Connection(socket.create_connection((HOST, int(os.environ["RANKS_PORT"]))).detach())
    connection.send_bytes(f"{os.environ['RANKS_TOKEN']} {os.environ['RANK']} {os.getpid()}".encode())
    fork = multiprocessing.get_context("fork")
    stacks = Path(os.environ["RANKS_FOLDER"]) / f"stacks{os.environ['RANK']}"
    with contextlib.suppress(EOFError, ConnectionError):  # the notebook has gone, so there is no more to do
        while True:
            task = connection.recv_bytes()
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=_work, args=(task, sender, stacks), daemon=True)
            child.start()
            sender.close()
            try:
                _accompany(child, connection, receiver, stacks)
            finally:
                child.kill()
                child.join()
            connection.send_bytes(pickle.dumps((FINISH, None)))
    os._exit(0)


def _accompany(child: Any, connection: Pipe, receiver: Pipe, stacks: Path) -> None:
    """Hand on what the child answers and say where it is, until told to finish.

    A child that has answered must not go yet: another rank may still be reading from it.
    """
    waiting = [connection, receiver]
    while True:
        ready = wait(waiting)
        if receiver in ready:
            connection.send_bytes(_answer_of(child, receiver))
            waiting.remove(receiver)
        if connection in ready:
            if connection.recv_bytes() == FINISH:
                return
            connection.send_bytes(pickle.dumps((WHERE, _stack_of(child, stacks))))


def _answer_of(child: Any, receiver: Pipe) -> bytes:
    try:
        return receiver.recv_bytes()
    except EOFError:
        child.join()
        code = child.exitcode
        how = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return pickle.dumps(("died", how))


def _stack_of(child: Any, stacks: Path) -> list[tuple[str, int, str]]:
    """Ask a child where it is. This works inside a collective, too: the handler does not need the interpreter."""
    os.kill(child.pid, signal.SIGUSR1)
    deadline, found = time.monotonic() + 1, ""
    while not found.count("\n\n") and "in _serve" not in found and time.monotonic() < deadline:
        time.sleep(0.05)
        found = stacks.read_text(encoding="utf-8") if stacks.exists() else ""
    frames = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', found, re.MULTILINE)
    return [(name, int(line), function) for name, line, function in frames[::-1] if _is_learners(name)]


def _work(task: bytes, sender: Pipe, stacks: Path) -> None:
    """Do one task in a child: join the process group, call the function, send what came of it, wait for the end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()  # leave no orphan
    printed = io.StringIO()
    with stacks.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(printed):
        faulthandler.register(signal.SIGUSR1, file=file)
        with contextlib.redirect_stderr(printed):
            try:
                answer = Answer("returned", _call(task), printed.getvalue())
                message = cloudpickle.dumps(tuple(answer))
            except BaseException as error:  # whatever the learner's code does, SystemExit included
                frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
                frames = [frame for frame in frames if _is_learners(frame[0])]
                said = "".join(traceback.format_exception_only(error)).strip()
                message = pickle.dumps(tuple(Answer("raised", said, printed.getvalue(), frames)))
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


def _is_learners(filename: str) -> bool:
    path = Path(filename)
    return not filename.startswith("<frozen") and not any(path.is_relative_to(folder) for folder in NOT_THE_LEARNERS)


if __name__ == "__main__":
    _serve()
