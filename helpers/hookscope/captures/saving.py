"""Save what a capture kept, in a file that needs neither the model nor a pickle, and load it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.call import Call, Wanted
from hookscope.captures.recorder import PassRecord
from hookscope.captures.serialize import Decoder, Encoder, expect
from hookscope.captures.stats import Stats, compute_stats
from hookscope.captures.storage_options import StorageOptions
from hookscope.extras import optional_import

__all__ = ["load", "refuse_pipes", "save", "write_whole"]

_VERSION = 3
_OF_A_CALL = ("layer", "number", "type", "by", "run", "decoding", "generation", "overwritten_by", "_returned")


def save(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the state of a capture; see `Capture.save`."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"a capture is saved as safetensors: name the file {path.stem + '.safetensors'!r}")
    with optional_import("Capture.save"):
        from safetensors.torch import save as to_bytes
    encoder, kept, wanted = Encoder(), state["_record"], state["_wanted"]
    calls = []
    for call in kept.order:
        about = {name.lstrip("_"): getattr(call, name) for name in _OF_A_CALL}
        about["output"] = encoder.named(f"{call.label}/output", call._output)
        about["args"] = encoder.named(f"{call.label}/args", call._args)
        calls.append(about)
    form = wanted.form
    whole = (
        {field.name: getattr(form, field.name) for field in fields(form)} if isinstance(form, StorageOptions) else None
    )
    if whole is not None and form.samples is not None:
        whole["samples"] = [form.samples.start, form.samples.stop, form.samples.step]
    about = {
        "version": _VERSION,
        "title": state["title"],
        "stopped": state["stopped"],
        "layers": list(state["_layers"].values()),
        "uncalled": state["_uncalled"],
        "wanted": encoder.of([wanted.gradients, wanted.inputs, wanted.max_bytes, wanted.stop, whole]),
        "calls": calls,
        "notes": [*kept.notes, *encoder.losses],
    }
    write_whole(path, to_bytes(encoder.tensors, {"hookscope capture": json.dumps(about)}))


def load(path: str | Path) -> dict[str, Any]:
    """Read the state of a capture; see `Capture.load`."""
    with optional_import("Capture.load"):
        from safetensors import safe_open
    refuse_pipes(Path(path))
    # A file may come from anybody: whatever it makes safetensors, torch or us raise, is said in a sentence.
    try:
        with safe_open(path, framework="pt") as file:
            told = dict(file.metadata() or {})
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not whole, or no safetensors file ({error!s:.200})") from error
    if "hookscope capture" not in told:
        raise ValueError(f"{path} is no capture that was saved by hookscope")
    try:
        about = json.loads(told["hookscope capture"])
        version = expect(about["version"], int)
    except Exception as error:
        raise _not_as_saved(path, error) from error
    if version != _VERSION:
        raise ValueError(f"{path} is of another version of hookscope, {version}; this one reads {_VERSION}")
    try:
        return _state(about, tensors)
    except Exception as error:
        raise _not_as_saved(path, error) from error


def refuse_pipes(path: Path) -> None:
    """Refuse what is there and is no regular file: a pipe would be waited on for ever, and a device has no end.

    Raises:
        ValueError: it is a folder, a pipe, a socket or a device.

    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file, but a folder, a pipe or a device: give the name of a file")


def _not_as_saved(path: str | Path, error: Exception) -> ValueError:
    return ValueError(f"the head of {path} is not what Capture.save wrote ({error!r:.200}): save the capture again")


def _state(about: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    decoder = Decoder(tensors)
    wanted = _wanted(decoder.of(about["wanted"]))
    decoder.kept = Stats if wanted.stats_only else Tensor
    calls = []
    for each in expect(about["calls"], list):
        call = Call(each["layer"], each["number"], each["type"], wanted)
        for name in _OF_A_CALL:
            setattr(call, name, expect(each[name.lstrip("_")], type(getattr(_A_CALL, name))))
        if min(call.number, call.run, call.generation) < 0:
            raise ValueError(f"a call of {call.layer!r:.80} has a negative number")
        call._output, call._args = decoder.of(each["output"]), decoder.of(each["args"])
        args, kwargs = expect(call._args, tuple)
        expect(args, tuple), expect(kwargs, dict)
        calls.append(call)
    for text in [
        *expect(about["layers"], list),
        *expect(about["notes"], list),
        *expect(about["uncalled"], dict).values(),
    ]:
        expect(text, str)
    return {
        "title": expect(about["title"], str),
        "stopped": expect(about["stopped"], str),
        "_layers": dict(enumerate(about["layers"])),
        "_uncalled": about["uncalled"],
        "_wanted": wanted,
        "_open": False,
        "_record": PassRecord(calls, dict.fromkeys(about["notes"])),
    }


def _wanted(told: Any) -> Wanted:
    gradients, inputs, max_bytes, stop, whole = expect(told, list)
    form: Any = compute_stats
    if whole is not None:
        form = StorageOptions(**expect(whole, dict))
        samples = form.samples if form.samples is None else slice(*expect(form.samples, list))
        for part in () if samples is None else (samples.start, samples.stop, samples.step):
            expect(part, int, _NONE)
        form = replace(form, samples=samples)
        (
            expect(form.dtype, torch.dtype, _NONE),
            expect(form.device, torch.device, _NONE),
            expect(form.copy, bool),
        )
    expect(max_bytes, int, float, _NONE)
    return Wanted(expect(gradients, bool), expect(inputs, bool), form, max_bytes, expect(stop, int))


_NONE = type(None)
_A_CALL = Call(
    "", 1, "", Wanted(False, False, compute_stats)
)  # each attribute is of the type that a saved one must have


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name first, so that under its own it is whole whenever somebody looks."""
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
