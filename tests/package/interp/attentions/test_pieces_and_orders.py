"""Attention that is computed in pieces, by a pseudo-inverse, or with axes in another order, is not shown as usual."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import attention
from tests.shared.awkward_models import Do, Net
from tests.shared.language_models import small_vit

IDS = torch.randint(3, 50, (2, 64), generator=torch.Generator().manual_seed(0))


def of_transformers(kind: str, **sizes: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    usual = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{kind}Config")(**usual, intermediate_size=24, max_position_embeddings=128, **sizes)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model  # type: ignore[no-any-return]


def test_pieces_of_a_softmax_are_said_to_be_pieces() -> None:
    net = of_transformers("BigBird", block_size=2, num_random_blocks=1, attention_type="block_sparse")
    maps = attention(net, kwargs={"input_ids": IDS})
    layer = "encoder.layer.0.attention.self"
    for label in maps:
        total = maps[label].weights.sum(-1)
        whole = torch.allclose(total, torch.ones_like(total), atol=1e-3)
        assert whole == (not any("a piece of a softmax over more keys" in each for each in maps[label].notes))
    assert any("a piece of a softmax" in each for each in maps.notes)
    assert any(each.startswith(layer) and "maps of several sizes" in each for each in maps.notes)


def test_a_pseudo_inverse_is_no_attention() -> None:
    net = of_transformers("Nystromformer", num_landmarks=4, segment_means_seq_len=64, conv_kernel_size=3)
    maps = attention(net, kwargs={"input_ids": IDS})
    assert [tuple(maps[label].weights.shape) for label in maps] == [(2, 4, 64, 4), (2, 4, 4, 64)] * 2
    assert any("could not trace it to the values" in note for note in maps.notes)


class HeadsFirst(nn.Module):
    """Heads before samples: cut out of features, or made by `torch.stack`."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.k, self.v = heads, nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack(layer(x).chunk(self.heads, -1)) for layer in (self.q, self.k, self.v))
        self.weights = (q @ k.mT).softmax(-1)
        return (self.weights @ v).permute(1, 2, 0, 3).flatten(2)


UNTOLD = "could not tell which axis holds the heads"
IN_BATCH = "heads that could not be told from samples"


@pytest.mark.parametrize(
    ("heads", "samples", "said"),
    [(1, 3, [UNTOLD]), (2, 5, [UNTOLD]), (4, 4, [UNTOLD]), (4, 3, [IN_BATCH, UNTOLD]), (8, 1, [IN_BATCH])],
)
def test_heads_before_samples_are_shown_by_custom_and_that_is_said(heads: int, samples: int, said: list[str]) -> None:
    torch.manual_seed(0)
    net, x = HeadsFirst(heads).eval(), torch.randn(samples, 5, 8)
    maps = attention(net, x)
    assert torch.equal(maps[0].weights.flatten(0, 1), net.weights.flatten(0, 1))
    assert all(text in note for text, note in zip(said, maps.notes, strict=True))


def test_as_many_heads_as_tokens_without_a_batch_are_said() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:  # axes that cannot be followed to the features
        q = torch.view_as_complex(x.view(1, 4, 4, 1, 2)).abs().transpose(1, 2)  # 1, heads, tokens, features
        self.weights = (q @ q.mT).softmax(-1)
        return self.weights @ q

    net = Net(run)
    maps = attention(net, torch.randn(4, 8))
    assert torch.equal(maps[0].weights, net.weights)
    assert "could not tell which axis holds the heads" in maps.notes[0]


def test_pieces_that_are_alike_are_all_there() -> None:
    x = torch.randn(1, 3, 4).expand(2, 3, 4).contiguous()
    maps = attention(Do(lambda x: torch.stack([w @ v for w, v in zip((x @ x.mT).softmax(-1), x, strict=True)])), x)
    assert len(maps) == 2
    assert all("a piece of a softmax, with 9 of 18 weights" in maps[label].notes[-1] for label in maps)


def test_weights_that_meet_two_values_are_one_map_also_with_rows_that_are_masked() -> None:
    def twice(x: Tensor) -> Tensor:
        weights = (x @ x.mT + torch.tensor([[-torch.inf], [0], [0]])).softmax(-1)
        return weights @ x + weights @ x.flip(-1)

    assert len(attention(Do(twice), torch.randn(2, 3, 4))) == 1


def test_windows_with_one_head_are_said() -> None:
    from transformers import HieraConfig, HieraModel

    torch.manual_seed(0)
    config = HieraConfig(
        image_size=[32, 32], patch_size=[7, 7], embed_dim=8, depths=[1, 2], num_heads=[1, 2], query_stride=[2, 2],
        masked_unit_size=[4, 4], num_query_pool=1, attn_implementation="eager",
    )  # fmt: skip
    maps = attention(HieraModel(config).eval(), kwargs={"pixel_values": torch.randn(2, 3, 32, 32)})
    assert any(
        "could not tell which axis holds the heads" in note for note in maps["encoder.stages.0.layers.0.attn"].notes
    )


@pytest.mark.filterwarnings("ignore")
def test_torchscript_that_cannot_be_watched_is_named() -> None:
    x = torch.randn(2, 3, 32, 32)
    traced = torch.jit.trace(small_vit(), x, check_trace=False)
    with pytest.raises(RuntimeError) as caught:
        attention(traced, x)
    assert "pass the Python module that was traced" in caught.value.__notes__[0]
