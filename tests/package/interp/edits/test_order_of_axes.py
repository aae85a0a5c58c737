"""Where tokens come before samples, `samples=`, `mean`, `positions=` and a sweep do not take one for the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hookscope import at, census, edit
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, gpt2
from tests.shared.sweep_helpers import sweep

WORDS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 1], [2, 3, 4], [5, 6, 7]])  # 5 tokens of 3 samples, or 3 of 5


def tokens_first(kind: str = "LSTM", **options: Any) -> nn.Module:
    """A word-language model as in PyTorch's examples, with tokens first from the inputs on."""
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {
        "LSTM": nn.LSTM(4, 4, **options),
        "GRU": nn.GRU(4, 4, **options),
        "TransformerEncoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, **options), 1),
    }

    def run(self: Any, ids: Tensor) -> Tensor:
        out = self.mix(self.words(ids))
        logits: Tensor = self.head(out[0] if isinstance(out, tuple) else out)
        return logits

    return Net(run, words=nn.Embedding(9, 4), mix=layers[kind], head=nn.Linear(4, 9)).eval()


CHANGES = {
    "samples=": lambda e, layer: e.set(layer, 0.0, samples=1),
    "mean": lambda e, layer: e.mean(layer),
    "positions=": lambda e, layer: e.set(layer, 0.0, positions=1),
}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "TransformerEncoder"])
@pytest.mark.parametrize("layer", ["words", "head"])
@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_model_that_is_called_with_tokens_first_is_refused(kind: str, layer: str, what: str) -> None:
    net = tokens_first(kind)
    e = edit(net)
    CHANGES[what](e, layer)
    message = rf"layer 'mix\S*' \(.* with batch_first=False\) gets 5 tokens of 3 .* tokens first, but {what} "
    with torch.no_grad(), pytest.raises(ValueError, match=message), e:
        net(WORDS)
    assert not len(census(net))
    with torch.no_grad(), edit(net) as e:
        e.set(layer, 0.0, at[:, 1])
        net(WORDS)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "TransformerEncoder"])
@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_model_with_samples_first_is_not(kind: str, what: str) -> None:
    net = tokens_first(kind, batch_first=True)
    with torch.no_grad(), edit(net) as e:
        CHANGES[what](e, "words")
        net(WORDS)
    assert e.notes == ()
    turned = Net(lambda self, ids: self.inner(self.words(ids).mT.permute(2, 0, 1))[0], words=nn.Embedding(9, 4),
                 inner=nn.LSTM(4, 4))  # fmt: skip
    with torch.no_grad(), edit(turned) as e:  # tokens first inside only
        CHANGES[what](e, "words")
        turned(WORDS)
    assert e.notes == ()


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_as_many_tokens_as_samples_are_said(what: str) -> None:
    net = tokens_first()
    e = edit(net)
    CHANGES[what](e, "words")
    with pytest.warns(UserWarning, match="two axes have the length of the batch"), torch.no_grad(), e:
        net(WORDS[:3])
    assert e.notes == (
        "layer 'words', shape (3, 3, 4): two axes have the length of the batch; the first is treated as the samples",
        f"layer 'mix' (LSTM with batch_first=False) gets 3 tokens of 3 samples, and {what} treats the first axis of "
        "the model's input, of length 3, as the samples",
    )


def pack(self: nn.Module, ids: Tensor) -> Tensor:
    """Take tokens first, and pack them for an LSTM with samples first."""
    lengths = torch.full((ids.shape[1],), len(ids))
    packed = pack_padded_sequence(self.words(ids).transpose(0, 1), lengths, batch_first=True)
    out, _ = pad_packed_sequence(self.mix(packed)[0], batch_first=True)
    return self.head(out.transpose(0, 1))


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_what_is_packed_tells_the_samples_too(what: str) -> None:
    net = Net(pack, words=nn.Embedding(9, 4), mix=nn.LSTM(4, 4, batch_first=True), head=nn.Linear(4, 9))
    e = edit(net)
    CHANGES[what](e, "words")
    message = rf"'mix' \(LSTM\) gets 5 tokens of 3 samples. So the model was called with tokens first, but {what}"
    with torch.no_grad(), pytest.raises(ValueError, match=message), e:
        net(WORDS)


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_an_lstm_that_is_given_other_tokens_than_the_model_is_said(what: str) -> None:
    net = tokens_first()
    mix = net.mix
    net.mix = nn.Identity()
    net.run = lambda self, ids: self.head(mix(self.words(ids)[1:])[0])
    net.inner = mix
    e = edit(net)
    CHANGES[what](e, "words")
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match=r"gets 4 tokens of 3 samples, and .* of length 5, as the samples"),
        e,
    ):
        net(WORDS)


