"""The process that is forked: it imports what kernels need, runs nothing of it, and waits at a Unix socket.

For the tests of one user alone: the socket stands in a folder that nobody else may enter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernels.launch import MESSAGE

if sys.platform == "win32":
    raise ImportError("kernels are forked from one process, which Windows cannot do")

__all__ = ["KernelServer", "Request", "become"]

LOADED = (
    "torch", "torchvision", "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "PIL.Image", "ipywidgets", "anywidget",
    "ipykernel.kernelapp", "ipykernel.ipkernel", "ipykernel.zmqshell",
    "hookscope", "hookscope.samples", "hookscope.widgets", "hookscope.widgets.picker",
    "hookscope_course.practice.side_effects", "hookscope_course.practice.chapter_exercises",
    "hookscope_course.practice.check_helpers", "hookscope_course.figures.hook_map", "tests.kernels.forks",
    "safetensors.torch", "PIL.JpegImagePlugin",
    "torch._dynamo", "torch.distributed.run", "cloudpickle",  # of the ranks of chapter 13
)  # fmt: skip
"""What is imported before the first fork; not pyplot, which asks as it is imported which IPython it is to draw for.
Importing torch starts no threads of its own; running it would, and a fork
has none of them."""


@dataclass
class Request:
    """What the process at the other end wants.

    Attributes:
        arguments: of the kernel, as in ["-f", connection_file]; or ["-m", module, …], and it is that module's turn.
        environment: all of it.
        folder: to run in.
        umask: as there.
        standard: file descriptors of its input, output and error output.

    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    standard: list[int]


class KernelServer:
    """Waits for requests, forks, and ends the forks that nobody stands for any more.

    Args:
        path: of the socket; made, and removed at the end.

    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._waiting = selectors.DefaultSelector()
        self._kernels: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> its process, who stands for it
        self._pid, self._ends = os.getpid(), False

    def run(self) -> Request | None:
        """Serve until SIGTERM or SIGINT. In a fork it returns the request: the fork goes on from there."""
        Path(self.path).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(self.path)
        os.chmod(self.path, 0o600)  # noqa: PTH101
        listening.listen(64)  # who comes now waits until all is imported
        print("ready", flush=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self._waiting.register(listening, selectors.EVENT_READ, self._accept)
        try:
            for name in LOADED:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()  # else the first collection in a fork writes to every page
            while not self._ends:
                # Endings first: Jupyter starts a kernel again on the ports of the one that it has just killed.
                for key, _ in sorted(self._waiting.select(1), key=lambda ready: ready[0].fileobj is listening):
                    if key.fd not in self._waiting.get_map():
                        continue
                    request: Request | None = key.data(key.fileobj)
                    if request is not None:
                        return request
        finally:
            if os.getpid() == self._pid:
                self._stop()
        return None

    def _end(self, number: int, frame: Any) -> None:
        self._ends = True

    def _stop(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        for kernel, _ in self._kernels.values():
            _kill(kernel)

    def _accept(self, listening: socket.socket) -> None:
        asking, _ = listening.accept()
        asking.setblocking(False)
        self._waiting.register(asking, selectors.EVENT_READ, self._hear)

    def _hear(self, asking: socket.socket) -> Request | None:
        """Read a request and fork; in the fork, return it."""
        self._waiting.unregister(asking)
        try:
            request = _read(asking)
            kernel = os.fork()
        except Exception as error:  # whatever a message is, kernels that run go on
            _tell(asking, refused=f"{type(error).__name__}: {error}")
            asking.close()
            return None
        if kernel == 0:
            self._forget_all(asking)
            return request
        for descriptor in request.standard:
            os.close(descriptor)
        ending = os.pidfd_open(kernel)
        self._kernels[ending] = kernel, asking
        self._waiting.register(ending, selectors.EVENT_READ, self._ended)
        self._waiting.register(asking, selectors.EVENT_READ, lambda _: self._left(ending))
        _tell(asking, kernel=kernel)
        return None

    def _ended(self, ending: int) -> None:
        """Reap a kernel that has ended, and say how."""
        kernel, standing = self._kernels.pop(ending)
        _, status = os.waitpid(kernel, 0)
        _tell(standing, status=os.waitstatus_to_exitcode(status))
        for file in (ending, standing):
            self._waiting.unregister(file)
        os.close(ending)
        standing.close()

    def _left(self, ending: int) -> None:
        """Nobody stands for a kernel any more (or says what there is no word for): it ends, with all it has started."""
        _kill(self._kernels[ending][0])
        self._ended(ending)

    def _forget_all(self, asking: socket.socket) -> None:
        """In a fork: close what belongs to other kernels."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for key in list(self._waiting.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        asking.close()
        self._waiting.close()
        self._kernels.clear()


def become(request: Request) -> None:
    """Go on, in a fork, as a Jupyter kernel or as the program that was asked for."""
    os.setsid()
    for place, descriptor in enumerate(request.standard):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    import numpy as np
    import torch

    # Else each fork would draw the same; Python sees to its own.
    np.random.seed()
    torch.default_generator.seed()
    if request.arguments[:1] == ["-m"]:
        _, module, *sys.argv[1:] = request.arguments
        paths = request.environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [request.folder, *filter(None, paths)]  # as `python -m` has it
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    import ipykernel_launcher
    import matplotlib as mpl

    from tests.kernels.forks import Kernel

    # matplotlib reads it when it is imported, which it was before this kernel had an environment.
    mpl.rcParams["backend"] = os.environ.get("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    sys.argv[:] = [str(ipykernel_launcher.__file__), *request.arguments]
    # 1: it is not to watch whoever forked it. The server ends it when nobody stands for it any more.
    Kernel.launch_instance([*request.arguments, "--IPKernelApp.parent_handle=1"])


def _read(asking: socket.socket) -> Request:
    message, standard, _, _ = socket.recv_fds(asking, MESSAGE, 3)
    try:
        wanted = json.loads(message)
        if len(standard) != 3:
            raise ValueError(f"{len(standard)} file descriptors came along, not 3")
        text = [*wanted["arguments"], *wanted["environment"], *wanted["environment"].values(), wanted["folder"]]
        if not all(isinstance(each, str) for each in text):
            raise ValueError("arguments and environment are not text")
        return Request(wanted["arguments"], wanted["environment"], wanted["folder"], int(wanted["umask"]), standard)
    except BaseException:
        for descriptor in standard:
            os.close(descriptor)
        raise


def _tell(standing: socket.socket, **said: object) -> None:
    with suppress(OSError):  # it may have gone
        standing.send(json.dumps(said).encode())


def _kill(kernel: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not have its group yet
        with suppress(ProcessLookupError):
            kill(kernel, signal.SIGKILL)
