"""What was stopped goes on with no sample lost and none twice; where something is not the same, it is refused."""

from __future__ import annotations

import gc
import io
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookscope import Activations, census, collect
from hookscope.interp.activations import DamagedError
from hookscope.interp.activations.fingerprint import fingerprint_batch
from hookscope.interp.activations.shards import list_shards
from tests.package.interp.activations.test_what_is_collected import X, by_hand, small
from tests.shared import PATIENCE, ROOT
from tests.shared.small_disk import mount_small_disk


def stopped(net, folder, after: int, error: BaseException):
    def batches():
        for number, x in enumerate(X.split(2)):
            if number == after:
                raise error
            yield x

    with pytest.raises(type(error)):
        collect(net, batches(), "0", to=folder, shard_bytes=40)
    assert len(census(net)) == 0


@pytest.mark.parametrize("after", [1, 3, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no more data")])
def test_after_an_exception_all_that_was_there_is_there(after, error, tmp_path):
    net = small()
    stopped(net, tmp_path, after, error)
    begun = Activations(tmp_path)
    assert not begun.complete
    assert "to resume" in begun.notes[0]
    assert torch.equal(begun["0"][:], by_hand(net, X.split(2))[: 2 * after])
    runs = []
    net.register_forward_hook(lambda *_: runs.append(1))
    stored = collect(net, X.split(2), "0", to=tmp_path, shard_bytes=40)
    assert torch.equal(stored["0"][:], by_hand(net, X.split(2)))
    assert len(runs) == 2 + (6 - after) + 6, "two to find the axes, the rest, and six by hand"
    stored.check()


def test_what_is_complete_stays_as_it_is(tmp_path):
    before = collect(small(), X.split(2), "0", to=tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(collect(small(), X.split(2), "0", to=tmp_path)) == len(before)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


def other_weights():
    net = small()
    with torch.no_grad():
        net[2].bias[0] += 1e-3
    return net


def other_module():
    net = small()
    net[1] = nn.GELU().eval()
    return net


DIFFERENT = {
    "weights": (other_weights, X.split(2), ("0",), {}, "a different model"),
    "modules": (other_module, X.split(2), ("0",), {}, "a different model"),
    "layers": (small, X.split(2), ("0", "2"), {}, r'the layers \["0"\], but now it is \["0", "2"\]'),
    "dtype": (small, X.split(2), ("0",), {"dtype": torch.float16}, "outputs"),
    "data": (small, (X + 1).split(2), ("0",), {}, "the batch has different data"),
    "order": (small, X.flip(0).split(2), ("0",), {}, "the batch has different data"),
    "batches": (small, X.split(3), ("0",), {}, "batches had 2 samples, but now they have 3"),
    "less": (small, X[:2].split(2), ("0",), {}, "the loader has 2 samples, but 6 are stored"),
}


@pytest.mark.parametrize("different", DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_not_the_same_is_refused_and_nothing_is_written(different, tmp_path):
    make, loader, layers, options, said = different
    stopped(small(), tmp_path, 3, KeyboardInterrupt())
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=said):
        collect(make(), loader, *layers, to=tmp_path, **options)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_more_data_than_a_complete_one_had(tmp_path):
    collect(small(), X[:6].split(2), "0", to=tmp_path)
    with pytest.raises(ValueError, match="more than the 6 samples of the earlier run"):
        collect(small(), X.split(2), "0", to=tmp_path)


OTHER = """
import sys, torch
from hookscope import collect
collect(torch.nn.Identity().eval(), [torch.ones(2, 3)], to=sys.argv[1], progress=False)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_do_not_write_to_one_folder(tmp_path):
    def batches():
        yield X
        with pytest.raises(RuntimeError, match="another collect"):
            collect(small(), [X], "0", to=tmp_path)
        command = [sys.executable, "-c", OTHER, str(tmp_path)]
        other = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
        assert "another collect" in other.stderr

    assert len(collect(small(), batches(), "0", to=tmp_path)) == 11


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_workers_that_outlive_a_call_do_not_hold_its_folder(tmp_path):
    loader = DataLoader(TensorDataset(X), 2, num_workers=1, persistent_workers=True)

    def batches():  # the worker begins when the folder is taken already
        yield from islice(loader, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(small(), batches(), "0", to=tmp_path)
    assert any(worker.is_alive() for worker in loader._iterator._workers)
    assert len(collect(small(), loader, "0", to=tmp_path)) == 11


def test_a_full_disk_is_said_and_what_is_there_can_be_read(tmp_path):
    with mount_small_disk(tmp_path / "disk", "200k") as disk:
        fill(disk)
        gc.collect()  # files that are mapped


def fill(disk):
    net = nn.Sequential(nn.Linear(4, 1000)).eval()
    with pytest.raises(OSError, match=r"11 samples take 43\.0 KiB.*are free"), a_file(disk / "much", 180_000):
        collect(net, X.split(2), to=disk / "a")
    full = pytest.raises(OSError, match=r"full at sample \d+\. The first \d+ samples are saved")
    with full as caught, a_file(disk / "much", 150_000):
        collect(net, (x for x in X.split(2)), to=disk / "a", shard_bytes=1)
    assert "call collect(...) again to resume" in str(caught.value)
    begun = Activations(disk / "a")
    begun.check()
    assert 0 < len(begun) < 11
    assert not list((disk / "a").glob(".*.part"))
    assert torch.equal(begun["0"][:], by_hand(net, X.split(2))[: len(begun)])
    stored = collect(net, X.split(2), to=disk / "a", shard_bytes=1)
    assert torch.equal(stored["0"][:], by_hand(net, X.split(2)))


class a_file:  # noqa: N801
    def __init__(self, path, size):
        self.path, self.size = path, size

    def __enter__(self):
        self.path.write_bytes(b"0" * self.size)

    def __exit__(self, *_):
        self.path.unlink()


@pytest.mark.parametrize("when", ["data", "half", "fsync", "replace"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_killed_in_the_middle_of_writing(when, number, tmp_path, monkeypatch):
    net = small()
    if (child := os.fork()) == 0:
        try:
            left = [number]

            def die(*args):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return args

            class Half(io.FileIO):
                def write(self, data):
                    if left[0] == 1:
                        super().write(data[: len(data) // 2])
                    die()
                    return super().write(data)

            if when == "half":
                opened = Path.open
                monkeypatch.setattr(
                    Path,
                    "open",
                    lambda path, mode="r", **more: Half(path, mode) if mode == "wb" else opened(path, **more),
                )
            at = {"fsync": (os, "fsync"), "replace": (Path, "replace")}.get(when)
            if at:
                real = getattr(*at)
                monkeypatch.setattr(*at, lambda *args: real(*die(*args)))
            loader = (die(x)[0] for x in X.split(2)) if when == "data" else X.split(2)
            collect(net, loader, "0", to=tmp_path, shard_bytes=40)
        finally:
            os._exit(0)  # never on in the tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    stored = collect(net, X.split(2), "0", to=tmp_path, shard_bytes=40)
    stored.check()
    assert torch.equal(stored["0"][:], by_hand(net, X.split(2)))
    batches = [batch for shard in stored.shards for batch in shard.batches]
    assert batches == [(len(x), fingerprint_batch(x)) for x in X.split(2)]
    assert not list(tmp_path.glob(".*.part")), "a file that was half written stays"


KILLED = """
import sys, torch
from torch import nn
from hookscope import collect
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
x = torch.randn(3000, 16, generator=torch.Generator().manual_seed(1))
print("ready", flush=True)
collect(net, x.split(7), to=sys.argv[1], shard_bytes=20_000, progress=False)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(tmp_path):
    command = [sys.executable, "-c", KILLED]
    whole = subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=PATIENCE, cwd=ROOT)
    assert whole.returncode == 0
    moments = random.Random(0)
    kills = 0
    for _ in range(4):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.PIPE, cwd=ROOT)
        process.stdout.readline()
        time.sleep(moments.uniform(0.02, 0.3))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert kills >= 2, "each had ended before it was killed"
    subprocess.run([*command, str(tmp_path / "killed")], check=True, timeout=PATIENCE, cwd=ROOT)
    one, other = Activations(tmp_path / "whole"), Activations(tmp_path / "killed")
    other.check()
    assert len(one) == len(other) == 3000
    assert one.complete
    assert other.complete
    for name in one.names:
        assert torch.equal(one[name][:], other[name][:])
    assert [batch for shard in one.shards for batch in shard.batches] == [
        batch for shard in other.shards for batch in shard.batches
    ]


@pytest.mark.slow
def test_memory_is_flat_over_many_samples(tmp_path):
    code = """
import resource, sys, torch
from torch import nn
from hookscope import collect
net = nn.Sequential(nn.Linear(8, 256)).eval()
def batches(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count // 100):
        yield torch.randn(100, 8, generator=generator)
peaks = []
for count in (10_000, 100_000):
    stored = collect(net, batches(count), to=f"{sys.argv[1]}/{count}", shard_bytes=4 << 20)
    assert len(stored) == count
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0], stored.nbytes)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        cwd=ROOT,
    )
    more, written = map(int, done.stdout.split())
    assert written == 100_000 * 1024
    assert more * 1024 < written / 10, f"{more} KiB more for ten times the samples"


def test_room_is_asked_for_what_is_not_there_yet(tmp_path, monkeypatch):
    import shutil
    from types import SimpleNamespace

    net = small()
    stopped(net, tmp_path, 5, KeyboardInterrupt())
    there = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert there > 132 - 20, "heads and samples: more than what all samples take"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=20))
    assert len(collect(net, X.split(2), "0", to=tmp_path, shard_bytes=40)) == 11
    with pytest.raises(
        OSError, match=r"11 samples take 132 bytes. 0 bytes of them are stored, and only 20 bytes are free"
    ):
        collect(net, X.split(2), "0", to=tmp_path / "other")


def test_a_shard_that_is_missing_in_the_middle_is_noticed(tmp_path):
    stopped(small(), tmp_path, 5, KeyboardInterrupt())
    Activations(tmp_path).shards[1].path.unlink()
    with pytest.raises(DamagedError, match="not 4, so a shard before it is missing"):
        Activations(tmp_path)


def test_a_shard_with_other_tensors_than_its_head_says(tmp_path):
    import hashlib
    import json

    from safetensors.torch import save_file

    from hookscope.interp.activations.shards import DamagedError, read_shard

    text = json.dumps({"first": 0, "batches": [[2, "x"]], "marks": {"0": "y"}, "made": ""})
    head = {"hookscope": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    path = tmp_path / "00000.safetensors"
    save_file({"0": X[:2]}, path, head)
    assert read_shard(path).samples == 2
    for tensors in ({"1": X[:2]}, {"0": X[:2], "1": X[2:4].clone()}):
        save_file(tensors, path, head)
        with pytest.raises(DamagedError, match=r"does not hold the tensors that its header lists. Delete"):
            read_shard(path)


def test_the_way_out_of_a_damaged_shard_is_one(tmp_path):
    whole = collect(small(), X.split(2), "0", to=tmp_path, shard_bytes=40)["0"][:]
    third = Activations(tmp_path).shards[2].path
    third.write_bytes(third.read_bytes()[:-10])
    with pytest.raises(DamagedError, match=r"Delete this file and all later shards"):
        collect(small(), X.split(2), "0", to=tmp_path, shard_bytes=40)
    for path in list_shards(tmp_path)[2:]:
        path.unlink()
    with pytest.raises(DamagedError, match=r"only 8 of 11 samples.*collect\(...\) again"):
        Activations(tmp_path)
    stored = collect(small(), X.split(2), "0", to=tmp_path, shard_bytes=40)
    stored.check()
    assert stored.complete
    assert torch.equal(stored["0"][:], whole)


def test_shards_are_in_the_order_of_their_numbers(tmp_path):
    names = [f"{number:05}.safetensors" for number in (0, 1, 99_998, 99_999, 100_000, 100_001)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in list_shards(tmp_path)] == names
