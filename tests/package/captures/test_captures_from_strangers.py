"""A file that somebody made on purpose is refused in a sentence, and makes nothing larger than it is itself."""

from __future__ import annotations

import copy
import json
import os
import random
from collections import deque, namedtuple
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from hookscope import capture
from hookscope.captures import Capture, NotCapturedError
from tests.shared.awkward import Do

HEAD = "hookscope capture"
ONE = torch.ones(3)
Two = namedtuple("Two", "first second")
VALUES = (
    (ONE, Two(ONE, "text"), {"a": ONE, 1: None}, {1, 2}, SimpleNamespace(a=ONE), np.float32(0.5), np.ones(2)),
    (np.bytes_(b"ab"), np.str_("ab"), b"ab", 2j, torch.float16, torch.device("cpu"), torch.Size([1]), deque([1], 3)),
    (ONE.to(torch.complex64), torch.sort(ONE), nn.utils.rnn.pack_sequence([ONE]), ONE.to_sparse(), print),
)


class File:
    """The head of a saved capture, which may be changed, and its tensors."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "seen.safetensors"
        net = nn.ModuleList([Do(VALUES.__getitem__), nn.ReLU()])
        with capture(net, inputs=True, gradients=True, **options) as seen:
            for number in range(len(VALUES)):
                net[0](number)
            net[1](ONE.clone().requires_grad_()).sum().backward()
        seen.save(self.path)
        with safe_open(self.path, framework="pt") as file:
            self.head = json.loads(file.metadata()[HEAD])
            self.tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    def write(self, text: str = "") -> Path:
        save_file(self.tensors, self.path, {HEAD: text or json.dumps(self.head)})
        return self.path


def refusal(path: Path) -> str:
    """Load a capture and ask for everything, or return why it is refused."""
    try:
        seen = Capture.load(path)
    except ValueError as error:
        return str(error)
    repr((seen, seen._repr_mimebundle_(), seen.notes, seen.order, seen.overwritten, seen.uncalled))
    for call in seen.calls:
        for what in ("output", "grad", "stats", "grad_stats", "args", "kwargs"):
            with suppress(NotCapturedError):
                repr(getattr(call, what))
    return ""


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """List the places in a head: a list or dict, and the index or key of something in it."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, item in items for place in nodes(item)]


def of_kind(file: File, kind: str) -> dict[str, Any]:
    """Return the first value of a kind in a head."""
    found = (holder[key] for holder, key in nodes(file.head) if isinstance(holder[key], dict))
    return next(value for value in found if value.get("is") == kind)


def test_the_file_that_is_changed_here_is_read_as_it_is(tmp_path: Path) -> None:
    for options in ({}, {"stats": True}):
        assert refusal(File(tmp_path, **options).write()) == ""


CHANGED: dict[str, Callable[[File], object]] = {
    "bytes that would be made": lambda file: of_kind(file, "number").update(kind="S", of=600_000),
    "text that would be made": lambda file: of_kind(file, "number").update(kind="U", of=600_000),
    "an array of a shape": lambda file: of_kind(file, "number").update(kind="(600000,)i4", of=0),
    "a number that does not fit": lambda file: of_kind(file, "number").update(kind="<i1", of=600_000),
    "one tensor that stands for many": lambda file: file.head["calls"].append(file.head["calls"][0]),
    "a shape that is too large": lambda file: of_kind(file, "tensor").update(shape=[10**9, 10**9]),
    "a shape beyond all integers": lambda file: of_kind(file, "tensor").update(shape=[10**30]),
    "a shape that is to be guessed": lambda file: of_kind(file, "tensor").update(shape=[-1]),
    "a function for a dtype": lambda file: of_kind(file, "tensor").update(dtype="load"),
    "a device that is none": lambda file: of_kind(file, "device").update(of="nowhere"),
    "a deque of less than nothing": lambda file: of_kind(file, "deque").update(most=-1),
    "a deque of too much": lambda file: of_kind(file, "deque").update(most=10**30),
    "a kind that is none": lambda file: of_kind(file, "tuple").update({"is": "_init__"}),
    "a kind that is a list": lambda file: of_kind(file, "tuple").update({"is": ["tuple"]}),
    "a list without its kind": lambda file: of_kind(file, "tuple").update(of=[[1, 2]]),
    "an attribute of Python's own": lambda file: of_kind(file, "object").update(of={"__class__": 1}),
    "no sequence where one is packed": lambda file: of_kind(file, "PackedSequence").update(of=[1, 2, 3, 4]),
    "a title that is a list": lambda file: file.head.update(title=[1]),
    "a layer that is a number": lambda file: file.head.update(layers=[1]),
    "a note that is a list": lambda file: file.head.update(notes=[["a"]]),
    "reasons that are no texts": lambda file: file.head.update(uncalled={"a": 1}),
    "a write by a number": lambda file: file.head["calls"][0].update(overwritten_by=1),
    "a call with a negative number": lambda file: file.head["calls"][0].update(number=-1),
    "a call without a layer": lambda file: file.head["calls"][0].pop("layer"),
    "a call with other inputs": lambda file: file.head["calls"][0].update(args={"is": "tuple", "of": [1, 2]}),
    "no version": lambda file: file.head.pop("version"),
    "a version that is a list": lambda file: file.head.update(version=[2]),
    "what was wanted, in other types": lambda file: file.head["wanted"]["of"].__setitem__(0, "yes"),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_no_capture_says_is_refused(change: Callable[[File], object], tmp_path: Path) -> None:
    file = File(tmp_path)
    change(file)
    with pytest.raises(ValueError, match=r"the head of .*seen\.safetensors is not what Capture.save wrote .* again"):
        Capture.load(file.write())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "1", "no JSON", "NaN", "1" * 5000])
