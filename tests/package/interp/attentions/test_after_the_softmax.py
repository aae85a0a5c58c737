"""What a model does with weights after a softmax by hand: samples keep their order, and a mixture is no score."""

from __future__ import annotations

import torch

from hookscope import attention
from tests.package.interp.attentions.test_softmax_by_hand import Attention, X


def windows(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (2, 3)).transpose(2, 3)  # [batch, windows, heads, tokens, features]


def windows_before_samples(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (windows(q) @ windows(k).mT).softmax(-1).transpose(0, 1)
    return (weights @ windows(v).transpose(0, 1)).transpose(0, 1).transpose(2, 3).flatten(1, 2)


def test_samples_come_before_windows_whatever_order_the_model_puts_them_in() -> None:
    model = Attention(windows_before_samples)
    found = attention(model, X)[0]
    q, k, _ = (windows(each.unflatten(-1, (4, 4))) for each in model.qkv(X).chunk(3, -1))
    torch.testing.assert_close(found.weights, (q @ k.mT).softmax(-1).flatten(0, 1).detach())


def test_a_softmax_of_what_was_mixed_is_no_attention() -> None:
    def gated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = (q @ k.mT).softmax(-1) @ v
        return (mixed * mixed.softmax(-1)).transpose(1, 2)

    found = attention(Attention(gated), X)
    assert len(found) == 1
    assert not any("could not trace" in note for note in found.notes)
