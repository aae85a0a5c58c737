"""Compute again what one operation of torch's hides: the weights of an attention call, and what they return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "AttentionInputs",
    "CheckedWeights",
    "bound_rounding",
    "encoder_layer",
    "measure_gap",
    "multi_head",
    "projected",
    "read_sdpa",
]


@dataclass(eq=False, slots=True)
class CheckedWeights:
    """Weights, and how far weights @ v is from what the call returned.

    Attributes:
        weights: [..., queries, keys].
        error: the largest difference; None where nothing can be compared.
        bound: how large a difference rounding may make.

    """

    weights: Tensor
    error: float | None
    bound: float


@dataclass(eq=False, slots=True)
class AttentionInputs:
    """What a fused call computes from: queries, keys and values, heads apart, and a mask.

    Attributes:
        q: [..., heads, queries, features].
        k: [..., heads, keys, features], with fewer heads where groups of queries share them.
        v: as `k`.
        mask: broadcast over [..., heads, queries, keys]: true where a key is seen, or a number that is added.
        causal: whether a query sees only keys up to its own place, counted from the first.
        scale: what products are multiplied with.
        later: what hides later keys, by what it is for; the calls of a pass share it.

    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None
    later: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return (*self.q.shape[:-1], int(self.k.shape[-2]))

    @property
    def elements(self) -> int:
        """How many weights there are."""
        return math.prod(self.shape)

    def compute_weights(self) -> Tensor:
        """Compute the weights, those of 16-bit numbers in float32; a query without a key has NaN."""
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

    def quick_weights(self) -> Tensor | None:
        """Compute the weights in fewer operations, where a call is like most; where scores are not finite, wrongly."""
        q, k = _upcast(self.q), _upcast(_expand_groups(self.k, self.q))
        if not (self.causal and self.elements) or self.mask is not None or k.shape[:-2] != q.shape[:-2]:
            return None
        shape, kind = self.shape, (self.shape[-2:], q.dtype, q.device)
        if (later := self.later.get(kind)) is None:
            later = self.later[kind] = q.new_full(kind[0], -torch.inf).triu_(1)
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        scores = torch.baddbmm(later, q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:]).mT, alpha=scale)
        return torch.softmax(scores, -1).view(shape)

    def check(self, returned: Tensor) -> CheckedWeights:
        """Compute the weights, and hold weights @ v against what the call returned.

        A query that sees no key has weights of NaN; where the call returned numbers for it all the same, they become 0,
        which is what such calls take them for.
        """
        v = _upcast(_expand_groups(self.v, self.q))
        if (weights := self.quick_weights()) is not None:
            error = _max_abs(weights @ v - returned)
            if not math.isnan(error):
                return CheckedWeights(weights, error, bound_rounding(returned.dtype, v))
        weights = self.compute_weights()
        v = v.to(weights.dtype)
        mine = weights @ v
        error = measure_gap(mine, returned)
        if math.isnan(error):
            blind = mine.isnan().any(-1) & ~returned.isnan().any(-1)
            weights = weights.masked_fill(blind[..., None], 0)
            error = measure_gap(weights @ v, returned)
        return CheckedWeights(weights, error, bound_rounding(returned.dtype, v))


def measure_gap(mine: Tensor, returned: Tensor) -> float:
    """Return the largest difference; two NaN count as equal."""
    if mine.numel() == 0:
        return 0.0
    apart = mine - returned
    largest = _max_abs(apart)
    if math.isnan(largest):
        apart = apart.masked_fill((mine.isnan() & returned.isnan()) | (mine == returned), 0)
        largest = _max_abs(apart)
    return largest


def _max_abs(values: Tensor) -> float:
    # Not a norm: for infinity it takes ten times as long. NaN is in both.
    low, high = torch.aminmax(values)
    return max(-float(low), float(high)) + 0.0  # not -0


