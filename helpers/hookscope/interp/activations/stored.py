"""Read what was collected: memory-mapped, sample by sample, or as one tensor of all samples."""

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

from hookscope.captures.estimate import format_bytes
from hookscope.captures.saving import refuse_pipes
from hookscope.captures.serialize import expect, parse_dtype
from hookscope.extras import optional_import
from hookscope.interp.activations.marks import mark_of_tensor
from hookscope.interp.activations.shards import DamagedError, Shard, read_shard, shards_in
from hookscope.layers.suggestions import not_among
from hookscope.pictures import Result
from hookscope.pictures.words import counted

__all__ = ["ABOUT", "Activations", "Column", "DamagedError", "described"]

ABOUT = "collected.json"
_OPEN = 64  # files at once; systems allow a few hundred


class Activations(Result, Dataset[dict[str, Tensor]]):
    """What `collect` wrote into a folder: a `torch.utils.data.Dataset`, and a mapping from names to columns.

    Nothing is read before it is asked for, and then from a memory map: a sample costs its own bytes, and what you do to
    it changes nothing here. It pickles as its folder, so that the workers of a DataLoader read for themselves.

    - ``stored[5]`` is sample 5: a dict from names to tensors, without the axis of samples.
    - ``stored["conv"]`` is a `Column`: ``stored["conv"][10:20]`` are ten samples, ``stored["conv"][:]`` all.
    - Names are those of the layers; with `#2` for the second call of a layer in each pass, and with `/` and the part
      for outputs of several tensors: `"rnn/0"`, `"rnn/1/0"`. The model's own name, `""`, is shown as `"(root)"`; both
      are taken.

    Sample numbers count from 0 in the order of the loader, so that labels kept elsewhere in that order fit.

    Args:
        folder: the folder.
        going_on: take what was complete, and has lost shards at its end since, for the beginning that it is now.

    Attributes:
        folder: the folder.
        names: of the tensors.
        complete: whether the loader had come to its end; else this is the beginning.
        about: what `collect` was asked for.
        shards: what each file has.

    Raises:
        FileNotFoundError: nothing was collected there.
        DamagedError: a file is cut off or missing, or its head is not what was written; see `check` for the rest.

    """

    def __init__(self, folder: str | Path, *, going_on: bool = False) -> None:
        self.folder = Path(folder)
        about = self.folder / ABOUT
        if not about.is_file():
            raise FileNotFoundError(f"nothing was collected in {self.folder}: it has no {ABOUT}")
        self.about: dict[str, Any] = _read(about)
        self.complete = self.about["samples"] is not None
        self.names: list[str] = list(self.about["tensors"])
        self.shards: list[Shard] = []
        self._starts: list[int] = []
        self._files: dict[int, Any] = {}
        tensors, samples = self.about["tensors"].items(), 0
        kinds = {name: (like["shape"], parse_dtype(like["dtype"])) for name, like in tensors}
        for path in shards_in(self.folder):
            shard = read_shard(path)
            if shard.kinds != kinds:
                raise DamagedError(f"{path} has other tensors than {ABOUT} says: it was put here from elsewhere")
            if shard.first != samples:
                raise DamagedError(f"{path} does not go on at sample {samples:,}: a shard before it is missing")
            self.shards.append(shard)
            self._starts.append(samples)
            samples += shard.samples
        self._samples = samples
        if self.complete and samples != self.about["samples"]:
            if not going_on or samples > self.about["samples"]:
                raise DamagedError(
                    f"{self.folder} has {samples:,} samples of {self.about['samples']:,}: shards are missing at the "
                    "end; the same collect(...) makes them again"
                )
            self.complete = False

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, which: int | str) -> Any:
        """Return a sample by its number, or a `Column` by its name.

        Raises:
            IndexError: there is no such sample.
            LayerNotFoundError: there is no such column; names the nearest.

        """
        if isinstance(which, str):
            if (of_root := f"(root){which}") in self.names:
                which = of_root
            if which not in self.names:
                raise not_among(self.names, which, f"no {which!r} in {self.folder}, which has {_listed(self.names)}")
            return Column(self, which)
        return {name: self.column(name)[which] for name in self.names}

    def column(self, name: str) -> Column:
        """Return the column of that name."""
        column: Column = self[name]
        return column

    @property
    def nbytes(self) -> int:
        """How many bytes all samples take."""
        return sum(column.nbytes for column in map(self.column, self.names))

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """What else there is to know."""
        notes = [] if self.complete else ["not complete: the same collect(...) goes on where it stopped"]
        if left_out := self.about.get("left out"):
            reasons = list(left_out.values())
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            notes.append(f"left out, as no layers were named: {'; '.join(reasons[:3])}{more}")
        made = dict.fromkeys(shard.made for shard in self.shards)
        if len(made) > 1:
            notes.append(f"made in several ways, which may round differently: {'; '.join(made)}")
        return tuple(notes)

    def check(self) -> None:
        """Read every byte, and hold it against the checksums.

        Raises:
            DamagedError: names the file and the tensor that is not what was written.

        """
        for number, shard in enumerate(self.shards):
            for name, mark in shard.marks.items():
                if mark_of_tensor(self._file(number).get_tensor(name)) != mark:
                    raise DamagedError(f"{name!r} in {shard.path} is not what was written")

    def read(self, name: str, first: int, last: int) -> Tensor:
        """Return samples of one tensor, `first` to before `last`; for the inside of this package."""
        parts = []
        number = max(0, bisect_right(self._starts, first) - 1)
        while first < last:
            start, shard = self._starts[number], self.shards[number]
            stop = min(last, start + shard.samples)
            with torch.device("cpu"):  # safetensors puts slices on torch's default device
                parts.append(self._file(number).get_slice(name)[first - start : stop - start])
            first, number = stop, number + 1
        if not parts:
            like = self.about["tensors"][name]
            return torch.empty((0, *like["shape"]), dtype=getattr(torch, like["dtype"]), device="cpu")
        # A copy: what is written into a map would be there for every later reader of it.
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
                    f"{shard.path} is gone, or was written anew since {self.folder} was opened: open "
                    f"Activations({str(self.folder)!r}) again"
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
             "axis of samples": self.about["tensors"][name]["axis"], "bytes": format_bytes(column.nbytes)}
            for name, column in ((name, self.column(name)) for name in self.names)
        ]  # fmt: skip

    @property
    def caption(self) -> str:
        """Of which model, and how much there is."""
        shards = counted(len(self.shards), "shard")
        return f"{self.about['model']}: {len(self):,} samples in {shards}, {format_bytes(self.nbytes)}"


