"""Write some samples of every output into one file that is whole or not there, and read the head of such a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.saving import refuse_pipes, write_whole
from hookscope.captures.serialize import expect
from hookscope.extras import optional_import
from hookscope.interp.activations.marks import mark_of_tensor

__all__ = ["DamagedError", "Shard", "can_be_written", "read_shard", "shards_in", "write_shard"]


class DamagedError(RuntimeError):
    """What is on disk is not what was written: cut off, changed, or a part of it is missing."""


@dataclass
class Shard:
    """What one file has.

    Attributes:
        path: the file.
        first: number of its first sample.
        batches: of each batch in it how many samples it has, and the mark of the data that went into the model.
        marks: SHA-256 of each tensor.
        made: by which torch, on which device.
        head: SHA-256 of all this, as the file has it.
        kinds: shape of each tensor without the axis of samples, and dtype.

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
        """How many samples it has."""
        return sum(number for number, _ in self.batches)


def shards_in(folder: Path) -> list[Path]:
    """List the files of a folder in their order; those being written have another ending."""
    # By number: after 99999 comes 100000.
    return sorted(folder.glob("[0-9]*.safetensors"), key=lambda path: (len(path.stem), path.stem))


def can_be_written(dtype: torch.dtype) -> bool:
    """Try whether safetensors writes tensors of a dtype.

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
    """Write a shard, and return its bytes.

    Raises:
        OSError: the disk is full, for example; then nothing of this shard is there.

    """
    with optional_import("collect"):
        from safetensors.torch import save
    shard.marks = {name: mark_of_tensor(tensor) for name, tensor in tensors.items()}
    about = {"first": shard.first, "batches": shard.batches, "marks": shard.marks, "made": shard.made}
    text = json.dumps(about)
    shard.head = hashlib.sha256(text.encode()).hexdigest()
    data = save(dict(tensors), {"hookscope": text, "sha256": shard.head})
    write_whole(shard.path, data)
    return len(data)


def read_shard(path: Path) -> Shard:
    """Read the head of a shard, and make sure that the file is whole.

    Raises:
        DamagedError: it is not.

    """
    with optional_import("reading activations"):
        from safetensors import safe_open
    # A file may come from anybody: whatever it makes safetensors, torch or us raise, is said in a sentence.
    try:
        refuse_pipes(path)
        with safe_open(path, framework="pt") as file, torch.device("cpu"):
            told, parts = dict(file.metadata() or {}), {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: part.get_shape() for name, part in parts.items()}
            kinds = {name: (shapes[name][1:], part[:0].dtype) for name, part in parts.items()}
    except Exception as error:
        raise DamagedError(f"{path} is not whole ({error!s:.200}); {_WAY_OUT}") from error
    text = told.get("hookscope", "")
    if told.get("sha256") != hashlib.sha256(text.encode()).hexdigest():
        raise DamagedError(f"the head of {path} is not what was written; {_WAY_OUT}")
    try:
        about: dict[str, Any] = json.loads(text)
        batches = [(expect(number, int), expect(mark, str)) for number, mark in about["batches"]]
        marks = {name: expect(mark, str) for name, mark in expect(about["marks"], dict).items()}
        shard = Shard(
            path, expect(about["first"], int), batches, marks, expect(about["made"], str), told["sha256"], kinds
        )
    except Exception as error:
        raise DamagedError(f"the head of {path} is not what was written ({error!r:.200}); {_WAY_OUT}") from error
    if shapes.keys() != marks.keys():
        raise DamagedError(f"{path} has other tensors than it says; {_WAY_OUT}")
    if any(number < 0 for number, _ in batches) or any(shape[0] != shard.samples for shape in shapes.values()):
        raise DamagedError(f"{path} has other numbers of samples than it says; {_WAY_OUT}")
    return shard


_WAY_OUT = "delete it and all shards after it, and collect(...) makes them again"