def test_what_is_no_head_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not what Capture\.save wrote"):
        Capture.load(File(tmp_path).write(text))


def test_values_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    file = File(tmp_path)
    node: dict[str, Any] = {"is": "list", "of": []}
    for _ in range(200):
        node = {"is": "list", "of": [node]}
    file.head["calls"][0]["output"] = node
    with pytest.raises(ValueError, match="nested deeper"):
        Capture.load(file.write())


def test_statistics_and_tensors_do_not_take_each_others_place(tmp_path: Path) -> None:
    file, other = File(tmp_path), File(tmp_path, stats=True)
    of_kind(file, "slot")["value"] = of_kind(other, "stats")
    with pytest.raises(ValueError, match="found Stats, expected Tensor"):
        Capture.load(file.write())


@pytest.mark.skipif(os.name == "nt", reason="named pipes")
def test_a_pipe_is_not_waited_on_and_a_folder_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.safetensors")
    opened = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # else a reader would wait here for ever if this fails
    try:
        for path in (pipe, tmp_path):
            with pytest.raises(ValueError, match=f"{path} is no regular file"):
                Capture.load(path)
    finally:
        os.close(opened)
    with pytest.raises(FileNotFoundError):
        Capture.load(tmp_path / "nothing.safetensors")


ODD = (None, True, -1, 0, 10**30, 0.5, "", "tensor", "stats", "(root)", [], [1], {}, {"is": "tuple", "of": [None]})


@pytest.mark.parametrize("options", [{}, {"stats": True}], ids=["tensors", "stats"])
def test_of_hundreds_of_changes_each_is_refused_in_a_sentence_or_can_be_read(
    options: dict[str, Any], tmp_path: Path
) -> None:
    file, chance = File(tmp_path, **options), random.Random(0)
    whole, refused = copy.deepcopy(file.head), 0
    for _ in range(300):
        file.head = copy.deepcopy(whole)
        places = nodes(file.head)
        for holder, key in chance.sample(places, chance.choice((1, 1, 3))):
            elsewhere, its = chance.choice(places)
            if isinstance(holder, dict) and chance.random() < 0.2:
                holder.pop(key, None)
            elif chance.random() < 0.3 and its in (elsewhere if isinstance(elsewhere, dict) else range(len(elsewhere))):
                holder[key] = copy.deepcopy(elsewhere[its])
            else:
                holder[key] = copy.deepcopy(chance.choice(ODD))
        if said := refusal(file.write()):
            assert str(file.path) in said
            refused += 1
    assert 100 < refused < 300


def test_bytes_that_change_are_refused_or_read(tmp_path: Path) -> None:
    path, chance = File(tmp_path).path, random.Random(0)
    whole = path.read_bytes()
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        said = refusal(path)
        assert not said or str(path) in said
