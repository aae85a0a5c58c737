"""A capture that was saved and loaded shows what it showed before, without the model and without a pickle."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hookscope import capture, explain, gradient_flow
from hookscope.captures import Capture, NotCapturedError
from tests.shared import ROOT
from tests.shared.awkward import Do
from tests.shared.disks import a_small_disk
from tests.shared.patience import PATIENCE


def again(seen: Capture, folder) -> Capture:
    seen.save(folder / "seen.safetensors")
    return Capture.load(folder / "seen.safetensors")


def test_where_the_pass_was_ended_is_kept(tmp_path):
    net = nn.Sequential(nn.Identity(), nn.ReLU())
    with capture(net, "0", stop=True) as seen:
        net(torch.ones(1))
    read = again(seen, tmp_path)
    assert (read.stopped, repr(read)) == ("0", repr(seen))


@pytest.mark.parametrize("options", [{}, {"samples": 0, "dtype": torch.float16}, {"stats": True}, {"device": "cpu"}])
def test_it_shows_the_same(options, tmp_path):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(3, 2))[:3]
    net.unused = nn.ReLU()
    with capture(net, gradients=True, inputs=True, **options) as seen:
        for x in (torch.ones(2, 3), torch.full((2, 3), float("nan"))):
            net[1](net[0](x)).sum().backward()
    read = again(seen, tmp_path)
    assert repr(read) == repr(seen)
    assert read._repr_mimebundle_() == seen._repr_mimebundle_()
    assert read.order == seen.order
    assert read.overwritten == seen.overwritten
    assert read.uncalled == seen.uncalled
    assert read.notes == seen.notes
    assert list(read) == list(seen)
    assert repr(gradient_flow(read).rows) == repr(gradient_flow(seen).rows)
    for call, before in zip(read.calls, seen.calls, strict=True):
        assert repr(call) == repr(before)
        assert (call.label, call.by, call.run, call.decoding) == (before.label, before.by, before.run, before.decoding)
        kept = ("stats", "grad_stats") if call.stats_only else ("output", "grad")
        for what in (*kept, "args", "kwargs"):
            same(getattr(call, what), getattr(before, what))
    for name in ("unused", "nothing"):
        with pytest.raises((NotCapturedError, LookupError)) as one:
            read[name]
        with pytest.raises((NotCapturedError, LookupError)) as other:
            seen[name]
        assert str(one.value) == str(other.value)


def test_notes_are_kept(tmp_path):
    with pytest.warns(UserWarning, match="picks nothing"), capture(net := nn.ReLU(), samples=7) as seen:
        net(torch.ones(2, 1))
    assert again(seen, tmp_path).notes == seen.notes
    assert len(seen.notes) == 1


def same(one, other):
    assert type(one) is type(other) or type(one).__name__ == type(other).__name__
    if isinstance(one, torch.Tensor):
        assert one.dtype is other.dtype
        assert one.shape == other.shape
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (tuple, list, deque)):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            same(each, its)
    else:
        assert repr(one) == repr(other)


Two = namedtuple("Two", "first second")
ONE = torch.tensor([1.0, -0.0, float("nan"), float("inf")])


@pytest.mark.parametrize(
    "value",
    [
        (ONE, [ONE, {"a": ONE, 1: (ONE,), None: 2}]),
        OrderedDict(b=ONE, a=3),
        Two(ONE, "text"),
        deque([ONE, ONE], 3),
        torch.sort(ONE),
        nn.utils.rnn.pack_sequence([ONE, ONE[:2]]),
        (1, 2.5, 1 + 2j, b"bytes", True, None, torch.float16, torch.device("cpu"), torch.Size([1, 2]), float("nan")),
        (np.float32(0.1), np.float16(2), np.float64(0.1), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
        (np.complex64(1 + 2j), np.str_("text"), np.bytes_(b"bytes")),
        {1, 2, 3},
        SimpleNamespace(a=1),
        *(
            torch.tensor([[1, 0], [1, 1]]).to(kind)
            for kind in (torch.bool, torch.int8, torch.bfloat16, torch.complex128)
        ),
        torch.tensor(3 + 4j).conj(),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.empty(0, 5),
        torch.tensor(7),
        torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2),
        torch.ones(1).expand(3, 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value(value, tmp_path):
    with capture(net := Do(lambda: value)) as seen:
        net()
    read = again(seen, tmp_path)
    assert read.notes == ()
    same(read[""].output, seen[""].output)


@dataclass
class Result:
    h: torch.Tensor
    step: int


def test_what_has_a_class_of_its_own_says_so(tmp_path):
    from transformers.modeling_outputs import BaseModelOutput

    given = {"data": lambda: Result(ONE, 2), "model": lambda: BaseModelOutput(last_hidden_state=ONE)}
    for name, make in given.items():
        with capture(net := Do(make)) as seen:
            net()
        read = again(seen, tmp_path)
        assert "without its class" in read.notes[0]
        output = read[""].output
        same(output.h if name == "data" else output.last_hidden_state, ONE)
    assert output[0] is output["last_hidden_state"]
    with pytest.raises(AttributeError, match="there are 'last_hidden_state'"):
        _ = output.nothing


def test_what_cannot_be_saved_says_so_when_asked(tmp_path):
    net = Do(lambda kind: (torch.eye(2).to_sparse(), print) if kind else torch.ones(1))
    with capture(net) as seen:
        net(0), net(1)
    read = again(seen, tmp_path)
    assert len(read.notes) == 2
    same(read["#1"].output, torch.ones(1))
    with pytest.raises(NotCapturedError, match="a Tensor was not saved: it is sparse_coo"):
        _ = read["#2"].output
    assert repr(read.calls) == repr(seen.calls)
    with capture(clock := Do(lambda: (np.datetime64(1, "ns"), np.longdouble(1)))) as seen:
        clock()
    notes = again(seen, tmp_path).notes
    assert notes[0] == "a datetime64 is read as the int that it holds"
    assert notes[1].endswith("was not saved: it is no number that Python has")
    with pytest.raises(RuntimeError, match="a copy without its model"):
        read.__enter__()
    with pytest.raises(RuntimeError, match="a copy without its model"):
        read.estimate(torch.ones(1))
    with pytest.raises(AttributeError, match="a copy without its model"):
        _ = read.modules
    with pytest.raises(TypeError, match="without its model"):
        explain(read)


def test_it_is_saved_again(tmp_path):
    with capture(net := nn.LSTM(2, 3), gradients=True) as seen:
        net(torch.ones(4, 1, 2))[0].sum().backward()
    once = again(seen, tmp_path)
    (tmp_path / "b").mkdir()
    same(again(once, tmp_path / "b")[""].grad, seen[""].grad)


def test_another_process_reads_it_without_the_model_or_a_pickle(tmp_path):
    with capture(net := Do(lambda: Two(ONE, 1))) as seen:
        net()
    seen.save(tmp_path / "seen.safetensors")
    code = """
