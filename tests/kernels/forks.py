"""A kernel that hears the processes it forks through a file: at a port, everybody on the machine could speak to it."""

from __future__ import annotations

import atexit
import os
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from ipykernel import kernelapp
from ipykernel.iostream import IOPubThread
from zmq.eventloop.zmqstream import ZMQStream

__all__ = ["Kernel"]


class _OverFile(IOPubThread):
    """Sends what cells print, and takes in what forks of the kernel print."""

    def __init__(self, socket: Any, file: str, **more: Any) -> None:
        self._address = f"ipc://{file}"
        super().__init__(socket, **more)  # type: ignore[no-untyped-call]

    def _setup_pipe_in(self) -> None:
        self._pipe_uuid = os.urandom(16)
        pipe_in = self.socket.context.socket(zmq.PULL)
        pipe_in.linger = 0
        pipe_in.bind(self._address)
        self._pipe_in = ZMQStream(pipe_in, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[Any, Any]:
        context = zmq.Context()  # a new one: that of the kernel does not work in a fork
        pipe_out = context.socket(zmq.PUSH)
        pipe_out.linger = 3000
        pipe_out.connect(self._address)
        return context, pipe_out


class Kernel(kernelapp.IPKernelApp):
    """Jupyter's kernel; where its other sockets are files, this one is, too."""

    def init_iopub(self, context: Any) -> None:
        """Set up what sends what cells print."""
        if self.transport == "ipc":
            file = f"{self.ip}-0"  # Jupyter counts its own from 1
            # Who manages the kernel takes away those that it counts, and not this one.
            atexit.register(Path(file).unlink, missing_ok=True)
            vars(kernelapp)["IOPubThread"] = partial(_OverFile, file=file)
        super().init_iopub(context)  # type: ignore[no-untyped-call]
