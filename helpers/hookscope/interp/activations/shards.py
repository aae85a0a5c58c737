"""Write samples of every output into one file, atomically, and read the header of such a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookscope.extras import optional_import
from hookscope.interp.activations.files import expect, refuse_pipes, write_whole
from hookscope.interp.activations.fingerprint import fingerprint_tensor

__all__ = ["DamagedError", "Shard", "can_be_written", "list_shards", "read_shard", "write_shard"]


class DamagedError(RuntimeError):
    """The files on disk differ from the ones that were written: a file was truncated, changed or deleted."""


@dataclass
class Shard:
    """The header of one file.

    Attributes:
        path: the file.
        first: the number of its first sample.
        batches: the number of samples and the input fingerprint of each batch.
        marks: the SHA-256 of each tensor.
        made: the torch version and the device.
        head: the SHA-256 of this header, as stored in the file.
        kinds: the shape (without the sample axis) and dtype of each tensor.

    """

    path: Path
    first: int
    batches: list[tuple[int, str]]
    marks: dict[str, str] = field(default_factory=dict)
    made: str = ""
    head: str = ""
    kinds: dict[str, tuple[list[int], torch.dtype]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return sum(number for number, _ in self.batches)


def list_shards(folder: Path) -> list[Path]:
    """List the shards of a folder in order, without unfinished ones, which end in `.part`."""
    # Length first, because 100000 comes after 99999.
    return sorted(folder.glob("[0-9]*.safetensors"), key=lambda path: (len(path.stem), path.stem))


def can_be_written(dtype: torch.dtype) -> bool:
    """Return whether safetensors can write tensors of this dtype.

    Example:
        >>> can_be_written(torch.complex128)
        False

    """
    with optional_import("collect"):
        from safetensors import SafetensorError
        from safetensors.torch import save
    try:
        save({"": torch.empty(0, dtype=dtype, device="cpu")})
    except (KeyError, SafetensorError, TypeError):
        return False
    return True


def write_shard(shard: Shard, tensors: Mapping[str, Tensor]) -> int:
    """Write a shard and return its size in bytes.

    Raises:
        OSError: the disk is full, for example. No part of the shard is left.

    """
    with optional_import("collect"):
        from safetensors.torch import save
    shard.marks = {name: fingerprint_tensor(tensor) for name, tensor in tensors.items()}
    about = {"first": shard.first, "batches": shard.batches, "marks": shard.marks, "made": shard.made}
    text = json.dumps(about)
    shard.head = hashlib.sha256(text.encode()).hexdigest()
    data = save(dict(tensors), {"hookscope": text, "sha256": shard.head})
    write_whole(shard.path, data)
    return len(data)


def read_shard(path: Path) -> Shard:
    """Read the header of a shard.

    Raises:
        DamagedError: the file is truncated, or its header was changed.

    """
    with optional_import("reading activations"):
        from safetensors import safe_open
    # The file can come from an untrusted source, so any exception becomes one readable error.
    try:
        refuse_pipes(path)
        with safe_open(path, framework="pt") as file, torch.device("cpu"):
            metadata, parts = dict(file.metadata() or {}), {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: part.get_shape() for name, part in parts.items()}
            kinds = {name: (shapes[name][1:], part[:0].dtype) for name, part in parts.items()}
    except Exception as error:
        raise DamagedError(f"{path} is truncated or unreadable ({error!s:.200}). {_FIX}") from error
    text = metadata.get("hookscope", "")
    if metadata.get("sha256") != hashlib.sha256(text.encode()).hexdigest():
        raise DamagedError(f"the header of {path} was changed after it was written. {_FIX}")
    try:
        about: dict[str, Any] = json.loads(text)
        batches = [(expect(number, int), expect(mark, str)) for number, mark in about["batches"]]
        marks = {name: expect(mark, str) for name, mark in expect(about["marks"], dict).items()}
        shard = Shard(
            path, expect(about["first"], int), batches, marks, expect(about["made"], str), metadata["sha256"], kinds
        )
    except Exception as error:
        raise DamagedError(f"the header of {path} was changed after it was written ({error!r:.200}). {_FIX}") from error
    if shapes.keys() != marks.keys():
        raise DamagedError(f"{path} does not hold the tensors that its header lists. {_FIX}")
    if any(number < 0 for number, _ in batches) or any(shape[0] != shard.samples for shape in shapes.values()):
        raise DamagedError(
            f"the tensors in {path} do not have the {shard.samples} samples that its header lists. {_FIX}"
        )
    return shard


_FIX = "Delete this file and all later shards, and call collect(...) again to write them"
