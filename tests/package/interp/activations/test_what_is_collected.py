"""Every sample of a data set is on disk once, with the bits that the layer returned, and is read by number or name."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from hookscope import Activations, LayerNotFoundError, census, collect, edit
from hookscope.interp.activations import DamagedError
from hookscope.interp.activations.fingerprint import fingerprint_model
from tests.shared.awkward_models import Net
from tests.shared.fake_clock import Clock

X = torch.arange(44.0).reshape(11, 4) / 7


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)).eval()


def by_hand(net: nn.Module, batches, name: str = "0"):
    kept = []
    handle = net.get_submodule(name).register_forward_hook(lambda module, args, output: kept.append(output.clone()))
    with torch.no_grad():
        for batch in batches:
            net(batch)
    handle.remove()
    return torch.cat(kept)


class Int8(Tensor):
    """A quantized weight, as those of torchao: it implements what a layer needs."""

    @staticmethod
    def __new__(cls, stored: Tensor, scale: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, stored.shape, dtype=torch.float32)

    def __init__(self, stored: Tensor, scale: Tensor) -> None:
        self.stored, self.scale = stored, scale

    def __tensor_flatten__(self) -> Any:
        return ["stored", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, *_: Any) -> Any:
        return cls(inner["stored"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten, wide = torch.ops.aten, [each.stored * each.scale if isinstance(each, cls) else each for each in args]
        if operation in (aten.detach.default, aten.clone.default):
            return cls(operation(args[0].stored), operation(args[0].scale))
        if operation in (aten.t.default, aten.addmm.default, aten.mm.default):
            return operation(*wide)
        raise NotImplementedError(f"unimplemented operator {operation}")


class Stream(IterableDataset):
    def __iter__(self):
        yield from X


LOADERS = {
    "tensors": lambda: X.split(4),
    "a loader": lambda: DataLoader(X, batch_size=4),
    "inputs and labels": lambda: DataLoader(TensorDataset(X, torch.arange(11)), batch_size=4),
    "one of each": lambda: [(x, torch.ones(len(x))) for x in X.split(4)],
    "keywords": lambda: [{"input": x} for x in X.split(4)],
    "tuple of a dict": lambda: [({"input": x}, "label") for x in X.split(4)],
    "without a length": lambda: DataLoader(Stream(), batch_size=4),
    "a generator": lambda: (x for x in X.split(4)),
}


def test_weights_of_a_subclass_of_tensor(tmp_path):
    net = small()
    stored = (net[0].weight.detach() * 100).to(torch.int8)
    net[0].weight = nn.Parameter(Int8(stored, torch.tensor(0.01)), requires_grad=False)
    assert torch.equal(collect(net, X.split(4), "0", to=tmp_path)["0"][:], by_hand(net, X.split(4)))
    stored[0] += 1
    with pytest.raises(ValueError, match="its modules, options, parameters or buffers changed"):
        collect(net, X.split(4), "0", to=tmp_path)


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_every_kind_of_loader(loader, tmp_path):
    net = small()
    stored = collect(net, loader(), to=tmp_path, shard_bytes=200)
    for name in ("0", "1", "2"):  # a linear layer whose output is overwritten in place, too
        assert torch.equal(stored[name][:], by_hand(net, X.split(4), name))
    assert stored.complete
    assert len(stored) == 11
    assert len(stored.shards) == 2, "the last one is not full"
    assert [shard.first for shard in stored.shards] == [0, 8]
    assert len(census(net)) == 0


def test_a_data_set_of_samples_that_workers_can_read(tmp_path):
    net = small()
    collect(net, X.split(2), "0", "2", to=tmp_path, shard_bytes=50)
    stored = Activations(tmp_path)
    assert len(stored.shards) > 2
    whole = by_hand(net, X.split(2), "2")
    assert stored[5].keys() == {"0", "2"}
    assert torch.equal(stored[5]["2"], whole[5])
    assert torch.equal(stored["2"][-1], whole[10])
    assert torch.equal(stored["2"][3:9], whole[3:9])
    assert stored["2"][4:4].shape == (0, 2)
    assert (stored["2"].shape, stored["2"].dtype, stored.nbytes) == ((11, 2), torch.float32, 11 * 20)
    read = DataLoader(stored, batch_size=4, num_workers=2)
    assert torch.equal(torch.cat([batch["2"] for batch in read]), whole)
    assert torch.equal(pickle.loads(pickle.dumps(stored))[7]["0"], stored[7]["0"])
    with pytest.raises(IndexError, match="has 11"):
        stored[11]
    with pytest.raises(LayerNotFoundError, match=r"no '\[2\]' in .* which has '0', '2'; did you mean '2'\?"):
        stored["[2]"]
    assert "11 samples" in repr(stored)
    assert "sample axis" in repr(stored)


def test_reading_is_from_a_memory_map(tmp_path):
    net = nn.Sequential(nn.Linear(4, 1000)).eval()
    stored = collect(net, X.split(4), "0", to=tmp_path)
    assert f"{len(X)} samples in 1 shard, " in repr(stored)
    part = stored["0"][2:5]
    with torch.no_grad():
        assert torch.equal(part, by_hand(net, X.split(4))[2:5])
    assert part.untyped_storage().nbytes() == 3 * 4000, "three samples, not the file"
    for read in (lambda: stored["0"][2:5], lambda: stored["0"][2], lambda: stored[2]["0"]):
        before = read().clone()
        read().mul_(0)
        assert torch.equal(read(), before), "what was done to a tensor that was read is read again"
    stored.check()


def test_samples_lie_where_the_layer_has_them(tmp_path):
    def run(self, x):  # [samples, steps, features]; as many steps as samples
        y, _ = self.rnn(x.transpose(0, 1))
        return self.out(y[-1]) + self.out(y[0])

    net = Net(run, rnn=nn.LSTM(4, 3), out=nn.Linear(3, 1)).eval()
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    stored = collect(net, x.split(3), "rnn", "out", to=tmp_path)
    assert stored.names == ["out", "out#2", "rnn/0", "rnn/1/0", "rnn/1/1"]
    with torch.no_grad():
        parts = [net.rnn(part.transpose(0, 1)) for part in x.split(3)]
    assert torch.equal(stored["rnn/0"][:], torch.cat([y for y, _ in parts], 1).transpose(0, 1))
    assert torch.equal(stored["rnn/1/0"][:], torch.cat([h for _, (h, _) in parts], 1).transpose(0, 1))
    assert stored.about["tensors"]["rnn/1/0"]["axis"] == 1
    assert torch.equal(stored["out#2"][:], net.out(torch.cat([y[0] for y, _ in parts])))


def test_outputs_that_lie_channels_last(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    x = torch.randn(8, 3, 6, 6).to(memory_format=torch.channels_last)
    with torch.no_grad():
        truth = net(x)
    assert not truth.is_contiguous()
    stored = collect(net, x.split(4), "1", to=tmp_path)
    assert torch.equal(stored["1"][:], truth)


def test_the_model_itself_is_read_by_the_name_that_it_shows_and_by_that_of_the_layer(tmp_path):
    net = Net(lambda self, x, again=True: (x, self(x, again=False)) if again else x + 1).eval()
    stored = collect(net, X.split(4), "", to=tmp_path)
    assert stored.names == ["(root)#2", "(root)/0", "(root)/1"]
    for name, truth in {"#2": X + 1, "/0": X, "/1": X + 1}.items():
        assert torch.equal(stored[name][:], truth)
        assert torch.equal(stored.column(f"(root){name}")[:], truth)
    with pytest.raises(LayerNotFoundError, match="no '' in"):
        stored[""]


def test_half_the_bytes(tmp_path):
    stored = collect(small(), X.split(4), "0", to=tmp_path, dtype=torch.float16)
    assert stored["0"].dtype == torch.float16
    assert torch.equal(stored["0"][:], by_hand(small(), X.split(4)).half())


@pytest.mark.slow
def test_a_model_of_transformers(tmp_path):
    from transformers import GPT2Config, GPT2Model

    net = GPT2Model(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16)).eval()
    ids = torch.randint(50, (5, 6), generator=torch.Generator().manual_seed(0))
    loader = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(2)]
    stored = collect(net, loader, "h.*", "h.0.attn", to=tmp_path)
    with torch.no_grad():
        hidden = [net(**batch, output_hidden_states=True).hidden_states[1] for batch in loader]
    name = next(name for name in stored.names if name.split("/")[0] == "h.0")
    assert torch.equal(stored[name][:], torch.cat(hidden))


@pytest.mark.parametrize(
    ("make", "loader", "said"),
    [
        (lambda: nn.Sequential(small(), nn.Dropout()).eval().train(False), [], "yields no batches"),
        (small, DataLoader(X, shuffle=True), "shuffles"),
        (small, DataLoader(X, sampler=BatchSampler(RandomSampler(X), 4, False), batch_size=None), "shuffles"),
        (lambda: nn.Sequential(nn.Flatten(0)).eval(), X.split(4), "is not the number of samples"),
        (small, ["text"], "yields a str"),
        (lambda: nn.Sequential(nn.Unflatten(0, (2, 2))).eval(), X.split(4), "but not on its first 2 samples"),
        (
            lambda: nn.Sequential(nn.Unflatten(0, (3, 2))).eval(),
            X.split(4),
            "hookscope: collect ran the model on 2 samples",
        ),
        (lambda: nn.Sequential(nn.Identity()).eval(), [X[:4], X[4:, :3]], "pad sequences to one length"),
    ],
)
def test_what_cannot_be_collected_is_refused_with_a_reason(make, loader, said, tmp_path):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=said):
        collect(make(), loader, to=tmp_path)


def test_a_file_is_no_folder(tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"to='.*there' is a file\. Pass the name of a folder"):
        collect(nn.Identity().eval(), [torch.ones(2, 2)], to=there)
    assert there.read_text() == "mine"


def test_an_edit_is_made_in_run_and_a_block_around_is_refused(tmp_path):
    net = small()
    with edit(net[0]) as e:
        e.set("", 7.0)
        with pytest.raises(ValueError, match="Start the edit in run="):
            collect(net, X.split(4), to=tmp_path)
        net(X)
    assert not list(tmp_path.iterdir())
    assert e.rows[0]["calls seen"] == 1

    def run(model, batch):
        with edit(model) as e:
            e.set("0", 7.0, calls=1)
            model(batch)

    stored = collect(net, X.split(4), "2", to=tmp_path, run=run)
    with torch.no_grad():
        sevens = [net[2](torch.full((len(batch), 3), 7.0)) for batch in X.split(4)]
    assert torch.equal(stored["2"][:], torch.cat(sevens))


def test_a_dtype_that_changes_is_refused(tmp_path):
    net = nn.Sequential(nn.Identity()).eval()
    with pytest.raises(RuntimeError, match=r"'0' is \(4, 4\), torch.float64, from sample 4 on, but .*float32, before"):
        collect(net, [X[:4], X[4:8].double()], to=tmp_path)


def test_a_shard_names_so_many_batches_at_most(tmp_path, monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["hookscope.interp.activations.collect"], "_BATCHES", 2)
    stored = collect(small(), X.split(2), "0", to=tmp_path)
    assert [len(shard.batches) for shard in stored.shards] == [2, 2, 2]


def test_few_files_are_open_at_once(tmp_path, monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["hookscope.interp.activations.dataset"], "_OPEN", 2)
    stored = collect(small(), X.split(2), "0", to=tmp_path, shard_bytes=20)
    assert torch.equal(stored["0"][:], by_hand(small(), X.split(2)))
    assert len(stored.shards) == 6
    assert len(stored._files) == 2


def test_the_mark_of_a_model_is_of_what_it_says_and_not_of_where_it_lies():
    class Says(nn.Module):
        def __init__(self, said):
            super().__init__()
            self.said = said

        def extra_repr(self):
            return repr(self.said)

    class Config:
        def __init__(self, text):
            self.to_json_string = lambda: text

    assert fingerprint_model(Says(object())) == fingerprint_model(Says(object()))
    assert fingerprint_model(Says(1)) != fingerprint_model(Says(2))
    one, other = small(), small()
    one.config, other.config = Config("relu"), Config("gelu")
    assert fingerprint_model(one) != fingerprint_model(other)


def test_progress_says_samples_rate_and_bytes(tmp_path, capsys, monkeypatch):
    clock = Clock(step=10**9)
    monkeypatch.setattr("tqdm.std.time", clock.time)  # a bar comes after a second
    monkeypatch.setattr("hookscope.progress.perf_counter", clock.perf_counter)
    collect(small(), X.split(4), "0", to=tmp_path / "a", progress=False)
    assert capsys.readouterr().err == ""
    collect(small(), list(X.split(4)), "0", to=tmp_path / "b")
    said = capsys.readouterr().err
    assert "11/11" in said
    assert "132 bytes of 132 bytes" in said
    assert "bytes/s" in said


def test_what_was_changed_on_disk_is_noticed(tmp_path):
    stored = collect(small(), X.split(4), "0", to=tmp_path, shard_bytes=60)
    stored.check()
    path = stored.shards[1].path
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedError, match="is truncated"):
        Activations(tmp_path)
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"'0' in .*00001\.safetensors was changed after it was written"):
        Activations(tmp_path).check()
    path.write_bytes(bytes(data).replace(b"first", b"fIrst"))
    with pytest.raises(DamagedError, match="header"):
        Activations(tmp_path)
    path.unlink()
    with pytest.raises(DamagedError, match="missing"):
        Activations(tmp_path)


@pytest.mark.parametrize(
    "alter",
    [
        lambda text: "{}",
        lambda text: "[]",
        lambda text: "null",
        lambda text: text[:-9],
        lambda text: text.replace('"samples": 11', '"samples": "11"'),
        lambda text: text.replace('"samples": 11', '"samples": 7'),
        lambda text: text.replace("float32", "float16"),
    ],
)
def test_what_was_changed_in_the_description_is_noticed(alter, tmp_path):
    collect(small(), X.split(4), "0", to=tmp_path)
    about = tmp_path / "collected.json"
    text = about.read_text()
    about.write_text(alter(text))
    assert about.read_text() != text
    with pytest.raises(DamagedError, match=r"collected\.json was changed after it was written"):
        Activations(tmp_path)


def test_a_head_says_names_dtypes_samples_and_checksums(tmp_path):
    from safetensors import safe_open

    stored = collect(small(), X.split(4), "0", to=tmp_path)
    with safe_open(stored.shards[0].path, framework="pt") as file:
        about = json.loads(file.metadata()["hookscope"])
        assert file.get_slice("0").get_dtype() == "F32"
    assert about["first"] == 0
    assert [number for number, _ in about["batches"]] == [4, 4, 3]
    assert len(about["marks"]["0"]) == 64