def described(about: dict[str, Any]) -> bytes:
    """Return what stands in `collected.json`: what was asked for, and the SHA-256 of that."""
    return json.dumps(about | {"sha256": _mark(about)}, indent=1).encode()


def _read(path: Path) -> dict[str, Any]:
    way = "put it back as it was, or collect into another folder"
    # It may come from anybody: whatever it makes json, torch or us raise, is said in a sentence.
    try:
        about: dict[str, Any] = json.loads(path.read_text("utf-8"))
        same = about.pop("sha256") == _mark(about)
        for text in (
            about["model"],
            about["mark"],
            *expect(about["layers"], list),
            *about.get("left out", {}).values(),
        ):
            expect(text, str)
        if (expect(about["samples"], int, type(None)) or 0) < 0 or not about["tensors"]:
            raise ValueError("there are less than no samples, or no tensors")
        for like in expect(about["tensors"], dict).values():
            expect(like["axis"], int, type(None))
            torch.empty(expect(like["shape"], list), dtype=parse_dtype(like["dtype"]), device="meta")
    except OSError:
        raise
    except Exception as error:
        raise DamagedError(f"{path} is not what was written ({error!r:.200}): {way}") from error
    if not same:
        raise DamagedError(f"{path} is not what was written: {way}")
    return about


def _mark(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


class Column:
    """One tensor of all samples, along axis 0, on disk: an index or a slice reads what it asks for.

    Attributes:
        stored: what it is of.
        name: its name.

    """

    def __init__(self, stored: Activations, name: str) -> None:
        self.stored, self.name = stored, name
        self._like = stored.about["tensors"][name]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor, samples first."""
        return (len(self.stored), *self._like["shape"])

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        dtype: torch.dtype = getattr(torch, self._like["dtype"])
        return dtype

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, which: SupportsIndex | slice) -> Tensor:
        """Read a sample, or several: of the file those bytes alone, into a tensor of your own."""
        if isinstance(which, bool) or not isinstance(which, SupportsIndex | slice):
            raise TypeError(f"{self.name!r} is taken by a number or by [first:last], not by {type(which).__name__}")
        if isinstance(which, slice):
            first, last, step = which.indices(len(self))
            if step != 1:
                raise ValueError(f"step {step}: take {self.name!r} by [first:last], and the step of what it gives")
            return self.stored.read(self.name, first, max(first, last))
        index = which.__index__()
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(f"no sample {which}: {self.stored.folder} has {len(self):,}")
        return self.stored.read(self.name, index, index + 1)[0]

    def __repr__(self) -> str:
        return f"Column {self.name!r}: {self.shape}, {self.dtype}"
