"""Models with attention, and the weights of each call, computed by hand in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.shared.language_models import gpt2, llama, small_vit

__all__ = ["CASES", "AttentionCase"]

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[5, 3, 9, 1, 7], [2, 8, 8, 4, 6]])
LEFT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
RIGHT = LEFT.flip(1)


@dataclass
class AttentionCase:
    """A model and what it is called with.

    Attributes:
        make: makes the model.
        args: positional arguments.
        kwargs: keyword arguments.
        twin: makes a model with the same parameters that calls `F.scaled_dot_product_attention`; the same without it.
        tokens: which queries are no padding, (samples, queries); all without it.

    """

    make: Callable[[], nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    twin: Callable[[], nn.Module] | None = None
    tokens: Tensor | None = None

    def made(self, make: Callable[[], nn.Module] | None = None) -> nn.Module:
        """Make the model from the same random numbers."""
        torch.manual_seed(0)
        return (make or self.make)()

    def truth(self) -> list[Tensor]:
        """The weights of each call, [samples, heads, queries, keys]; the model must return the same with them."""
        plain = self.made()
        model = self.made(self.twin)
        model.load_state_dict(plain.state_dict())
        model, args, kwargs = copy.deepcopy(model).double(), _doubled(self.args), _doubled(self.kwargs)
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.register_forward_pre_hook(_without_weights, with_kwargs=True)
        with _by_hand() as found:
            expected = model(*args, **kwargs)
        mine, theirs = _tensor(expected), _tensor(plain(*self.args, **self.kwargs))
        rows = ... if self.tokens is None else self.tokens.bool()
        torch.testing.assert_close(mine[rows].float(), theirs[rows], rtol=1e-3, atol=1e-5)
        return found

    def same(self, maps: list[Tensor]) -> bool:
        """Whether these are the weights, padded queries apart, whose weights mean nothing."""
        wanted = self.truth()
        if [each.shape for each in maps] != [each.shape for each in wanted]:
            return False
        for mine, right in zip(maps, wanted, strict=True):
            rows = slice(None) if self.tokens is None else self.tokens.bool()
            mine, right = mine.double().transpose(1, 2)[rows], right.transpose(1, 2)[rows]
            if not torch.allclose(mine, right, rtol=1e-4, atol=1e-5):
                return False
        return True


def _tensor(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    return found.detach()


def _doubled(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_doubled, value))
    if isinstance(value, dict):
        return {key: _doubled(each) for key, each in value.items()}
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _without_weights(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    return args, kwargs | {"need_weights": False}  # then it calls F.scaled_dot_product_attention


@contextmanager
def _by_hand() -> Iterator[list[Tensor]]:
    """Put the formula in the place of `F.scaled_dot_product_attention`, and keep the weights of each call."""
    found: list[Tensor] = []

    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(-1).nan_to_num(0.0)  # torch: a query that sees no key gets zeros
        found.append(weights.detach())
        return weights @ value

    original = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = attend
    try:
        yield found
    finally:
        F.scaled_dot_product_attention = original


_LATER = torch.ones(5, 5).triu(1).bool()


class _Own(nn.Module):
    """Attention as people write it: one linear layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def cut(self, x: Tensor) -> Any:
        """Queries, keys and values of 4 heads."""
        return (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.cut(x)
        found: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return found


class _Softmax(_Own):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.cut(x)
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(_LATER, -math.inf)
        found: Tensor = self.out((torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))
        return found


class _Exponentials(_Own):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.cut(x)
        powers = (q @ k.transpose(-1, -2) / 2).masked_fill(_LATER, -math.inf).exp()
        found: Tensor = self.out((powers / powers.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))
        return found


class _Around(nn.Module):
    """Calls a `MultiheadAttention`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(16, 4, batch_first=True), options

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, **self.options)[0]
        return found


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()


CASES: dict[str, AttentionCase] = {
    "GPT-2, sdpa": AttentionCase(gpt2, (), {"input_ids": IDS}),
    "GPT-2, eager": AttentionCase(lambda: gpt2(attn_implementation="eager"), (), {"input_ids": IDS}, gpt2),
    "Llama, grouped queries, padded on the left": AttentionCase(
        llama, (), {"input_ids": IDS, "attention_mask": LEFT}, tokens=LEFT
    ),
    "MultiheadAttention": AttentionCase(lambda: _Around().eval(), (X,)),
    "MultiheadAttention, need_weights=False": AttentionCase(lambda: _Around(need_weights=False).eval(), (X,)),
    "TransformerEncoderLayer, fused": AttentionCase(_encoder, (X,)),
    "TransformerEncoderLayer, fused, with padding": AttentionCase(
        _encoder, (X,), {"src_key_padding_mask": RIGHT == 0}, tokens=RIGHT
    ),
    "vit of torchvision": AttentionCase(
        small_vit, (torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)),)
    ),
    "a custom module, scaled_dot_product_attention": AttentionCase(_Own, (X,)),
    "a custom module, softmax by hand": AttentionCase(_Softmax, (X,), twin=_Own),
    "a custom module, exponentials by their sum": AttentionCase(_Exponentials, (X,), twin=_Own),
}
"""What is looked into. No tool has to see the last: it is right to say so."""
