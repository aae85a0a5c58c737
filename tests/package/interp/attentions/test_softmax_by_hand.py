"""A softmax written by hand is followed to the product with the values, however axes lie; channels are no tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookscope import attention
from tests.shared.awkward_models import Do, Net


class Attention(nn.Module):
    """Four heads of four features; `mix` is given q, k, v as [batch, tokens, heads, features]."""

    def __init__(self, mix):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.qkv, self.out = mix, nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 4)) for each in self.qkv(x).chunk(3, -1))
        return self.out(self.mix(q, k, v).flatten(2))

    def weights(self, x):
        q, k, _ = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return (q @ k.mT).softmax(-1).detach()


X = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(1))


def usual(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2)


def einsum(q, k, v):
    return torch.einsum("bhqk,bkhd->bqhd", torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1), v)


def softmax_in_the_middle(q, k, v):
    return torch.einsum("qkbh,bkhd->bqhd", torch.einsum("bqhd,bkhd->qkbh", q, k).softmax(1), v)


def heads_before_samples(q, k, v):
    q, k, v = (each.permute(2, 0, 1, 3).flatten(0, 1) for each in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).unflatten(0, (4, -1)).permute(1, 2, 0, 3)


def samples_before_heads(q, k, v):
    q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).unflatten(0, (-1, 4)).transpose(1, 2)


def values_from_the_left(q, k, v):
    q, k, v = (each.permute(0, 2, 3, 1) for each in (q, k, v))
    return (v @ (q.mT @ k).softmax(-1).mT).permute(0, 3, 1, 2)


def keys_as_rows(q, k, v):
    q, k, v = (each.permute(0, 2, 3, 1) for each in (q, k, v))
    return (v @ (k.mT @ q).softmax(-2)).permute(0, 3, 1, 2)


def in_float64(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = F.dropout(torch.softmax(q @ k.mT, -1, dtype=torch.float64).to(q.dtype), 0.5, training=False)
    return (weights @ v).transpose(1, 2)


def with_a_sink(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    scores = torch.cat([torch.full((3, 4, 6, 1), -torch.inf), q @ k.mT], -1)
    return (scores.softmax(-1)[..., 1:] @ v).transpose(1, 2)


def into_another(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    scores = q @ k.mT
    weights = torch.softmax(scores, -1, out=torch.empty_like(scores))
    return (weights @ v).transpose(1, 2)


WAYS = [
    usual, einsum, softmax_in_the_middle, heads_before_samples, samples_before_heads, values_from_the_left,
    keys_as_rows, in_float64, with_a_sink, into_another,
]  # fmt: skip


@pytest.mark.parametrize("mix", WAYS)
def test_it_is_followed(mix):
    model = Attention(mix)
    found = attention(model, X)[0]
    torch.testing.assert_close(found.weights, model.weights(X))
    assert found.verified
    assert found.by == "softmax, then a product"


@pytest.mark.parametrize("mix", [way for way in WAYS if way is not with_a_sink])
def test_one_query_as_with_a_cache(mix):
    model = Attention(lambda q, k, v: mix(q[:, -1:], k, v))
    found = attention(model, X)[0]
    torch.testing.assert_close(found.weights, model.weights(X)[:, :, -1:])
    assert found.verified


class Places(nn.Module):
    """Places of a picture look at each other: rows and columns are one axis, of two parts."""

    def __init__(self, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Conv2d(3, 24, 1)

    def qk(self, x):
        q, k, v = (each.flatten(2).unflatten(1, (self.heads, -1)) for each in self.qkv(x).chunk(3, 1))
        return (q.mT @ k).softmax(-1), v

    def forward(self, x):
        weights, v = self.qk(x)
        return (v @ weights.mT).flatten(1, 2)


@pytest.mark.parametrize("heads", [1, 2])
def test_rows_of_a_picture_are_no_heads(heads):
    model, x = Places(heads), torch.randn(2, 3, 4, 5)
    found = attention(model, x)[0]
    assert found.weights.shape == (2, heads, 20, 20)
    torch.testing.assert_close(found.weights, model.qk(x)[0].detach())


def test_tokens_that_a_layer_has_made_are_no_channels():
    def run(self, x):
        tokens = self.make(x.mean(1)).unflatten(-1, (5, 8))
        return (tokens @ tokens.mT).softmax(-1) @ tokens

    found = attention(Net(run, make=nn.Linear(16, 40)), X)
    assert [each.weights.numel() for each in found.values()] == [3 * 5 * 5]
    assert not any("channels" in note for note in found.notes)


def test_masks_and_dropout_are_in_it():
    mask = torch.ones(6, 6).triu(1).bool()

    def masked(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        weights = torch.where(mask, -torch.inf, q @ k.mT).masked_fill(mask, -1e9).softmax(-1)
        return (F.dropout(weights, 0.5, training=True) @ v).transpose(1, 2)

    found = attention(Attention(masked), X)
    assert found[0].dropout == 0.5
    assert not found[0].weights[..., mask].any()
    assert found[0].verified
    assert any("dropout of 0.5" in note for note in found.notes)


def test_one_head_without_an_axis_for_it():
    layers = {name: nn.Linear(16, 5) for name in "qkv"}
    model = Net(lambda self, x: (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x), **layers)
    for x in (X, X[0], X[:, :1]):
        found = attention(model, x)[0]
        assert found.weights.shape == (len(x) if x.dim() == 3 else 1, 1, x.shape[-2], x.shape[-2])
        torch.testing.assert_close(found.weights.squeeze(1), (model.q(x) @ model.k(x).mT).softmax(-1).detach().view(
            found.weights.squeeze(1).shape))  # fmt: skip


def test_it_is_the_weights_as_they_were_even_where_their_memory_is_used_again():
    def again(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        weights = (q @ k.mT).softmax(-1)
        mixed = weights @ v
        weights.zero_()
        return mixed.transpose(1, 2)

    model = Attention(again)
    torch.testing.assert_close(attention(model, X)[0].weights, model.weights(X))


def windows(x):
    return x.unflatten(1, (2, 3)).transpose(2, 3)  # [batch, windows, heads, tokens, features]


def windows_before_samples(q, k, v):
    weights = (windows(q) @ windows(k).mT).softmax(-1).transpose(0, 1)
    return (weights @ windows(v).transpose(0, 1)).transpose(0, 1).transpose(2, 3).flatten(1, 2)


def test_samples_come_before_windows_whatever_order_the_model_puts_them_in():
    model = Attention(windows_before_samples)
    found = attention(model, X)[0]
    q, k, _ = (windows(each.unflatten(-1, (4, 4))) for each in model.qkv(X).chunk(3, -1))
    torch.testing.assert_close(found.weights, (q @ k.mT).softmax(-1).flatten(0, 1).detach())


def test_a_softmax_of_what_was_mixed_is_no_attention():
    def gated(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = (q @ k.mT).softmax(-1) @ v
        return (mixed * mixed.softmax(-1)).transpose(1, 2)

    found = attention(Attention(gated), X)
    assert len(found) == 1
    assert not any("could not trace" in note for note in found.notes)


# What is no attention of tokens.


def channels(q, k, v):
    q, k, v = (each.permute(0, 2, 3, 1) for each in (q, k, v))
    return ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v).permute(0, 3, 1, 2)


def channels_in_one_operation(q, k, v):
    return F.scaled_dot_product_attention(*(each.permute(0, 2, 3, 1) for each in (q, k, v))).permute(0, 3, 1, 2)


@pytest.mark.parametrize("tokens", [6, 1])
@pytest.mark.parametrize("mix", [channels, channels_in_one_operation])
def test_channels_that_look_at_channels(mix, tokens):
    found = attention(Attention(mix), X[:, :tokens])
    assert len(found) == 0
    assert any("channels attend to channels" in note for note in found.notes)


RESIZED = [
    nn.MaxPool2d(2),
    nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d(4),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveMaxPool2d(4),
    nn.Upsample(scale_factor=2),
    nn.PixelShuffle(2),
    nn.ReflectionPad2d(1),
]


@pytest.mark.parametrize("between", RESIZED, ids=repr)
def test_channels_of_a_picture_that_was_made_smaller_or_larger(between):
    channels = Do(lambda x: ((q := x.flatten(2)) @ q.mT).softmax(-1) @ q)
    found = attention(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), between, channels), torch.randn(2, 3, 8, 8))
    assert len(found) == 0
    assert any("channels attend to channels" in note for note in found.notes)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads_first", [True, False])
def test_heads_that_share_their_keys_in_one_product_are_told_from_queries(heads_first, fused):
    class MultiQuery(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 8)

        def heads(self, x):
            return self.q(x).view(3, 6, 4, 4), *self.kv(x).chunk(2, -1)

        def forward(self, x):
            q, k, v = self.heads(x)
            all_q = (q.transpose(1, 2) if heads_first else q).reshape(3, 24, 4)
            if fused:
                return F.scaled_dot_product_attention(all_q[:, None], k[:, None], v[:, None])
            return torch.bmm(torch.bmm(all_q, k.mT / 2).softmax(-1), v)

    net = MultiQuery()
    found = attention(net, X)
    q, k, _ = net.heads(X)
    torch.testing.assert_close(found[0].weights, (q.transpose(1, 2) @ k[:, None].mT / 2).softmax(-1).detach())
    assert found[0].verified
    assert not found.notes


@pytest.mark.parametrize("turned", [False, True])
def test_classes_of_neighbours_are_no_channels_that_look_at_channels(turned):
    def run(self, links, x):  # a graph's nodes take classes from their neighbors; the links are given
        classes = self.classes(x)
        return (classes.mT @ links).softmax(-2) if turned else (links @ classes).softmax(-1)

    found = attention(Net(run, classes=nn.Linear(16, 4)), torch.rand(3, 6, 6), X)
    assert len(found) == 0
    assert not any("channels attend to channels" in note for note in found.notes)


def dual_attention(self, x):
    """DANet: tokens look at tokens, with the values from the left, and channels at channels."""
    x = self.conv(x).relu().flatten(2)
    of_channels = (x @ x.mT).softmax(-1) @ x
    flat = x[..., None]
    places = (self.q(flat).flatten(2).mT @ self.k(flat).flatten(2)).softmax(-1)
    return of_channels + x @ places.mT


def classes(self, x):
    return self.score(x).softmax(-1) @ self.values


def prototypes(self, x):
    """Let tokens look at what was learned, which is scaled before: no tokens look at tokens."""
    return (x @ (self.keys * 0.5).mT).softmax(-1).mT @ x


def squeeze_excitation(gate):
    layers = {"conv": nn.Conv2d(3, 8, 3), "fc": nn.Linear(8, 8), "gate": gate}
    return Net(lambda self, x: (y := self.conv(x)) * self.gate(self.fc(y.mean((2, 3))))[..., None, None], **layers)


def test_places_and_channels_are_told_apart():
    layers = {"conv": nn.Conv2d(3, 8, 3), "q": nn.Conv2d(8, 4, 1), "k": nn.Conv2d(8, 4, 1)}
    found = attention(Net(dual_attention, **layers), torch.randn(2, 3, 6, 6))
    assert [tuple(each.weights.shape) for each in found.values()] == [(2, 1, 16, 16)]
    assert any("channels attend to channels" in note for note in found.notes)


def product_by_hand(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return ((q @ k.mT).softmax(-1)[..., None] * v[:, :, None]).sum(-2).transpose(1, 2)


def exponentials(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = (q @ k.mT).exp()
    return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2)


@pytest.mark.parametrize(
    ("model", "x", "why"),
    [
        (
            squeeze_excitation(nn.Softmax(-1)),
            torch.randn(2, 3, 6, 6),
            "not of query-key products: probably class scores",
        ),
        (squeeze_excitation(nn.Sigmoid()), torch.randn(2, 3, 6, 6), "no softmax and no attention call"),
        (Net(classes, score=nn.Linear(16, 7), values=nn.Parameter(torch.randn(7, 16))), X, "probably class scores"),
        (Net(prototypes, keys=nn.Parameter(torch.randn(3, 16))), X, "probably class scores"),
        (Attention(product_by_hand), X, "could not trace it to the values"),
        (Attention(exponentials), X, "no softmax and no attention call"),
    ],
)
def test_no_map_and_why(model, x, why):
    found = attention(model, x)
    assert len(found) == 0
    assert found.notes[0].startswith("0 maps: ")
    assert any(why in note for note in found.notes)
    assert "0 attention maps" in repr(found)
    with pytest.raises(ValueError, match="0 maps, so there is nothing to draw"):
        found.picture()