def test_windows_as_long_as_there_are_samples_are_not_refused() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        windows = self.first(x).unflatten(1, (3, 2)).flatten(0, 1)  # (samples * windows, tokens, features)
        out: Tensor = self.attend(*[windows.transpose(0, 1)] * 3)[0].transpose(0, 1)
        return out

    net = Net(run, first=nn.Linear(4, 4), attend=nn.MultiheadAttention(4, 2)).eval()
    e = edit(net)
    e.set("first", 0.0, samples=1)
    with torch.no_grad(), pytest.warns(UserWarning, match="gets 2 tokens of 6 samples"), e:
        net(torch.randn(2, 6, 4))
    assert e.rows[0]["calls changed"] == 1


def test_samples_of_a_packed_sequence_are_counted_and_its_rows_are_no_samples() -> None:
    net = Net(
        lambda self, packed: self.head(self.mix(packed)[0].data),
        mix=nn.LSTM(3, 4, batch_first=True),
        head=nn.Linear(4, 2),
    )
    x: PackedSequence = pack_padded_sequence(torch.randn(3, 5, 3), torch.tensor([5, 3, 2]), batch_first=True)
    for layer, part in (("head", None), ("mix", (0, "data"))):
        e = edit(net)
        e.set(layer, 0.0, samples=1, part=part)
        with (
            pytest.raises(ValueError, match=r"samples= needs samples .* \(10, \d\), and the model's first input has 3"),
            e,
        ):
            net(x)


@pytest.mark.parametrize("layer", [nn.LSTM(4, 4, 2, batch_first=True), nn.GRU(4, 4, 2, batch_first=True)])
def test_states_of_an_rnn_have_layers_before_samples(layer: nn.Module) -> None:
    # Two layers and two samples: the shape cannot tell.
    path = (1, 0) if isinstance(layer, nn.LSTM) else 1
    net = nn.Sequential(layer)
    with pytest.raises(ValueError, match=r"'0' \(.*\) has states of shape \(layers, samples, features\), but samples="):
        edit(net).set("0", 0.0, part=path, samples=1)
    with pytest.raises(ValueError, match="but positions= needs samples on the first axis"):
        edit(net).set("0", 0.0, part=path, positions=1)
    with pytest.raises(ValueError, match="but mean needs samples on the first axis"):
        edit(net).mean("0", part=path)
    with edit(net) as e:
        e.set("0", 0.0, part=0, samples=1)
        out, _ = net(torch.randn(2, 3, 4))
    assert not out[1].any()
    assert out[0].all()


@pytest.mark.parametrize("what", ["positions", "mean"])
def test_a_sweep_notices_that_a_model_is_called_with_tokens_first(what: str) -> None:
    net = tokens_first()
    options: dict[str, Any] = {"positions": range(3)} if what == "positions" else {}
    source = "zero" if what == "positions" else "mean"
    with pytest.raises(ValueError, match=r"5 tokens of 3 samples.*\. Sweep a model that is called with samples first"):
        sweep(net, WORDS, "words", source, metric=lambda y: y.sum(), progress=False, **options)
    assert not len(census(net))


def test_a_sweep_says_that_axes_are_as_long() -> None:
    net = gpt2()
    with torch.no_grad():
        found = sweep(
            net, torch.cat([IDS, IDS, IDS[:1]]), ["transformer.h.0", "transformer.h.1"], "zero", positions=range(2),
            metric=lambda out: out.logits[0, -1, 0], progress=False,
        )  # fmt: skip
    assert sum("two axes have the length of the batch" in note for note in found.notes) == 2
