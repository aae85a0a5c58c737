"""A folder that `collect` never wrote is refused in a sentence, whatever it claims to hold."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from hookscope import collect
from hookscope.interp.activations import Activations, DamagedError


class Folder:
    """What `collect` wrote, which may be changed, with the checksums that go with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.shard, self.about_file = path, path / "00001.safetensors", path / "collected.json"
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
        collect(net, torch.ones(4, 2).split(2), "0", "1", to=path, shard_bytes=1)
        self.about = json.loads(self.about_file.read_text())
        del self.about["sha256"]
        with safe_open(self.shard, framework="pt") as file:
            self.head = json.loads(file.metadata()["hookscope"])
            self.tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    def write(self, text: str = "", about: str = "") -> None:
        text, about = text or json.dumps(self.head), about or json.dumps(self.about)
        save_file(self.tensors, self.shard, {"hookscope": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
        mark = hashlib.sha256(about.encode()).hexdigest()
        self.about_file.write_text(f'{about[:-1]}, "sha256": "{mark}"}}' if about.endswith("}") else about)

    def refusal(self) -> str:
        """Open it and ask for everything, or return why it is refused."""
        try:
            stored = Activations(self.path)
            repr((stored, stored._repr_mimebundle_(), stored.notes, len(stored), stored.nbytes, stored.to_pandas()))
            for name in stored.names:
                repr((stored[name], stored[name][:]))
            stored.check()
        except DamagedError as error:
            return str(error)
        return ""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "stored")


def test_the_folder_that_is_changed_here_is_read_as_it_is(folder: Folder) -> None:
    folder.write()
    assert folder.refusal() == ""


def like(folder: Folder) -> dict[str, Any]:
    return folder.about["tensors"]["1"]


def samples(folder: Folder, *numbers: object) -> None:
    folder.head["batches"] = [[number, "mark"] for number in numbers]


CHANGED: dict[str, Callable[[Folder], object]] = {
    "less than no samples": lambda folder: samples(folder, 4, -2),
    "samples that are not there": lambda folder: samples(folder, 10**6),
    "more samples than can be counted": lambda folder: samples(folder, 10**30),
    "a sample that is a text": lambda folder: samples(folder, "2"),
    "samples that are a list": lambda folder: samples(folder, [2]),
    "no batches": lambda folder: folder.head.pop("batches"),
    "no first sample": lambda folder: folder.head.pop("first"),
    "a first sample that is a list": lambda folder: folder.head.update(first=[2]),
    "marks in a list": lambda folder: folder.head.update(marks=["0", "1"]),
    "made by a number": lambda folder: folder.head.update(made=1),
    "a tensor with other sides": lambda folder: folder.tensors.update({"1": torch.ones(2, 3)}),
    "a tensor without axes": lambda folder: folder.tensors.update({"1": torch.ones(())}),
    "a tensor of another dtype": lambda folder: folder.tensors.update({"1": torch.ones(2, 2).half()}),
    "in all, no number of samples": lambda folder: folder.about.pop("samples"),
    "in all, a text of samples": lambda folder: folder.about.update(samples="4"),
    "in all, less than no samples": lambda folder: folder.about.update(samples=-4),
    "in all, no tensors": lambda folder: folder.about.update(tensors={}),
    "in all, tensors in a list": lambda folder: folder.about.update(tensors=["0", "1"]),
    "in all, a function for a dtype": lambda folder: like(folder).update(dtype="load"),
    "in all, no shape": lambda folder: like(folder).pop("shape"),
    "in all, a negative side": lambda folder: like(folder).update(shape=[-2]),
    "in all, a shape that is too large": lambda folder: like(folder).update(shape=[10**10, 10**10]),
    "in all, no axis": lambda folder: like(folder).pop("axis"),
    "in all, a model that is a list": lambda folder: folder.about.update(model=["Sequential"]),
    "in all, reasons that are numbers": lambda folder: folder.about.update({"left out": {"a": 1}}),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_collect_never_writes_is_refused(change: Callable[[Folder], object], folder: Folder) -> None:
    change(folder)
    folder.write()
    said = folder.refusal()
    assert str(folder.path) in said
    assert "Delete this file" in said or "collected.json" in said


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "1", "no JSON"])
def test_what_is_no_json_is_refused(text: str, folder: Folder) -> None:
    folder.write(text=text)
    assert f"the header of {folder.shard} was changed" in folder.refusal()
    folder.write(about=text)
    assert f"{folder.about_file} was changed after it was written" in folder.refusal()


@pytest.mark.skipif(os.name == "nt", reason="named pipes")
def test_a_pipe_among_the_shards_is_not_waited_on(folder: Folder) -> None:
    os.mkfifo(pipe := folder.path / "99999.safetensors")
    opened = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # else a reader would wait here for ever if this fails
    try:
        with pytest.raises(DamagedError, match=r"99999\.safetensors is not a regular file.*Delete this file"):
            Activations(folder.path)
    finally:
        os.close(opened)


@pytest.mark.skipif(os.name == "nt", reason="named pipes")
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_written_through_a_lock_that_is_no_file(tmp_path: Path, kind: str) -> None:
    (other := tmp_path / "mine.txt").write_text("mine")
    (to := tmp_path / "to").mkdir()
    if kind == "link":
        (to / ".lock").symlink_to(other)
    else:
        os.mkfifo(to / ".lock")
    with pytest.raises(FileExistsError, match=r"\.lock is a link or not a file\. Delete it"):
        collect(nn.Linear(2, 2).eval(), torch.ones(4, 2).split(2), "", to=to)
    assert other.read_text() == "mine"


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """List the places in what JSON holds: a list or dict, and the index or key of something in it."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, item in items for place in nodes(item)]


ODD = (None, True, -1, 0, 10**30, 0.5, "", "0", "float16", [], [1], {}, {"shape": [2], "dtype": "float32", "axis": 0})


def test_of_hundreds_of_changes_each_is_refused_in_a_sentence_or_can_be_read(folder: Folder) -> None:
    chance, whole, refused = random.Random(0), copy.deepcopy((folder.about, folder.head)), 0
    for _ in range(300):
        folder.about, folder.head = copy.deepcopy(whole)
        holder, key = chance.choice(nodes(chance.choice((folder.about, folder.head))))
        if isinstance(holder, dict) and chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD))
        folder.write()
        if said := folder.refusal():
            assert str(folder.path) in said
            refused += 1
    assert 100 < refused < 300
