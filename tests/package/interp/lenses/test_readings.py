"""What is read of a stream is what plain hooks and the model's own layers give, and what is not is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookscope import LayerNotFoundError
from hookscope.interp.lenses import Streams
from hookscope.interp.lenses.lens import Lens
from tests.shared.awkward_models import Net
from tests.shared.language_models import READER_IDS, READER_WORDS, Reader


def by_hooks(net: Reader) -> tuple[Tensor, list[Tensor], Tensor]:
    """The stream before the first block, those after each, and the logits; by plain hooks."""
    seen: list[Tensor] = []
    handles = [net.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))]
    handles += [
        block.register_forward_hook(lambda module, args, out: seen.append(out[0].clone())) for block in net.blocks
    ]
    with torch.no_grad():
        logits = net.eval()(READER_IDS)
    for handle in handles:
        handle.remove()
    return seen[0], seen[1:], logits


@pytest.mark.parametrize("sample", [0, 1])
def test_numbers_are_those_of_plain_hooks(sample: int) -> None:
    net = Reader()
    before, streams, logits = by_hooks(net)
    read = Streams(net, (READER_IDS,))
    found = read.reading(sample)
    assert read.lens is not None
    assert read.lens.names == ("norm", "head")
    earlier = [before, *streams]
    with torch.no_grad():
        for layer, stream in enumerate(streams):
            norm = stream[sample].norm(dim=-1)
            assert torch.allclose(found.norm[layer].float(), norm)
            change = (stream - earlier[layer])[sample].norm(dim=-1) / earlier[layer][sample].norm(dim=-1)
            assert torch.allclose(found.change[layer].float(), change)
            chances = net.head(net.norm(stream))[sample].softmax(-1)
            top = chances.topk(5)
            assert torch.equal(found.words[layer], top.indices)
            assert torch.allclose(found.probabilities[layer], top.values)
            final = logits[sample].argmax(-1)
            assert torch.equal(found.final, final)
            assert torch.allclose(found.final_probability[layer], chances.gather(-1, final[:, None])[:, 0])
            after = chances[:-1].gather(-1, READER_IDS[sample, 1:, None])[:, 0]
            assert torch.allclose(found.next_probability[layer, :-1], after)
            assert bool(found.next_probability[layer, -1].isnan())
    assert found.verified
    assert read.remarks(sample) == []


def test_logits_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Streams(Reader(), (READER_IDS,)).reading()
    monkeypatch.setattr("hookscope.interp.lenses.lens._MOST_LOGITS", 2 * len(READER_WORDS))
    pieces = Streams(Reader(), (READER_IDS,)).reading()
    assert torch.equal(whole.words, pieces.words)
    assert torch.allclose(whole.next_probability, pieces.next_probability, equal_nan=True)
    calls: list[tuple[int, ...]] = []
    lens = Lens(function=lambda stream: calls.append(tuple(stream.shape)) or stream)
    list(lens.split_logits(torch.ones(1, 6, 3), len(READER_WORDS)))
    assert calls == [(1, 6, 3)]  # a function may look at all tokens


def test_a_lens_that_is_not_the_model_s_is_said_to_be_none() -> None:
    net = Reader(cap=True)
    with torch.no_grad():
        net.head.weight.mul_(3)
    read = Streams(net, (READER_IDS,), lens=("norm", "head"))
    _, streams, logits = by_hooks(net)
    with torch.no_grad():
        error = float((net.head(net.norm(streams[-1])) - logits)[0].abs().max())
    assert read.reading().error == pytest.approx(error)
    assert not read.reading().verified
    assert any(f"differs from the logits of the model by up to {error:.2g}" in text for text in read.remarks())
    mended = Streams(net, (READER_IDS,), lens=lambda stream: net.head(net.norm(stream)).tanh())
    assert mended.reading().verified
    assert mended.remarks() == []
    other = Streams(net, (READER_IDS,), lens=lambda stream: -net.head(net.norm(stream))).reading()
    assert torch.equal(other.final, logits[0].argmax(-1))  # what the model chose, not what that lens would
    # Found by itself, a way that does not end at what the model returned is no lens.
    assert Streams(net, (READER_IDS,)).lens is None


def test_a_model_that_reads_its_class_token() -> None:
    def pictures(place: int) -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

        def run(self: nn.Module, x: Tensor) -> Tensor:
            return self.head(self.encoder(x).mean(1) if place == 9 else self.encoder(x)[:, place])

        return Net(run, encoder=encoder, head=nn.Linear(8, 3)).eval()

    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    for place, said in ((0, "the first token only"), (-1, "the last token only")):
        net = pictures(place)
        read = Streams(net, (x,))
        assert read.lens is not None
        assert read.lens.names == ("encoder.norm", "head")
        assert read.reading(1).verified
        with torch.no_grad():
            assert int(read.reading(1).final[place]) == int(net(x)[1].argmax())
        assert any(said in text for text in read.remarks())
        assert read.reading().next_probability is None
    mean = Streams(pictures(9), (x,))
    assert mean.lens is None
    assert any("no lens" in text for text in mean.remarks())


def test_a_norm_alone_makes_no_words() -> None:
    net = nn.Sequential(Reader().blocks[0].mlp, Reader().blocks[0].mlp, nn.LayerNorm(20))
    assert Streams(net, (torch.randn(1, 3, 20),), layers=["0", "1"]).lens is None


def test_a_lens_that_is_given_is_checked_at_once() -> None:
    net = Reader()
    with pytest.raises(LayerNotFoundError, match="no layer 'hed'; did you mean 'head'"):
        Streams(net, (READER_IDS,), lens=("norm", "hed"))
    with pytest.raises(TypeError, match="lens=3 is neither names of modules"):
        Streams(net, (READER_IDS,), lens=3)
    with pytest.raises(ValueError, match="'norm' does not accept"):
        Streams(net, (READER_IDS,), lens=("head", "norm"))
    with pytest.raises(ValueError, match=r"a stream of shape \(1, 6, 20\) into \(1, 6\)"):
        Streams(net, (READER_IDS,), lens=lambda stream: stream.sum(-1))
    unlike = Streams(net, (READER_IDS,), lens=lambda stream: stream[..., :4])
    assert unlike.reading().error is None
    assert any("could not be checked" in text for text in unlike.remarks())


def test_values_that_are_no_numbers() -> None:
    net = Reader()
    with torch.no_grad():
        net.head.weight[3] = torch.nan
    found = Streams(net, (READER_IDS,)).reading()
    assert not bool(found.norm.isnan().any())
    assert bool(found.probabilities.isnan().all())  # a softmax over a NaN; not 0, and nothing made up
    assert bool(found.final_probability.isnan().all())
    assert found.verified  # the model's own are NaN at the same places
