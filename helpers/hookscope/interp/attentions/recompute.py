"""Compute the weights of a call of `F.scaled_dot_product_attention` again, and check them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["AttentionInputs", "CheckedWeights", "bound_rounding", "measure_gap", "read_sdpa"]


@dataclass(eq=False, slots=True)
class CheckedWeights:
    """Weights, and the difference between weights @ v and the result of the call.

    Attributes:
        weights: [..., queries, keys].
        error: the largest difference; None if they cannot be compared.
        bound: the largest difference that rounding explains.

    """

    weights: Tensor
    error: float | None
    bound: float


@dataclass(eq=False, slots=True)
class AttentionInputs:
    """The inputs of an attention call: queries, keys and values per head, and a mask.

    Attributes:
        q: [..., heads, queries, features].
        k: [..., heads, keys, features], with fewer heads if groups of queries share them.
        v: as `k`.
        mask: broadcast over [..., heads, queries, keys]: true for visible keys, or a number to add.
        causal: whether a query sees only keys up to its own position.
        scale: the factor of the products; None for the usual one.

    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return (*self.q.shape[:-1], int(self.k.shape[-2]))

    def compute_weights(self) -> Tensor:
        """Compute the weights, in float32 for 16-bit inputs; a query without a key gets NaN."""
        q, k = _upcast(self.q), _upcast(_expand_groups(self.k, self.q))
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        scores = (q * scale) @ k.mT
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
            scores.masked_fill_(later, -torch.inf)
        if self.mask is not None:
            mask = self.mask
            scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype is torch.bool else scores.add_(mask)
        return torch.softmax(scores, -1)

    def check(self, returned: Tensor) -> CheckedWeights:
        """Compute the weights, and compare weights @ v with the result of the call.

        The weights of a query that sees no key are NaN, or 0 if the call returned numbers for it.
        """
        weights = self.compute_weights()
        v = _upcast(_expand_groups(self.v, self.q)).to(weights.dtype)
        error = measure_gap(weights @ v, returned)
        if math.isnan(error):
            blind = weights.isnan().any(-1) & ~returned.isnan().any(-1)
            weights = weights.masked_fill(blind[..., None], 0)
            error = measure_gap(weights @ v, returned)
        return CheckedWeights(weights, error, bound_rounding(returned.dtype, v))


def measure_gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; two NaN are equal."""
    if one.numel() == 0:
        return 0.0
    gap = one - other
    largest = _max_abs(gap)
    if math.isnan(largest):
        largest = _max_abs(gap.masked_fill((one.isnan() & other.isnan()) | (one == other), 0))
    return largest


def _max_abs(values: Tensor) -> float:
    # Not a norm, which takes ten times as long for infinity. Both results are NaN if a value is.
    low, high = torch.aminmax(values)
    return max(-float(low), float(high)) + 0.0  # not -0


def bound_rounding(dtype: torch.dtype, v: Tensor) -> float:
    """Return the largest difference by rounding between two ways of computing a weighted mean of `v`."""
    largest = _max_abs(v) if v.numel() else 0.0
    if not math.isfinite(largest):
        finite = v[v.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
    kind = dtype if dtype.is_floating_point else torch.float32
    # A sum over thousands of keys, in another order: torch's own tests of these kernels allow about as much.
    return max(largest, 1e-6) * torch.finfo(kind).eps * (1000 if kind.itemsize > 2 else 8)


def read_sdpa(given: Mapping[str, Any]) -> AttentionInputs:
    """Read the arguments of a kernel of `F.scaled_dot_product_attention`, by the names in its schema."""
    mask = given.get("attn_mask", given.get("attn_bias"))
    causal = bool(given.get("is_causal", False))
    return AttentionInputs(given["query"], given["key"], given["value"], mask, causal, given.get("scale"))


def _upcast(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize <= 2 and x.dtype.is_floating_point else x


def _expand_groups(x: Tensor, q: Tensor) -> Tensor:
    """Give every head of the queries its own keys or values."""
    if x.dim() < 3 or x.shape[-3] in (1, q.shape[-3]):
        return x
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)