import pickle, sys
pickle.Unpickler = pickle.load = pickle.loads = None
from hookscope.captures import Capture
print(Capture.load(sys.argv[1])[""].output, "transformers" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "seen.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=ROOT)
    assert done.stdout.strip() == "Two(first=tensor([1., -0., nan, inf]), second=1) False"


def test_what_is_refused(tmp_path):
    net = nn.ReLU()
    with capture(net) as seen:
        net(torch.ones(1))
        with pytest.raises(RuntimeError, match="after the with-block"):
            seen.save(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"name the file 'a\.safetensors'"):
        seen.save(tmp_path / "a.pt")
    assert not list(tmp_path.iterdir())
    seen.save(path := tmp_path / "a.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is not whole"):
        Capture.load(path)
    from safetensors.torch import save_file

    save_file({"a": ONE}, path)
    with pytest.raises(ValueError, match="no capture that was saved"):
        Capture.load(path)


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    with capture(net := nn.ReLU()) as seen:
        net(torch.ones(10))
    with capture(net) as large:
        net(torch.ones(100_000))
    with a_small_disk(tmp_path / "disk", "64k") as disk:
        seen.save(disk / "a.safetensors")
        before = (disk / "a.safetensors").read_bytes()
        with pytest.raises(OSError, match="No space left"):
            large.save(disk / "a.safetensors")
        assert [path.name for path in disk.iterdir()] == ["a.safetensors"]
        assert (disk / "a.safetensors").read_bytes() == before