def bound_rounding(dtype: torch.dtype, v: Tensor) -> float:
    """Say how far two ways of computing a weighted mean of `v` may be apart by rounding."""
    largest = _max_abs(v) if v.numel() else 0.0
    if not math.isfinite(largest):
        finite = v[v.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
    kind = dtype if dtype.is_floating_point else torch.float32
    # A sum over thousands of keys, in another order: torch's own tests of these kernels allow about as much.
    return max(largest, 1e-6) * torch.finfo(kind).eps * (1000 if kind.itemsize > 2 else 8)


def read_sdpa(given: Mapping[str, Any], later: dict[Any, Tensor]) -> AttentionInputs:
    """Take what one of the kernels of `F.scaled_dot_product_attention` was called with, by the names in its schema."""
    mask = given.get("attn_mask", given.get("attn_bias"))
    causal = bool(given.get("is_causal", False))
    return AttentionInputs(given["query"], given["key"], given["value"], mask, causal, given.get("scale"), later)


def multi_head(given: Mapping[str, Any], query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
    """Take what the fused path of `nn.MultiheadAttention` was called with, by the names in its schema.

    Masks are true where a key is not seen; `mask_type` says what their axes are: 0 [queries, keys], 1 [batch, keys],
    2 [batch, heads, queries, keys]. Source: `merge_masks` in torch/nn/modules/activation.py, torch 2.15.
    """
    heads = given.get("num_heads", given.get("num_head"))
    weights, biases = given["qkv_weight"].chunk(3), given["qkv_bias"].chunk(3)
    q, k, v = (
        (y := F.linear(x, weight, bias)).view(*y.shape[:-1], heads, -1).transpose(-2, -3)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    mask = given.get("mask")
    if mask is not None:
        mask = ~mask.bool()
        if given.get("mask_type") == 1 or (given.get("mask_type") is None and mask.dim() == 2 and len(q) == len(mask)):
            mask = mask[:, None, None, :]
    return AttentionInputs(q, k, v, mask)


def projected(call: AttentionInputs, given: Mapping[str, Any], returned: Tensor) -> CheckedWeights:
    """Compute the weights of a fused `nn.MultiheadAttention`, and what its output projection makes of them."""
    weights = call.compute_weights()
    if bool(weights.isnan().any()):  # a query without a key: 0, unless the call returns NaN for it
        blind = weights.isnan().any(-1) & ~returned.isnan().any(-1)[:, None]
        weights = weights.masked_fill(blind[..., None], 0)
    mixed = (weights @ call.v.to(weights.dtype)).transpose(-2, -3).flatten(-2).to(call.q.dtype)
    mine = F.linear(mixed, given["proj_weight"], given["proj_bias"])
    return CheckedWeights(weights, measure_gap(mine, returned), bound_rounding(returned.dtype, returned))


def encoder_layer(given: Mapping[str, Any], returned: Tensor) -> tuple[CheckedWeights, str]:
    """Compute the weights of a fused `nn.TransformerEncoderLayer`, and the whole layer with them, to compare.

    Returns:
        The weights with the error of the layer's output, and a note; samples of a nested tensor are padded.

    """
    source, note = given["src"], ""
    there = None
    if source.is_nested:
        lengths = torch.tensor([len(sample) for sample in source.unbind()], device=source.device)
        source, returned = source.to_padded_tensor(0.0), returned.to_padded_tensor(0.0)
        there = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        note = "padded places were left out of it (nested tensors): their rows and columns are 0"
    first = (given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    second = (given["norm_weight_2"], given["norm_bias_2"], given["eps"])
    size = given["embed_dim"]

    def norm(x: Tensor, by: tuple[Tensor, Tensor, float]) -> Tensor:
        return F.layer_norm(x, (size,), *by)

    x = norm(source, first) if given["norm_first"] else source
    call = multi_head(given, x, x, x)
    if there is not None:
        call = AttentionInputs(call.q, call.k, call.v, there[:, None, None, :])
    weights = call.compute_weights()
    if bool(weights.isnan().any()):  # a query without a key: 0, unless the layer returns NaN for it
        blind = weights.isnan().any(-1) & ~returned.isnan().any(-1)[:, None]
        weights = weights.masked_fill(blind[..., None], 0)
    mixed = (weights @ call.v.to(weights.dtype)).transpose(-2, -3).flatten(-2).to(source.dtype)
    out = source + F.linear(mixed, given["proj_weight"], given["proj_bias"])
    out = out if given["norm_first"] else norm(out, first)
    inner = norm(out, second) if given["norm_first"] else out
    hidden = F.linear(inner, given["ffn_weight_1"], given["ffn_bias_1"])
    hidden = F.gelu(hidden) if given["use_gelu"] else F.relu(hidden)
    out = out + F.linear(hidden, given["ffn_weight_2"], given["ffn_bias_2"])
    out = out if given["norm_first"] else norm(out, second)
    if there is not None:
        out, returned = out[there], returned[there]
        weights = weights.masked_fill(~there[:, None, :, None], 0)
    return CheckedWeights(weights, measure_gap(out, returned), bound_rounding(returned.dtype, returned)), note


def _upcast(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize <= 2 and x.dtype.is_floating_point else x


def _expand_groups(x: Tensor, q: Tensor) -> Tensor:
    """Give every head of the queries its own keys or values."""
    if x.dim() < 3 or x.shape[-3] in (1, q.shape[-3]):
        return x
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)
