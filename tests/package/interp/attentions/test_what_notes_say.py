"""What is missing beside maps is said, computed weights are weights, and axes that are a guess are called so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope import attention, edit
from tests.shared.awkward_models import Net
from tests.shared.networks import make_projected_attention

Wrap = Callable[[nn.Linear], nn.Module]


class LowRank(nn.Module):
    """Adds a product of two parameters to a weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Parameter(torch.randn(2, linear.in_features)),
            nn.Parameter(torch.randn(linear.out_features, 2)),
        )

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


class Merged(nn.Linear):
    """Does the same in its own forward."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.added = LowRank(linear)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.added.b @ self.added.a)


WRAPS: dict[str, Wrap] = {
    "plain": lambda linear: linear,
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "spectral_norm": lambda linear: nn.utils.parametrizations.spectral_norm(linear),
    "low rank": lambda linear: nn.utils.parametrize.register_parametrization(linear, "weight", LowRank(linear)),
    "merged": Merged,
}


def router(wrap: Wrap) -> Net:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return torch.bmm(self.gate(x).softmax(-1).unsqueeze(1), torch.stack([each(x) for each in self.experts], 1))

    return Net(run, gate=wrap(nn.Linear(8, 4)), experts=nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])).eval()


def channels(wrap: Wrap) -> Net:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 4, 1)
        return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v

    return Net(run, qkv=wrap(nn.Linear(8, 24))).eval()


def folded(wrap: Wrap) -> Net:
    def run(self: nn.Module, x: Tensor) -> Tensor:  # samples and heads in one axis
        q, k, v = (each(x).view(3, 5, 4, 8).transpose(1, 2).reshape(12, 5, 8) for each in (self.q, self.k, self.v))
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)

    return make_projected_attention(run, 32, wrap)


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_weight_that_is_computed_is_a_weight(wrap: str) -> None:
    torch.manual_seed(0)
    assert not len(attention(router(WRAPS[wrap]), torch.randn(5, 8)))
    maps = attention(channels(WRAPS[wrap]), torch.randn(2, 5, 8))
    assert not len(maps)
    assert any("channels attend to channels" in note for note in maps.notes)
    maps = attention(folded(WRAPS[wrap]), torch.randn(3, 5, 32))
    assert maps[0].weights.shape == (3, 4, 5, 5)
    assert maps.notes == ()


@pytest.mark.parametrize("bias", [True, False])
def test_queries_that_are_learned(bias: bool) -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:  # as DETR, Perceiver and SigLIP do
        return (self.q(self.latents).expand(len(x), -1, -1) @ self.k(x).mT).softmax(-1) @ self.v(x)

    net, x = make_projected_attention(run, bias=bias, latents=nn.Parameter(torch.randn(1, 3, 8))), torch.randn(2, 5, 8)
    maps = attention(net, x)
    truth = (net.q(net.latents) @ net.k(x).mT).softmax(-1)
    torch.testing.assert_close(maps[0].weights, truth.detach()[:, None])
    assert maps[0].verified
    assert maps.notes == ()


def test_the_pooling_head_of_siglip() -> None:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = SiglipVisionConfig(**sizes, image_size=32, patch_size=16, attn_implementation="eager")
    maps = attention(SiglipVisionModel(config).eval(), torch.randn(2, 3, 32, 32))
    assert [maps[place].weights.shape for place in range(len(maps))] == [(2, 4, 4, 4), (2, 4, 1, 4)]
    assert maps.notes == ()


def test_attention_of_another_kind_beside_maps_is_said() -> None:
    def additive(self: nn.Module, x: Tensor) -> Tensor:
        return self.score(torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])).squeeze(-1).softmax(-1) @ x

    a, b = make_projected_attention(additive, score=nn.Linear(8, 1)), nn.MultiheadAttention(8, 2, batch_first=True)
    both = Net(lambda self, x: self.b(*[self.a(x)] * 3)[0], a=a, b=b)
    maps = attention(both, torch.randn(2, 5, 8))
    assert list(maps) == ["b"]
    assert len(maps.notes) == 1
    assert maps.notes[0].startswith("layer 'a': found a softmax, but not of query-key products")


def test_a_softmax_that_is_a_layer_has_met_its_values() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.softmax(self.q(x) @ self.k(x).mT) @ self.v(x)

    maps = attention(nn.Sequential(make_projected_attention(run, softmax=nn.Softmax(-1))), torch.randn(2, 5, 8))
    assert len(maps) == 1
    assert maps.notes == ()
    assert "-0" not in repr(maps).split()


def test_heads_that_are_in_the_batch_are_said_to_be() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        q, k, v = (torch.cat(each(x).split(8, 2), 0) for each in (self.q, self.k, self.v))
        return torch.cat((q.bmm(k.mT) / 8**0.5).softmax(2).bmm(v).split(3, 0), 2)

    maps = attention(make_projected_attention(run, 32), torch.randn(3, 5, 32))
    assert maps[0].weights.shape == (12, 1, 5, 5)
    (note,) = maps.notes
    assert "the model got 3 samples, but a map has 12 in the batch" in note


def test_windows_and_heads_by_custom_are_said_to_be() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:  # samples, heads, windows, tokens; made so that nobody can follow it
        q, k, v = (
            torch.stack([each(x).sin()[..., 8 * n : 8 * n + 8] for n in range(4)], 1).unflatten(2, (2, 3))
            for each in (self.q, self.k, self.v)
        )
        return ((q @ k.mT).softmax(-1) @ v).sum()

    maps = attention(make_projected_attention(run, 32), torch.randn(2, 6, 32))
    assert maps[0].notes == (
        "could not tell which axis holds the heads; assumed the usual layout, (batch, heads, queries, keys)",
    )


def test_a_map_of_an_attention_that_is_being_edited_is_said_to_be_from_before() -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    with torch.no_grad(), edit(model) as e:
        e.scale("", 2.0, heads=1)
        maps = attention(model, x, x, x)
    assert any(
        "an edit changes its attention. The map shows the weights before the edit" in note for note in maps.notes
    )
    assert attention(model, x, x, x).notes == ()


@pytest.mark.parametrize("shape", [(1, 2, 5, 5), (5,)])
def test_a_tensor_with_the_id_of_one_that_is_gone_is_not_taken_for_it(shape: tuple[int, ...]) -> None:
    given = torch.rand(shape).numpy()

    def run(self: nn.Module, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (2, 4)).transpose(1, 2)
        before = [heads @ heads.mT if given.ndim == 4 else 2 * heads for _ in range(20)]
        gone = set(map(id, before))
        before.clear()
        made: list[Tensor] = []
        while not made or id(made[-1]) not in gone:
            made.append(torch.from_numpy(given))
            assert len(made) < 10_000
        return made[-1].softmax(-1) @ heads if given.ndim == 4 else made[-1].sqrt()

    found = attention(Net(run, qkv=nn.Linear(8, 8)), torch.randn(1, 5, 8))
    assert not list(found)
    assert not [note for note in found.notes if "could not be followed:" in note]
