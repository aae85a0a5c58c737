"""Start a kernel whose output is saved, or compared with saved output."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

from traitlets.config import Config

__all__ = ["KERNEL_ENV", "open_over_files"]

# ipykernel names a cell after a temporary file with the process id in it, and that name reaches the saved output
# (warnings, file:line). One fixed name keeps two builds equal. The tests run the kernels with the same settings.
# One thread: last digits do not follow from how many cores there are, and two kernels do not wait for each other's.
KERNEL_ENV = {"IPYKERNEL_CELL_NAME": "<cell>", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def open_over_files(folder: str | None = None) -> Config:
    """Make a kernel manager talk to its kernel through files, not ports.

    A free port is found before the kernel takes it; where several start at once, another may take it in between, and
    the kernel dies with "Address already in use". The files are in `folder`, or where temporary files are; the manager
    takes them away unless its kernel died. Windows has no such files.
    """
    if os.name == "nt":
        return Config()
    name = f"kernel-{uuid.uuid4().hex[:16]}.json"  # short, as the path of a socket must be
    file = Path(folder or tempfile.gettempdir()) / name
    return Config({"KernelManager": {"transport": "ipc", "connection_file": str(file)}})
