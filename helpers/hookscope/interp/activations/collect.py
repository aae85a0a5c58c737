"""Run a model over a whole data set, and stream what chosen layers return to disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture, capture
from hookscope.captures.estimate import format_bytes
from hookscope.captures.options import check_bytes
from hookscope.captures.saving import write_whole
from hookscope.extras import optional_import
from hookscope.interp.activations.loaders import chained, length_of, shuffles
from hookscope.interp.activations.marks import mark_of_batch, mark_of_model, state_of
from hookscope.interp.activations.samples import Place, Run, called_with, count, outputs, places
from hookscope.interp.activations.shards import Shard, shards_in, write_shard
from hookscope.interp.activations.stored import ABOUT, Activations, described
from hookscope.interp.edits.layer_hooks import LayerHooks as Edited
from hookscope.interp.edits.parts import Part, path_of
from hookscope.layers import Which, find_layers
from hookscope.layers.offloaded import is_offloaded, named_tensors
from hookscope.progress import check_progress, progress_bar
from hookscope.pytree import tree_map

__all__ = ["collect"]

_SHARD = 64 << 20
_BATCHES = 4096  # at most in a shard, whose head names each


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    *layers: Which,
    to: str | Path,
    dtype: torch.dtype | None = None,
    part: Part | None = None,
    run: Run = called_with,
    shard_bytes: int = _SHARD,
    max_bytes: int | None = None,
    progress: bool = True,
) -> Activations:
    """Stream what chosen layers return, for a whole data set, to disk; go on where an earlier call was stopped.

    The folder gets shards, `00000.safetensors` and so on, of some batches each. **Why safetensors**: the file is a JSON
    head with names, dtypes and shapes, and then the bytes of the tensors, so it is read through a memory map, on any
    machine, and reading it runs no code, as a pickle would. Each head also has the numbers of its samples, a SHA-256 of
    each tensor, and one of the data of each batch. A shard is written beside its name and then renamed: it is whole or
    not there. Memory holds one shard and one batch, however many samples there are.

    **Stopped and started again.** The same call goes on after the last shard, also after a `kill -9` or a power cut,
    with no sample lost and none twice. It reads the data that is done again, without running the model, and compares
    it: where the model's class, modules, parameters or buffers, the layers, options, batches or data are not the same,
    it refuses and says which. The code of `forward` and of `run` is not compared, nor are hooks and plain attributes.
    A model whose passes change its buffers or parameters cannot be gone on with in the middle: that is refused, too.
    What else a model keeps from pass to pass, as an attribute of Python's, is not seen. An exception or interrupt first
    writes what is there.

    Hooks look as those of `capture` do and come off in any case. The model runs without gradients and in `eval()`,
    since dropout and batch norm in `train()` would give other values each time. Along which axis an output has the
    samples is found by running two samples and three through a copy of the model. What cannot be copied runs itself: a
    `capture` of your own around this has these two passes, too. On disk samples come first. Sequences of several
    lengths do not fit into one tensor: pad all to one length.

    **From an edited model.** Begin the `edit` in `run`, anew for each batch: calls are then counted from 1 in each. An
    edited output is itself collected as the layer returned it, and what comes after it with the edit.

    Args:
        model: the model. Batches are moved to the device of its first parameter.
        loader: yields tensors, tuples whose first item is the input, or dicts of keyword arguments, in the same order
            every time, samples along axis 0. Only inputs go into the model; labels in the same order fit the sample
            numbers.
        *layers: as `find_layers` takes them. Without any, all leaves that are called and return something for each
            sample; `notes` say which are left out.
        to: the folder, which is made.
        part: which tensor, where a layer returns several: an index, key or attribute, or a path, as `edit` takes it.
            All without it.
        dtype: convert floating tensors, for example to `torch.float16` for half the bytes.
        run: runs the model on a batch of another kind: `run=lambda model, batch: model(batch.x)`. If rows are not
            samples, as for graphs, let the loader yield numbers of samples, and make the batch of them here.
        shard_bytes: write a shard when so many bytes are there; each holds one batch at least.
        max_bytes: refuse to begin if the forecast for all samples, by `len(loader.sampler)`, is more than this.
        progress: show samples, rate and bytes if tqdm is installed and it takes more than a second.

    Returns:
        The `Activations`, which `hookscope.Activations(to)` opens again.

    Raises:
        ValueError: the model is in `train()` or inside an `edit`, the loader shuffles, an output has no axis of
            samples, or the folder has been collected from something else; says what is not the same.
        TypeError: an output has a dtype that safetensors does not write, such as complex128.
        LayerNotFoundError: no such layer; names the nearest.
        MemoryError: the forecast is more than `max_bytes`.
        OSError: the disk has less room than the forecast says, or is full; says which samples are there to be read.
        NotADirectoryError: `to` is a file.
        DamagedError: a file in the folder is cut off or missing, or its head is not what was written. The bytes of
            tensors are compared with their checksums by `Activations.check()` alone, since it reads them all.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval()
        >>> batches = torch.arange(10.0).reshape(5, 2).split(2)
        >>> with TemporaryDirectory() as folder:
        ...     stored = collect(net, batches, "1", to=folder)
        ...     len(stored), stored["1"].shape, torch.equal(stored["1"][:], net(torch.cat(batches)))
        (5, (5, 3), True)

    """
    with optional_import("collect"):
        import safetensors.torch  # noqa: F401 (now, not after the first shard has been computed)
    check_bytes("shard_bytes", shard_bytes, 1)
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    check_progress(progress)
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Tensor):  # a tensor yields its samples
        raise TypeError(f"loader is a {type(loader).__name__}: give a DataLoader, or batches, as inputs.split(32)")
    if not isinstance(to, str | Path):
        raise TypeError(f"to={to!r}: give the name of a folder, as to='activations/'")
    if not str(to).strip():
        raise ValueError(f"to={to!r}: give the name of a folder, as to='activations/'; '.' is this one")
    if Path(to).exists() and not Path(to).is_dir():
        raise NotADirectoryError(f"to={str(to)!r} is a file: give the name of a folder, as to='activations/'")
    if not callable(run):
        raise TypeError(f"run={run!r}: give a function, as run=lambda model, batch: model(batch.x)")
    path = path_of(part)
    kept: Any = {"dtype": dtype, "device": "cpu"}
    seen, names = capture(model, *layers, **kept), list(find_layers(model, *layers))
    if training := [name for name, module in model.named_modules() if module.training]:
        which = "the model" if "" in training else f"layer {training[0]!r}"
        raise ValueError(f"{which} is in train(), where values may be other ones each time; call model.eval() first")
    offloaded = is_offloaded(model.modules())
    if not offloaded and (empty := [name for name, tensor in named_tensors(model) if tensor.is_meta]):
        raise ValueError(f"{empty[0]!r} is on the meta device, where tensors have no values; load the model first")
    # Two passes find the axes, and what is on disk is not run again: calls would not be counted as they are meant.
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    if any(isinstance(getattr(hook, "__self__", None), Edited) for hook in hooks):
        raise ValueError(
            "the model is inside an edit, which would count other calls than those of the batches; begin the edit in "
            "run=, anew for each batch: with hookscope.edit(model) as e: e.set(...); model(batch)"
        )
    if shuffles(loader):
        raise ValueError("the loader shuffles, so samples would have other numbers each time; give shuffle=False")
    folder = Path(to)
    with _alone(folder), torch.no_grad():
        one = _Collecting(model, seen, names, run, folder, shard_bytes, path, all_there_are=not layers)
        return one.all(loader, length_of(loader), max_bytes, progress, lambda other: capture(other, *names, **kept))


class _Collecting:
    """One call of `collect`."""

    def __init__(
        self, model: nn.Module, seen: Capture, layers: list[str], run: Run, folder: Path, shard_bytes: int,
        part: tuple[int | str, ...] | None, *, all_there_are: bool,
    ) -> None:  # fmt: skip
        self._part = part
        self._left_out: dict[str, str] | None = {} if all_there_are else None
        self._model, self._seen, self._layers, self._run = model, seen, layers, run
        self._folder, self._shard_bytes = folder, shard_bytes
        devices = [tensor.device for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
        self._device = devices[0] if devices else torch.device("cpu")
        self._places: dict[str, Place] = {}
        self._waiting: list[tuple[int, str, dict[str, Tensor]]] = []  # batches, as Shard has them, and their outputs
        self._held = 0  # bytes of them
        self._about: dict[str, Any] = {}
        self._shards = self._bytes = self._done = 0  # of what is on disk
        self._state: dict[str, object] = {}  # of the model before the first pass

    def all(
        self, loader: Iterable[Any], length: int | None, max_bytes: int | None, progress: bool,
        watch: Callable[[nn.Module], Capture],
    ) -> Activations:  # fmt: skip
        batches = iter(loader)
        first = next(batches, None)
        if first is None:
            raise ValueError("the loader yields nothing")
        self._places = places(self._model, watch, self._run, self._moved(first), self._part, self._left_out)
        if not self._places:
            raise ValueError(
                f"nothing of {self._seen.title} can be collected: {'; '.join((self._left_out or {}).values())}"
            )
        self._about = self._asked_for()
        old = self._resumed()
        each = sum(place.bytes for place in self._places.values())
        self._forecast(each, length, max_bytes)
        total = f" of {format_bytes(each * length)}" if length is not None else ""

        def written(samples: int, seconds: float) -> str:
            return f"{format_bytes(samples * each)}{total}, {format_bytes(samples * each / max(seconds, 1e-9))}/s"

        with progress_bar("collect", length, " samples", progress, written) as advance:
            try:
                known = [batch for shard in old.shards for batch in shard.batches] if old else []
                for number, batch in enumerate(chained(first, batches)):
                    mark, samples = mark_of_batch(batch), count(batch)
                    if number < len(known):
                        self._compare(samples, mark, *known[number])
                        self._done += samples
                    elif old is not None and old.complete:
                        raise self._not_the_same(f"the loader has more than the {len(old):,} samples of then")
                    else:
                        self._take(batch, samples, mark)
                    advance(samples)
                if self._done < (len(old) if old else 0):
                    raise self._not_the_same(f"the loader has {self._done:,} samples, and {len(old or ()):,} are there")
            except BaseException as error:
                if not (isinstance(error, OSError) and error.errno == errno.ENOSPC):
                    self._write()  # what there is
                raise
            self._write()
        self._describe(self._about | {"samples": self._done})
        return Activations(self._folder)

    def _moved(self, batch: Any) -> Any:
        return tree_map(lambda tensor: tensor.to(self._device), batch)

    def _take(self, batch: Any, samples: int, mark: str) -> None:
        self._state = self._state or state_of(self._model)
        with self._seen.like() as seen:  # not the same again, which would use its memory again
            self._run(self._model, self._moved(batch))
        found = outputs(seen, self._part, None if self._left_out is None else dict(self._left_out))
        if found.keys() != self._places.keys():
            name = min(found.keys() ^ self._places.keys())
            raise RuntimeError(f"{name!r} is not there for every batch; leave the layer out")
        for name, tensor in found.items():
            place, shape = self._places[name], tuple(tensor.shape)
            like = (*place.shape[: place.axis], samples, *place.shape[place.axis :])
            if shape != like or tensor.dtype is not place.dtype:
                at = self._done + sum(number for number, *_ in self._waiting)
                raise RuntimeError(
                    f"{name!r} is {shape}, {tensor.dtype}, from sample {at:,} on, and {like}, {place.dtype}, before "
                    "it: all samples need one shape, so pad sequences to one length"
                )
        # In one step: an interrupt leaves a whole batch, or none of it.
        self._waiting.append((samples, mark, {n: t.movedim(self._places[n].axis, 0) for n, t in found.items()}))
        self._held += sum(tensor.nbytes for tensor in found.values())
        if self._held >= self._shard_bytes or len(self._waiting) >= _BATCHES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        # Channels last stay so when they are put together, and safetensors takes what is contiguous.
        whole = {n: torch.cat([found[n] for *_, found in self._waiting]).contiguous() for n in sorted(self._places)}
        batches = [(samples, mark) for samples, mark, _ in self._waiting]
        if "changes" not in self._about and (now := state_of(self._model)) != self._state:
            changed = next((name for name in now if now[name] != self._state.get(name)), "its modules")
            self._about["changes"] = changed
            self._describe(self._about)  # before the shard, lest somebody goes on after it
        shard = Shard(self._folder / f"{self._shards:05}.safetensors", self._done, batches)
        shard.made = f"torch {torch.__version__} on {self._device.type}"
        try:
            self._bytes += write_shard(shard, whole)
        except OSError as error:
            raise self._full(error, sum(tensor.nbytes for tensor in whole.values())) from error
        # Nothing is called between these, so no interrupt comes; before them, the same shard is written once more.
        done = self._done + shard.samples
        self._done, self._shards, self._waiting, self._held = done, self._shards + 1, [], 0

    def _full(self, error: OSError, wanted: int) -> OSError:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        if error.errno == errno.EFBIG:
            return OSError(
                errno.EFBIG,
                f"a file of {format_bytes(wanted)} is larger than this system allows; the {self._done:,} samples "
                f"before are whole; give a smaller shard_bytes than {self._shard_bytes:,}, and call collect(...) again",
                str(self._folder),
            )
        there = f"the {self._done:,} samples before are whole, in {format_bytes(self._bytes)}"
        rest = (
            f"{there}: read them by hookscope.Activations({str(self._folder)!r})" if self._done else "nothing is there"
        )
        way = f"make room for {format_bytes(wanted)} or more, and call collect(...) again to go on"
        return OSError(errno.ENOSPC, f"the disk is full at sample {self._done:,}; {rest}; {way}", str(self._folder))

    # -- what was asked for, now and then -----------------------------------------------------------------------

    def _asked_for(self) -> dict[str, Any]:
        like = {
            name: {"shape": list(place.shape), "dtype": str(place.dtype).removeprefix("torch."), "axis": place.axis}
            for name, place in sorted(self._places.items())
        }
        about = {"model": self._seen.title, "mark": mark_of_model(self._model), "layers": self._layers}
        left_out = {"left out": self._left_out} if self._left_out else {}
        return about | left_out | {"tensors": like, "samples": None}

    def _resumed(self) -> Activations | None:
        """Return what is in the folder, if it is of the same model and layers; begin it if there is nothing."""
        for part in self._folder.glob(".*.part"):  # of a process that was killed
            part.unlink(missing_ok=True)
        if not (self._folder / ABOUT).is_file():
            if shards_in(self._folder):
                raise ValueError(f"{self._folder} has shards, but no {ABOUT}; take another folder")
            self._describe(self._about)
            return None
        old = Activations(self._folder, going_on=True)
        for what, word in _WORDS.items():
            then, now = old.about[what], self._about[what]
            if then != now:
                told = f"another {word}" if what == "mark" else f"{word} {_listed(then)}, and now it is {_listed(now)}"
                raise self._not_the_same(f"it was collected with {told}")
        if (changes := old.about.get("changes")) and old.shards and not old.complete:
            raise self._not_the_same(f"each pass may change {changes} of the model, and what that was here is gone")
        self._shards, self._bytes = len(old.shards), sum(shard.path.stat().st_size for shard in old.shards)
        return old

    def _compare(self, samples: int, mark: str, samples_then: int, mark_then: str) -> None:
        if samples != samples_then:
            raise self._not_the_same(f"batches had {samples_then} samples there, and have {samples} now")
        if mark != mark_then:
            raise self._not_the_same("the data of the batch is not that of then: is it shuffled, or made at random?")

    def _not_the_same(self, why: str) -> ValueError:
        way = "take another folder, or delete this one"
        return ValueError(f"{self._folder} cannot be gone on with, at sample {self._done:,}: {why}; {way}")

    def _describe(self, about: dict[str, Any]) -> None:
        data = described(about)
        try:
            write_whole(self._folder / ABOUT, data)
        except OSError as error:
            raise self._full(error, len(data)) from error

    def _forecast(self, each: int, length: int | None, max_bytes: int | None) -> None:
        if length is None:
            return
        total = each * length
        if max_bytes is not None and total > max_bytes:
            raise MemoryError(
                f"{length:,} samples would take {format_bytes(total)}, more than max_bytes={max_bytes:,}: choose fewer "
                "layers, or dtype=torch.float16"
            )
        free = shutil.disk_usage(self._folder).free
        if total - self._bytes > free:
            raise OSError(
                errno.ENOSPC,
                f"{length:,} samples take {format_bytes(total)}, {format_bytes(self._bytes)} of it are there, and "
                f"{format_bytes(free)} are free; choose fewer layers, or dtype=torch.float16, or another disk",
                str(self._folder),
            )


_WORDS = {
    "model": "the model", "mark": "model: not the same modules, options, parameters or buffers",
    "layers": "the layers", "tensors": "outputs",
}  # fmt: skip


def _listed(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second writer of one folder; a lock of the system's goes with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    busy = RuntimeError(f"another collect(...) is writing to {folder}; wait for it, or take another folder")
    place, ours = folder.stat(), object()
    key = (os.getpid(), place.st_dev, place.st_ino)
    try:
        # Not even open the file twice in one process, which to close once would take the lock off.
        if _writing.setdefault(key, ours) is not ours:
            raise busy
        with (folder / ".lock").open("wb") as lock:
            try:
                # Not flock: workers of a DataLoader would inherit it, and may outlive this process, or this call.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):  # others: a file system without locks
                    raise busy from error
            yield
    finally:
        if _writing.get(key) is ours:
            del _writing[key]


_writing: dict[tuple[int, int, int], object] = {}
"""Process and folder -> the call that writes there; a lock of lockf's is the whole process's."""
