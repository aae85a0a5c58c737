"""Run a model over a whole data set and stream the outputs of chosen layers to disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture, capture
from hookscope.captures.options import check_bytes
from hookscope.extras import optional_import
from hookscope.interp.activations.dataset import ABOUT, Activations, encode_description
from hookscope.interp.activations.files import write_whole
from hookscope.interp.activations.fingerprint import fingerprint_batch, fingerprint_model, fingerprint_state
from hookscope.interp.activations.loaders import chain_batches, count_loader_samples, shuffles
from hookscope.interp.activations.sample_axes import (
    OutputSpec,
    RunBatch,
    call_model,
    count_samples,
    find_sample_axes,
    name_outputs,
)
from hookscope.interp.activations.shards import Shard, list_shards, write_shard
from hookscope.interp.edits.layer_hooks import LayerHooks as Edited
from hookscope.interp.edits.nested_values import Part, path_of
from hookscope.layers import Modules, Which, pick
from hookscope.layers.offloaded import is_offloaded, named_tensors
from hookscope.pictures.words import format_bytes
from hookscope.progress import check_progress, progress_bar
from hookscope.pytree import tree_map

__all__ = ["collect"]

_SHARD = 64 << 20
_BATCHES = 4096  # per shard at most, because its header lists each of them


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    *layers: Which,
    to: str | Path,
    dtype: torch.dtype | None = None,
    part: Part | None = None,
    run: RunBatch = call_model,
    shard_bytes: int = _SHARD,
    max_bytes: int | None = None,
    progress: bool = True,
) -> Activations:
    """Save the outputs of chosen layers to disk, for a whole data set.

    The outputs stream into `.safetensors` files (shards), so memory holds one shard and one batch. Call it again with
    the same arguments to resume after an interruption. The model must be in `eval()`; it runs without gradients.
    The limits, the file format and the checks of a resumed call: https://hookscope.github.io/hookscope/limits/collect.html

    Args:
        model: the model. Batches are moved to the device of its first parameter.
        loader: yields tensors, tuples that begin with the input, or dicts of keyword arguments, always in the same
            order, with samples along axis 0.
        *layers: as `find_layers` takes them. If you name none, all leaves with one output per sample; `notes` lists the
            others.
        to: the folder to write to. It is created if necessary.
        dtype: convert floating tensors, for example to `torch.float16`.
        part: the index, key, attribute or path of one tensor if a layer returns several. By default, all of them.
        run: a function that runs the model on one batch, for example `run=lambda model, batch: model(batch.x)`.
        shard_bytes: start a new shard after this many bytes.
        max_bytes: raise `MemoryError` before the first write if all samples would need more.
        progress: show a progress bar if tqdm is installed.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from tempfile import TemporaryDirectory
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval()
        >>> batches = torch.arange(10.0).reshape(5, 2).split(2)
        >>> with TemporaryDirectory() as folder:
        ...     stored = collect(net, batches, "1", to=folder)
        ...     len(stored), stored["1"].shape, torch.equal(stored["1"][:], net(torch.cat(batches)))
        (5, (5, 3), True)

    """
    with optional_import("collect"):
        import safetensors.torch  # noqa: F401 (fail before the first shard is computed)
    check_bytes("shard_bytes", shard_bytes, 1)
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    check_progress(progress)
    if not isinstance(loader, Iterable) or isinstance(
        loader, str | bytes | Tensor
    ):  # iterating over a tensor yields samples, not batches
        raise TypeError(
            f"loader is a {type(loader).__name__}, not a series of batches. Pass a DataLoader, or split a tensor into "
            "batches: inputs.split(32)"
        )
    if not isinstance(to, str | Path):
        raise TypeError(f"to={to!r} is a {type(to).__name__}. Pass the name of a folder: to='activations/'")
    if not str(to).strip():
        raise ValueError(
            f"to={to!r} is empty. Pass the name of a folder: to='activations/', or to='.' for the current one"
        )
    if Path(to).exists() and not Path(to).is_dir():
        raise NotADirectoryError(f"to={str(to)!r} is a file. Pass the name of a folder: to='activations/'")
    if not callable(run):
        raise TypeError(f"run={run!r} is not callable. Pass a function: run=lambda model, batch: model(batch.x)")
    path = path_of(part)
    kept: Any = {"dtype": dtype, "device": "cpu"}
    names = list(pick(Modules(model), *layers, several="collect(model, loader, *names, to=...)"))
    seen = capture(model, *names, **kept)
    if training := [name for name, module in model.named_modules() if module.training]:
        which = "the model" if "" in training else f"layer {training[0]!r}"
        raise ValueError(
            f"{which} is in train(), where dropout is random and batch norm mixes samples. Call model.eval() first"
        )
    offloaded = is_offloaded(model.modules())
    if not offloaded and (empty := [name for name, tensor in named_tensors(model) if tensor.is_meta]):
        raise ValueError(
            f"{empty[0]!r} is on the meta device, so it has no values. Load the weights of the model first"
        )
    # An edit around collect would count the two passes that find the sample axes, and miss batches already on disk.
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    if any(isinstance(getattr(hook, "__self__", None), Edited) for hook in hooks):
        raise ValueError(
            "this model is in an edit block. An edit counts calls, and collect adds calls of its own. Start the edit "
            "in run=, once for each batch: def run(model, batch): with hookscope.edit(model) as e: e.set(...); return "
            "model(batch)"
        )
    if shuffles(loader):
        raise ValueError("the loader shuffles, so sample 5 would be a different one in each run. Pass shuffle=False")
    folder = Path(to)
    with _lock_folder(folder), torch.no_grad():
        collector = _Collector(model, seen, names, run, folder, shard_bytes, path, all_leaves=not layers)
        return collector.collect(
            loader, count_loader_samples(loader), max_bytes, progress, lambda other: capture(other, *names, **kept)
        )


class _Collector:
    """One call of `collect`."""

    def __init__(
        self, model: nn.Module, seen: Capture, layers: list[str], run: RunBatch, folder: Path, shard_bytes: int,
        part: tuple[int | str, ...] | None, *, all_leaves: bool,
    ) -> None:  # fmt: skip
        self._part = part
        self._left_out: dict[str, str] | None = {} if all_leaves else None
        self._model, self._seen, self._layers, self._run = model, seen, layers, run
        self._folder, self._shard_bytes = folder, shard_bytes
        devices = [tensor.device for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
        self._device = devices[0] if devices else torch.device("cpu")
        self._specs: dict[str, OutputSpec] = {}
        self._waiting: list[
            tuple[int, str, dict[str, Tensor]]
        ] = []  # batches in the form of Shard.batches, with outputs
        self._waiting_bytes = 0  # of these outputs
        self._about: dict[str, Any] = {}
        self._shards = self._bytes = self._done = 0  # on disk
        self._first_state: dict[str, object] = {}  # of the model before the first pass

    def collect(
        self, loader: Iterable[Any], length: int | None, max_bytes: int | None, progress: bool,
        watch: Callable[[nn.Module], Capture],
    ) -> Activations:  # fmt: skip
        batches = iter(loader)
        first = next(batches, None)
        if first is None:
            raise ValueError("the loader yields no batches, so there is nothing to collect")
        self._specs = find_sample_axes(
            self._model, watch, self._run, self._to_device(first), self._part, self._left_out
        )
        if not self._specs:
            raise ValueError(
                f"no layer of {self._seen.title} has an output that collect can store: "
                f"{'; '.join((self._left_out or {}).values())}"
            )
        self._about = self._describe_request()
        old = self._find_earlier()
        each = sum(spec.bytes for spec in self._specs.values())
        self._check_room(each, length, max_bytes)
        total = f" of {format_bytes(each * length)}" if length is not None else ""

        def written(samples: int, seconds: float) -> str:
            return f"{format_bytes(samples * each)}{total}, {format_bytes(samples * each / max(seconds, 1e-9))}/s"

        with progress_bar("collect", length, " samples", progress, written) as advance:
            try:
                known = [batch for shard in old.shards for batch in shard.batches] if old else []
                for number, batch in enumerate(chain_batches(first, batches)):
                    mark, samples = fingerprint_batch(batch), count_samples(batch)
                    if number < len(known):
                        self._compare(samples, mark, *known[number])
                        self._done += samples
                    elif old is not None and old.complete:
                        raise self._refuse_to_resume(
                            f"the loader has more than the {len(old):,} samples of the earlier run"
                        )
                    else:
                        self._run_batch(batch, samples, mark)
                    advance(samples)
                if self._done < (len(old) if old else 0):
                    raise self._refuse_to_resume(
                        f"the loader has {self._done:,} samples, but {len(old or ()):,} are stored"
                    )
            except BaseException as error:
                if not (isinstance(error, OSError) and error.errno == errno.ENOSPC):
                    self._write()  # what was computed so far
                raise
            self._write()
        self._write_description(self._about | {"samples": self._done})
        return Activations(self._folder)

    def _to_device(self, batch: Any) -> Any:
        return tree_map(lambda tensor: tensor.to(self._device), batch)

    def _run_batch(self, batch: Any, samples: int, mark: str) -> None:
        self._first_state = self._first_state or fingerprint_state(self._model)
        with self._seen as seen:
            self._run(self._model, self._to_device(batch))
        found = name_outputs(seen, self._part, None if self._left_out is None else dict(self._left_out))
        if found.keys() != self._specs.keys():
            name = min(found.keys() ^ self._specs.keys())
            raise RuntimeError(
                f"{name!r} is missing for some batches, so its samples would not line up. Leave this layer out"
            )
        for name, tensor in found.items():
            spec, shape = self._specs[name], tuple(tensor.shape)
            like = (*spec.shape[: spec.axis], samples, *spec.shape[spec.axis :])
            if shape != like or tensor.dtype is not spec.dtype:
                at = self._done + sum(number for number, *_ in self._waiting)
                raise RuntimeError(
                    f"{name!r} is {shape}, {tensor.dtype}, from sample {at:,} on, but {like}, {spec.dtype}, before it. "
                    "All samples must have the same shape and dtype: pad sequences to one length"
                )
        # One statement, so that an interrupt leaves a whole batch or nothing.
        self._waiting.append((samples, mark, {n: t.movedim(self._specs[n].axis, 0) for n, t in found.items()}))
        self._waiting_bytes += sum(tensor.nbytes for tensor in found.values())
        if self._waiting_bytes >= self._shard_bytes or len(self._waiting) >= _BATCHES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        # torch.cat keeps channels_last, and safetensors needs contiguous tensors.
        whole = {n: torch.cat([found[n] for *_, found in self._waiting]).contiguous() for n in sorted(self._specs)}
        batches = [(samples, mark) for samples, mark, _ in self._waiting]
        if "changes" not in self._about and (now := fingerprint_state(self._model)) != self._first_state:
            changed = next((name for name in now if now[name] != self._first_state.get(name)), "its modules")
            self._about["changes"] = changed
            self._write_description(self._about)  # before the shard, so that no later call resumes after it
        shard = Shard(self._folder / f"{self._shards:05}.safetensors", self._done, batches)
        shard.made = f"torch {torch.__version__} on {self._device.type}"
        try:
            self._bytes += write_shard(shard, whole)
        except OSError as error:
            raise self._explain_full_disk(error, sum(tensor.nbytes for tensor in whole.values())) from error
        # One statement, so no interrupt falls between them. If one comes earlier, the shard is written once more.
        done = self._done + shard.samples
        self._done, self._shards, self._waiting, self._waiting_bytes = done, self._shards + 1, [], 0

    def _explain_full_disk(self, error: OSError, wanted: int) -> OSError:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        if error.errno == errno.EFBIG:
            return OSError(
                errno.EFBIG,
                f"a file of {format_bytes(wanted)} is larger than this system allows. The first {self._done:,} samples "
                f"are saved. Pass shard_bytes= smaller than {self._shard_bytes:,} and call collect(...) again to "
                "resume",
                str(self._folder),
            )
        rest = (
            f"The first {self._done:,} samples are saved, in {format_bytes(self._bytes)}; read them with "
            f"hookscope.Activations({str(self._folder)!r})"
            if self._done
            else "No samples are saved yet"
        )
        way = f"Free {format_bytes(wanted)} or more and call collect(...) again to resume"
        return OSError(errno.ENOSPC, f"the disk is full at sample {self._done:,}. {rest}. {way}", str(self._folder))

    # -- compare this call with the one that began the folder ------------------------------------------------------

    def _describe_request(self) -> dict[str, Any]:
        like = {
            name: {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch."), "axis": spec.axis}
            for name, spec in sorted(self._specs.items())
        }
        about = {"model": self._seen.title, "mark": fingerprint_model(self._model), "layers": self._layers}
        left_out = {"left out": self._left_out} if self._left_out else {}
        return about | left_out | {"tensors": like, "samples": None}

    def _find_earlier(self) -> Activations | None:
        """Return the activations of an earlier call, if they match this call; start the folder if there was none."""
        for part in self._folder.glob(".*.part"):  # left by a process that was killed
            part.unlink(missing_ok=True)
        if not (self._folder / ABOUT).is_file():
            if list_shards(self._folder):
                raise ValueError(
                    f"{self._folder} has shards but no {ABOUT}, so collect cannot tell where they come from. Pass "
                    "another "
                    "folder as to="
                )
            self._write_description(self._about)
            return None
        old = Activations(self._folder, resuming=True)
        for what, word in _COMPARED.items():
            then, now = old.about[what], self._about[what]
            if then != now:
                what_changed = (
                    f"a different {word}"
                    if what == "mark"
                    else f"{word} {_format_value(then)}, but now it is {_format_value(now)}"
                )
                raise self._refuse_to_resume(f"it was collected with {what_changed}")
        if (changes := old.about.get("changes")) and old.shards and not old.complete:
            raise self._refuse_to_resume(
                f"each pass might change {changes} of the model, and its value at this point was not saved"
            )
        self._shards, self._bytes = len(old.shards), sum(shard.path.stat().st_size for shard in old.shards)
        return old

    def _compare(self, samples: int, mark: str, samples_then: int, mark_then: str) -> None:
        if samples != samples_then:
            raise self._refuse_to_resume(f"batches had {samples_then} samples, but now they have {samples}")
        if mark != mark_then:
            raise self._refuse_to_resume(
                "the batch has different data from the earlier run, perhaps because the loader shuffles them"
            )

    def _refuse_to_resume(self, why: str) -> ValueError:
        way = "Pass another folder as to=, or delete this one"
        return ValueError(f"cannot resume in {self._folder} at sample {self._done:,}: {why}. {way}")

    def _write_description(self, about: dict[str, Any]) -> None:
        data = encode_description(about)
        try:
            write_whole(self._folder / ABOUT, data)
        except OSError as error:
            raise self._explain_full_disk(error, len(data)) from error

    def _check_room(self, each: int, length: int | None, max_bytes: int | None) -> None:
        if length is None:
            return
        total = each * length
        if max_bytes is not None and total > max_bytes:
            raise MemoryError(
                f"{length:,} samples would take {format_bytes(total)}, more than max_bytes={max_bytes:,}. Choose fewer "
                "layers, or pass dtype=torch.float16"
            )
        free = shutil.disk_usage(self._folder).free
        if total - self._bytes > free:
            raise OSError(
                errno.ENOSPC,
                f"{length:,} samples take {format_bytes(total)}. {format_bytes(self._bytes)} of them are stored, and "
                "only "
                f"{format_bytes(free)} are free. Choose fewer layers, pass dtype=torch.float16, or use another disk",
                str(self._folder),
            )


_COMPARED = {
    "model": "the model", "mark": "model (its modules, options, parameters or buffers changed)",
    "layers": "the layers", "tensors": "outputs",
}  # fmt: skip


def _format_value(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Refuse a folder to which another call writes. The operating system drops the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    busy = RuntimeError(f"another collect(...) is writing to {folder}. Wait for it, or pass another folder as to=")
    info, ours = folder.stat(), object()
    key = (os.getpid(), info.st_dev, info.st_ino)
    try:
        # POSIX drops the lock when any descriptor of the file closes, so one process must open it only once.
        if _writing.setdefault(key, ours) is not ours:
            raise busy
        with _open_lock(folder / ".lock") as lock:
            try:
                # Not flock: DataLoader workers inherit it, and they can outlive this call or this process.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):  # other errors: the file system has no locks
                    raise busy from error
            yield
    finally:
        if _writing.get(key) is ours:
            del _writing[key]


def _open_lock(path: Path) -> IO[bytes]:
    """Open the lock file. Refuse a link and a FIFO, because somebody else might have made the folder."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(f"{path} is a link or not a file. Delete it, or pass another folder as to=")
    return path.open("wb")


_writing: dict[tuple[int, int, int], object] = {}
"""(process, folder) -> the call that writes there, because lockf cannot tell two calls of one process apart."""
