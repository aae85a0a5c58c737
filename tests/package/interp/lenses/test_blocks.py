"""Which layers are the stream: found in models of many kinds, named, or refused; and the model stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import LayerNotFoundError
from hookscope.interp.lenses import NoBlocksError, Streams
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import READER_IDS, Reader


def encoder(batch_first: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_blocks_are_found_though_their_heads_are_more() -> None:
    streams = Streams(Reader(), (READER_IDS,))
    assert streams.labels == ["blocks.0", "blocks.1", "blocks.2"]
    assert (streams.samples, streams.tokens) == (2, 6)
    assert [each.label for each in streams.maps_at(1)] == [f"blocks.1.heads.{head}" for head in range(5)]
    assert streams.causal is True


def test_experts_stand_side_by_side_and_are_no_blocks() -> None:
    def mixed() -> Net:
        experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4))
        return Net(lambda self, x: x + sum(expert(x) for expert in self.experts), experts=experts)

    streams = Streams(nn.Sequential(mixed(), mixed()), (torch.randn(1, 3, 8),))
    assert streams.labels == ["0", "1"]
    alone = nn.Sequential(mixed(), nn.Linear(8, 8))  # here they are the only modules side by side
    assert Streams(alone, (torch.randn(1, 3, 8),)).labels == ["0"]


def test_a_block_that_is_called_three_times_is_three_layers() -> None:
    streams = Streams(Reader(shared=True), (READER_IDS,))
    assert streams.labels == ["blocks.0", "blocks.0#2", "blocks.0#3"]
    assert [each.label for each in streams.maps_at(2)] == [f"blocks.0.heads.{head}#3" for head in range(5)]
    assert not torch.equal(streams.reading().norm[0], streams.reading().norm[1])


def test_layers_of_several_classes_inside_of_blocks_are_no_blocks() -> None:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = x + layer(x)
        return x

    def block() -> Net:
        mlp = nn.Sequential(nn.Linear(20, 20), nn.Tanh())
        apart = Net(lambda self, x: self.norm(x), norm=nn.LayerNorm(20))
        return Net(run, layer=nn.ModuleList([nn.TransformerEncoderLayer(20, 2, 20, batch_first=True), mlp, apart]))

    net = nn.Sequential(nn.Embedding(50, 20), block(), block())
    assert Streams(net, (READER_IDS,)).labels == ["1", "2"]


def test_blocks_of_several_classes_in_turn_are_all_found() -> None:
    class Other(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + super().forward(x)

    torch.manual_seed(0)

    def run(self: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
    layers = nn.ModuleList([layers[0], Other(nn.Linear(8, 8)), layers[1], Other(nn.Linear(8, 8))])
    net = Net(run, embed=nn.Embedding(9, 8), layers=layers, head=nn.Linear(8, 9)).eval()
    streams = Streams(net, (torch.arange(6)[None],))
    assert streams.labels == [f"layers.{number}" for number in range(4)]


@pytest.mark.parametrize("size", [(2, 5), (4, 4)])
def test_tokens_first(size: tuple[int, int]) -> None:
    """What torch has by default: (tokens, batch, width)."""
    net, x = encoder(batch_first=False), torch.randn(size[1], size[0], 16)
    nn.init.normal_(net.layers[-1].norm2.weight)  # else all norms are the same
    streams = Streams(net, (x,))
    assert (streams.samples, streams.tokens) == size
    with torch.no_grad():
        last = net(x)
    assert torch.allclose(streams.reading(1).norm[-1], last[:, 1].double().norm(dim=-1), atol=1e-5)
    assert streams.causal is False


def test_layers_that_are_named() -> None:
    net = Reader()
    assert Streams(net, (READER_IDS,), layers=["words", "blocks.[02]"]).labels == ["words", "blocks.0", "blocks.2"]
    with pytest.raises(LayerNotFoundError, match=r"no layer 'block\.1'; did you mean 'blocks\.1'"):
        Streams(net, (READER_IDS,), layers="block.1")
    net.spare = nn.Linear(2, 2)
    with pytest.raises(LayerNotFoundError, match="layer 'spare'"):
        Streams(net, (READER_IDS,), layers=["blocks.*", "spare"])


def test_layers_of_different_lengths() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Do(lambda x: x[:, 1:]))
    with pytest.raises(NoBlocksError, match=r"different \(batch, tokens\): \[\(1, 2\), \(1, 3\)\]"):
        Streams(net, (torch.ones(1, 3, 4),), layers=["0", "1"])


def test_a_pass_that_takes_too_much_is_refused_with_the_way_out() -> None:
    net = Reader()
    with pytest.raises(MemoryError, match=r"need more than max_bytes=2,000. Pass a shorter text"):
        Streams(net, (READER_IDS,), max_bytes=2000)
    assert hooks_on(net) == 0
    long = torch.zeros(1, 40, dtype=torch.long)
    with pytest.raises(MemoryError, match=r"the attention maps up to .* a shorter text"):
        Streams(net, (long,), max_bytes=45_000)  # enough for the streams, but not for 15 maps of 40 by 40
    assert hooks_on(net) == 0
