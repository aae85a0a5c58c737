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
from hookscope.captures.form import Form, Stats, stats_of
from hookscope.captures.hooks import Kept
from hookscope.captures.written import Reading, Writing, only
from hookscope.extras import needed_by

__all__ = ["load", "refuse_pipes", "save", "write_whole"]

_VERSION = 3
_OF_A_CALL = ("layer", "number", "type", "by", "run", "decoding", "generation", "overwritten_by", "_returned")


def save(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the state of a capture; see `Capture.save`."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"a capture is saved as safetensors: name the file {path.stem + '.safetensors'!r}")
    with needed_by("Capture.save"):
        from safetensors.torch import save as to_bytes
    writing, kept, wanted = Writing(), state["_hooks"], state["_wanted"]
    calls = []
    for call in kept.order:
        about = {name.lstrip("_"): getattr(call, name) for name in _OF_A_CALL}
        about["output"] = writing.named(f"{call.label}/output", call._output)
        about["args"] = writing.named(f"{call.label}/args", call._args)
        calls.append(about)
    form = wanted.form
    whole = {field.name: getattr(form, field.name) for field in fields(form)} if isinstance(form, Form) else None
    if whole is not None and form.sample is not None:
        whole["sample"] = [form.sample.start, form.sample.stop, form.sample.step]
    about = {
        "version": _VERSION,
        "title": state["title"],
        "stopped": state["stopped"],
        "layers": list(state["_layers"].values()),
        "uncalled": state["_uncalled"],
        "wanted": writing.of([wanted.gradients, wanted.inputs, wanted.max_bytes, wanted.stop, whole]),
        "calls": calls,
        "notes": [*kept.notes, *writing.losses],
    }
    write_whole(path, to_bytes(writing.tensors, {"hookscope capture": json.dumps(about)}))


def load(path: str | Path) -> dict[str, Any]:
    """Read the state of a capture; see `Capture.load`."""
    with needed_by("Capture.load"):
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
        version = only(about["version"], int)
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
    reading = Reading(tensors)
    wanted = _wanted(reading.of(about["wanted"]))
    reading.kept = Stats if wanted.stats_only else Tensor
    calls = []
    for each in only(about["calls"], list):
        call = Call(each["layer"], each["number"], each["type"], wanted)
        for name in _OF_A_CALL:
            setattr(call, name, only(each[name.lstrip("_")], type(getattr(_A_CALL, name))))
        if min(call.number, call.run, call.generation) < 0:
            raise ValueError(f"a call of {call.layer!r:.80} has a negative number")
        call._output, call._args = reading.of(each["output"]), reading.of(each["args"])
        args, kwargs = only(call._args, tuple)
        only(args, tuple), only(kwargs, dict)
        calls.append(call)
    for text in [*only(about["layers"], list), *only(about["notes"], list), *only(about["uncalled"], dict).values()]:
        only(text, str)
    return {
        "title": only(about["title"], str),
        "stopped": only(about["stopped"], str),
        "_layers": dict(enumerate(about["layers"])),
        "_uncalled": about["uncalled"],
        "_wanted": wanted,
        "_open": False,
        "_hooks": Kept(calls, dict.fromkeys(about["notes"])),
    }


def _wanted(told: Any) -> Wanted:
    gradients, inputs, max_bytes, stop, whole = only(told, list)
    form: Any = stats_of
    if whole is not None:
        form = Form(**only(whole, dict))
        sample = form.sample if form.sample is None else slice(*only(form.sample, list))
        for part in () if sample is None else (sample.start, sample.stop, sample.step):
            only(part, int, _NONE)
        form = replace(form, sample=sample)
        only(form.dtype, torch.dtype, _NONE), only(form.device, torch.device, _NONE), only(form.copy, bool)
    only(max_bytes, int, float, _NONE)
    return Wanted(only(gradients, bool), only(inputs, bool), form, max_bytes, only(stop, int))


_NONE = type(None)
_A_CALL = Call("", 1, "", Wanted(False, False, stats_of))  # each attribute is of the type that a saved one must have


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
