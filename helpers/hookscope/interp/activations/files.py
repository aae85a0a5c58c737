"""Write files so that they are complete or absent, and check values from files that anybody can have made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import torch

__all__ = ["expect", "parse_dtype", "refuse_pipes", "write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name and then rename it, so that it is complete under its own name."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.part")  # each writer has its own
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    with suppress(OSError, AttributeError):  # Windows opens no folders
        opened = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def refuse_pipes(path: Path) -> None:
    """Refuse a pipe, because reading it might never end, and a device, because it has no end.

    Raises:
        ValueError: the path is a folder, a pipe, a socket or a device.

    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file but a folder, a pipe or a device. Pass the name of a file")


def expect(value: Any, *kinds: type) -> Any:
    """Return the value if its class is exactly one of these types; a bool is not an int here.

    Raises:
        TypeError: it is of another type.

    Example:
        >>> expect(True, int)
        Traceback (most recent call last):
        TypeError: found bool, expected int

    """
    if type(value) not in kinds:
        raise TypeError(f"found {type(value).__name__}, expected {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def parse_dtype(name: Any) -> torch.dtype:
    """Return the dtype with this name, without `torch.` before it.

    Raises:
        LookupError: there is none.

    Example:
        >>> parse_dtype("float32")
        torch.float32

    """
    return _DTYPES[expect(name, str)]


_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
