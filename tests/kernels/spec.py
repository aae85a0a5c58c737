"""Tell Jupyter to take preloaded kernels, and keep their server for the length of a block."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kernels import launch

__all__ = ["RANKS", "preloaded", "write_spec"]

RANKS = "HOOKSCOPE_RANKS"
"""The variable with what `ranks` starts its processes by, in place of Python: a fork has torch loaded."""
ROOT = Path(__file__).parents[2]


def python(socket: Path) -> str:
    """Return the command that runs a module in a fork, as Python does without one."""
    return shlex.join([sys.executable, "-I", "-S", launch.__file__, str(socket)])


def write_spec(folder: Path, socket: Path) -> None:
    """Write a kernelspec named python3, which Jupyter prefers to its own where `folder` is on JUPYTER_PATH.

    Args:
        folder: gets kernels/python3/kernel.json.
        socket: where the server waits.

    """
    argv = [sys.executable, "-I", "-S", launch.__file__, str(socket), "-f", "{connection_file}"]
    # Its curve is that of ipykernel's own.
    metadata = {"debugger": True, "supported_encryption": ["curve"]}
    spec = {"argv": argv, "display_name": "Python 3", "language": "python", "metadata": metadata}
    spec["env"] = {RANKS: python(socket)}
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps(spec | {"kernel_protocol_version": "5.5"}, indent=1))


@contextmanager
def preloaded(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Serve kernels for the length of a block.

    Args:
        folder: for socket and kernelspec; its path must be short, as a socket's must (about 100 letters).
        environment: of the server, which counts for what Python reads as it starts, such as PYTHONHASHSEED.

    Yields:
        What the environment of Jupyter and of `ranks` needs.

    Raises:
        RuntimeError: the server did not start; holds what it said.

    """
    socket = folder / "kernels.sock"
    words = [sys.executable, "-m", "tests.kernels", str(socket)]
    server = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "ready\n":
            raise RuntimeError(f"no preloaded kernels: {server.stderr.read()}")
        write_spec(folder, socket)
        paths = [str(folder), *filter(None, [os.environ.get("JUPYTER_PATH")])]
        yield {"JUPYTER_PATH": os.pathsep.join(paths), RANKS: python(socket)}
    finally:
        server.terminate()
        server.wait()
        for pipe in (server.stdout, server.stderr):
            if pipe is not None:
                pipe.close()
