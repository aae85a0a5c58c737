"""Save what a capture kept, in a file that needs neither the model nor a pickle, and load it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor

from hookscope.captures.call import Call, Wanted
from hookscope.captures.form import Form, stats_of
from hookscope.captures.hooks import Kept
from hookscope.captures.written import Reading, Writing
from hookscope.extras import needed_by

__all__ = ["load", "save", "write_whole"]

_VERSION = 2
_OF_A_CALL = ("layer", "number", "type", "by", "run", "decoding", "generation", "_returned")


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
    places = {id(call): number for number, call in enumerate(kept.order)}
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
        "found": [[places[id(call)], by] for call, by in kept.found.items()],
        "notes": [*kept.notes, *writing.losses],
    }
    write_whole(path, to_bytes(writing.tensors, {"hookscope capture": json.dumps(about)}))


def load(path: str | Path) -> dict[str, Any]:
    """Read the state of a capture; see `Capture.load`."""
    with needed_by("Capture.load"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="pt") as file:
            told = dict(file.metadata() or {})
            if "hookscope capture" not in told:
                raise ValueError(f"{path} is no capture that was saved by hookscope")
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not whole, or no safetensors file ({error})") from error
    try:
        about = json.loads(told["hookscope capture"])
        version = about["version"]
    except (ValueError, LookupError, TypeError) as error:
        raise _not_as_saved(path, error) from error
    if version != _VERSION:
        raise ValueError(f"{path} is of another version of hookscope, {version}; this one reads {_VERSION}")
    try:
        return _state(about, tensors)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise _not_as_saved(path, error) from error


def _not_as_saved(path: str | Path, error: Exception) -> ValueError:
    return ValueError(f"the head of {path} is not what Capture.save wrote ({error!r}): save the capture again")


def _state(about: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    reading = Reading(tensors.__getitem__)
    gradients, inputs, max_bytes, stop, whole = reading.of(about["wanted"])
    if whole is not None and whole["sample"] is not None:
        whole["sample"] = slice(*whole["sample"])
    wanted = Wanted(gradients, inputs, stats_of if whole is None else Form(**whole), max_bytes, stop)
    calls = []
    for each in about["calls"]:
        call = Call(each["layer"], each["number"], each["type"], wanted)
        for name in _OF_A_CALL:
            setattr(call, name, each[name.lstrip("_")])
        call._output, call._args = reading.of(each["output"]), reading.of(each["args"])
        calls.append(call)
    found = {calls[number]: by for number, by in about["found"]}
    return {
        "title": about["title"],
        "stopped": about["stopped"],
        "_layers": dict(enumerate(about["layers"])),
        "_uncalled": about["uncalled"],
        "_wanted": wanted,
        "_open": False,
        "_hooks": Kept(calls, dict.fromkeys(about["notes"]), found),
    }


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
