"""Read collected activations from disk, one sample at a time or as one tensor."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hookscope.extras import optional_import
from hookscope.interp.activations.files import expect, parse_dtype, refuse_pipes
from hookscope.interp.activations.fingerprint import fingerprint_tensor
from hookscope.interp.activations.shards import DamagedError, Shard, list_shards, read_shard
from hookscope.layers.suggestions import not_found
from hookscope.pictures import Result
from hookscope.pictures.words import count_text, format_bytes

__all__ = ["ABOUT", "Activations", "Column", "DamagedError", "encode_description"]

ABOUT = "collected.json"
_OPEN = 64  # files open at once; operating systems allow a few hundred


class Activations(Result, Dataset[dict[str, Tensor]]):
    """The activations that `collect` wrote to a folder, as a `torch.utils.data.Dataset`.

    - ``stored[5]`` is sample 5: a dict from name to tensor. Samples are in the order of the loader.
    - ``stored["conv"]`` is a `Column`: ``stored["conv"][10:20]`` reads ten samples, ``stored["conv"][:]`` all.
    - A name is the layer name, then `#2` for a second call, then `/` and the part if there are several tensors:
      `"rnn/0"`. The output of the whole model is `"(root)"`, or `""`.

    Files are memory-mapped, so a sample is read only when you index it. Limits: https://hookscope.github.io/hookscope/limits/collect.html

    Args:
        folder: the folder.
        resuming: accept a folder that has lost its last shards.

    Attributes:
        folder: the folder.
        names: the names of the tensors.
        complete: False if `collect` was interrupted before the loader ended.
        about: the arguments of `collect`, and the shapes and dtypes.
        shards: the header of each file.

    Raises:
        FileNotFoundError: the folder contains no collected activations.
        DamagedError: a file is truncated or missing, or its header was changed. `check` compares the tensors, too.

    """

    def __init__(self, folder: str | Path, *, resuming: bool = False) -> None:
        if not isinstance(folder, (str, Path)):
            raise TypeError(
                f"folder is of type {type(folder).__name__}. Pass the path that you passed to collect as to="
            )
        self.folder = Path(folder)
        about = self.folder / ABOUT
        if not about.is_file():
            raise FileNotFoundError(f"nothing was collected in {self.folder}, because it has no {ABOUT}")
        self.about: dict[str, Any] = _read(about)
        self.complete = self.about["samples"] is not None
        self.names: list[str] = list(self.about["tensors"])
        self.shards: list[Shard] = []
        self._starts: list[int] = []
        self._files: dict[int, Any] = {}
        tensors, samples = self.about["tensors"].items(), 0
        kinds = {name: (like["shape"], parse_dtype(like["dtype"])) for name, like in tensors}
        for path in list_shards(self.folder):
            shard = read_shard(path)
            if shard.kinds != kinds:
                raise DamagedError(
                    f"{path} does not hold the tensors that {ABOUT} lists, so it belongs to another folder. Move it "
                    "away"
                )
            if shard.first != samples:
                raise DamagedError(
                    f"{path} begins with sample {shard.first:,}, not {samples:,}, so a shard before it is missing. "
                    "Put that "
                    "shard back, or delete this one and all later ones and call collect(...) again"
                )
            self.shards.append(shard)
            self._starts.append(samples)
            samples += shard.samples
        self._samples = samples
        if self.complete and samples != self.about["samples"]:
            if not resuming or samples > self.about["samples"]:
                raise DamagedError(
                    f"{self.folder} has only {samples:,} of {self.about['samples']:,} samples, because the last "
                    "shards are "
                    "missing. Call collect(...) again with the same arguments to write them"
                )
            self.complete = False

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, which: int | str) -> Any:
        """Return the sample with this number, or the `Column` with this name.

        Raises:
            IndexError: there is no such sample.
            LayerNotFoundError: there is no such column; suggests the closest names.

        """
        if isinstance(which, str):
            if (of_root := f"(root){which}") in self.names:
                which = of_root
            if which not in self.names:
                raise not_found(
                    self.names, which, f"no {which!r} in {self.folder}, which has {_format_names(self.names)}"
                )
            return Column(self, which)
        return {name: self.column(name)[which] for name in self.names}

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        column: Column = self[name]
        return column

    @property
    def nbytes(self) -> int:
        """The size of all samples in bytes."""
        return sum(column.nbytes for column in map(self.column, self.names))

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Remarks: whether samples are missing, and which layers were left out."""
        notes = [] if self.complete else ["collecting was interrupted; call collect(...) again to resume"]
        if left_out := self.about.get("left out"):
            reasons = list(left_out.values())
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            notes.append(f"these layers were left out: {'; '.join(reasons[:3])}{more}")
        made = dict.fromkeys(shard.made for shard in self.shards)
        if len(made) > 1:
            notes.append(
                f"several torch versions or devices wrote this, and they can round differently: {'; '.join(made)}"
            )
        return tuple(notes)

    def check(self) -> None:
        """Read every tensor and compare it with its checksum.

        Raises:
            DamagedError: a tensor differs; names it and its file.

        """
        for number, shard in enumerate(self.shards):
            for name, mark in shard.marks.items():
                if fingerprint_tensor(self._file(number).get_tensor(name)) != mark:
                    raise DamagedError(
                        f"{name!r} in {shard.path} was changed after it was written. Delete this file and all later "
                        "shards, and call collect(...) again to write them"
                    )

    def read(self, name: str, first: int, last: int) -> Tensor:
        """Return samples `first` to `last` - 1 of one tensor. Use `Column` instead."""
        parts = []
        number = max(0, bisect_right(self._starts, first) - 1)
        while first < last:
            start, shard = self._starts[number], self.shards[number]
            stop = min(last, start + shard.samples)
            with torch.device("cpu"):  # safetensors uses torch's default device for slices
                parts.append(self._file(number).get_slice(name)[first - start : stop - start])
            first, number = stop, number + 1
        if not parts:
            like = self.about["tensors"][name]
            return torch.empty((0, *like["shape"]), dtype=getattr(torch, like["dtype"]), device="cpu")
        # A copy, because a write into a memory map would reach every later reader.
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)

    def _file(self, number: int) -> Any:
        if number not in self._files:
            with optional_import("reading activations"):
                from safetensors import SafetensorError, safe_open
            if len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files)))
            shard = self.shards[number]
            try:
                refuse_pipes(shard.path)
                file: Any = safe_open(shard.path, framework="pt")
                same = (file.metadata() or {}).get("sha256") == shard.head
            except (SafetensorError, OSError, ValueError):
                same = False
            if not same:
                raise DamagedError(
                    f"{shard.path} was deleted or written again after {self.folder} was opened. Open it once more: "
                    f"hookscope.Activations({str(self.folder)!r})"
                )
            self._files[number] = file
        return self._files[number]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_files": {}}

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each tensor."""
        return [
            {"name": name, "shape": column.shape, "dtype": str(column.dtype).removeprefix("torch."),
             "sample axis": self.about["tensors"][name]["axis"], "bytes": format_bytes(column.nbytes)}
            for name, column in ((name, self.column(name)) for name in self.names)
        ]  # fmt: skip

    @property
    def caption(self) -> str:
        """The model, the number of samples, and their size."""
        shards = count_text(len(self.shards), "shard")
        return f"{self.about['model']}: {len(self):,} samples in {shards}, {format_bytes(self.nbytes)}"


def encode_description(about: dict[str, Any]) -> bytes:
    """Return the bytes of `collected.json`: the description of the folder with its SHA-256."""
    return json.dumps(about | {"sha256": _checksum(about)}, indent=1).encode()


def _read(path: Path) -> dict[str, Any]:
    way = "Restore it, or pass another folder as to="
    # The file can come from an untrusted source, so any exception becomes one readable error.
    try:
        about: dict[str, Any] = json.loads(path.read_text("utf-8"))
        same = about.pop("sha256") == _checksum(about)
        for text in (
            about["model"],
            about["mark"],
            *expect(about["layers"], list),
            *about.get("left out", {}).values(),
        ):
            expect(text, str)
        if (expect(about["samples"], int, type(None)) or 0) < 0 or not about["tensors"]:
            raise ValueError("it lists no tensors, or a negative number of samples")
        for like in expect(about["tensors"], dict).values():
            expect(like["axis"], int, type(None))
            torch.empty(expect(like["shape"], list), dtype=parse_dtype(like["dtype"]), device="meta")
    except OSError:
        raise
    except Exception as error:
        raise DamagedError(f"{path} was changed after it was written ({error!r:.200}). {way}") from error
    if not same:
        raise DamagedError(f"{path} was changed after it was written. {way}")
    return about


def _checksum(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _format_names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


class Column:
    """One tensor on disk, with all samples along axis 0. An index or a slice reads only those samples.

    Attributes:
        stored: the `Activations` that it belongs to.
        name: its name.

    """

    def __init__(self, stored: Activations, name: str) -> None:
        self.stored, self.name = stored, name
        self._like = stored.about["tensors"][name]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with samples along axis 0."""
        return (len(self.stored), *self._like["shape"])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype."""
        dtype: torch.dtype = getattr(torch, self._like["dtype"])
        return dtype

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, which: SupportsIndex | slice) -> Tensor:
        """Read one sample or a slice of samples into a new tensor."""
        if isinstance(which, bool) or not isinstance(which, SupportsIndex | slice):
            raise TypeError(
                f"{self.name!r} cannot be indexed by {type(which).__name__}. Pass a sample number or a slice "
                "[first:last]"
            )
        if isinstance(which, slice):
            first, last, step = which.indices(len(self))
            if step != 1:
                raise ValueError(
                    f"{self.name!r} cannot be sliced with step {step}. Read [first:last] and slice the result: "
                    f"stored[{self.name!r}][first:last][::{step}]"
                )
            return self.stored.read(self.name, first, max(first, last))
        index = which.__index__()
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(f"no sample {which}: {self.stored.folder} has {len(self):,} samples, counted from 0")
        return self.stored.read(self.name, index, index + 1)[0]

    def __repr__(self) -> str:
        return f"Column {self.name!r}: {self.shape}, {self.dtype}"
