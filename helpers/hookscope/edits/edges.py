"""Cut an edge of attention: what one query of one head takes from one key, verified against the call itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.keep import is_wrapped
from hookscope.edits.aim import rows_of
from hookscope.edits.changes import Change
from hookscope.edits.heads import count_of
from hookscope.edits.options import numbers_of
from hookscope.edits.target import Target

__all__ = ["Edges", "cut", "cutting", "edges_of", "refuse_again"]

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Edges:
    """Edges of attention.

    Attributes:
        heads: the heads.
        queries: positions of the tokens that look.
        keys: positions of the tokens that they look at.
        rows: samples, as an index; None for all.
        count: how many heads the layer has.

    """

    heads: tuple[int, ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    rows: Any
    count: int


def edges_of(chosen: dict[nn.Module, str], head: Any, query: Any, key: Any, rows: Any) -> dict[nn.Module, Edges]:
    """Check which edges are meant in each of some layers, which are given with their names.

    Raises:
        TypeError: not whole numbers.
        ValueError: a layer does not say how many heads it has, or has no such head; or a position is negative.

    """
    counts = {module: count_of(module) for module in chosen}
    for module, name in chosen.items():
        if counts[module] is None:
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) does not say how many heads it has; name the attention "
                "layer, which computes scaled dot product attention"
            )
    at_rows = None if rows is None else rows_of(rows)
    return {
        module: Edges(
            numbers_of(head, f"layer {name!r}: head", counts[module]),
            numbers_of(query, "query"),
            numbers_of(key, "key"),
            at_rows,
            counts[module] or 0,
        )
        for module, name in chosen.items()
    }


def cutting(edges: Edges) -> Change:
    """Make a change of edges; nothing but `cut` computes it."""
    shown = " ".join(
        f"{name}={given[0] if len(given) == 1 else list(given)}"
        for name, given in (("head", edges.heads), ("query", edges.queries), ("key", edges.keys))
    )
    return Change("cut", _Named(shown), lambda region, moment: region, options={"edges": edges})


def refuse_again(old: Edges, new: Edges, layer: str, number: int) -> None:
    """Refuse to cut edges of a query that an earlier cut has changed: what it gets could not be verified any more.

    Raises:
        ValueError: says how to write both in one.

    """
    heads, queries = ({*a} & {*b} for a, b in ((old.heads, new.heads), (old.queries, new.queries)))
    before, now = _samples(old.rows), _samples(new.rows)
    apart = before is not None and now is not None and before.isdisjoint(now)
    if heads and queries and not apart:
        keys = sorted({*old.keys, *new.keys})
        raise ValueError(
            f"layer {layer!r}: edit {number} cuts edges of head {min(heads)} and query {min(queries)} already; cut "
            f"them in one edit, as key={keys}"
        )


def _samples(rows: Any) -> set[int] | None:
    """List samples; None where that takes a batch."""
    if isinstance(rows, slice) and rows.stop is not None and min(rows.start or 0, rows.stop) >= 0:
        return {*range(rows.start or 0, rows.stop, rows.step or 1)}
    return {*rows} if isinstance(rows, list) and min(rows) >= 0 else None


class _Named(str):
    """What a change shows as its value."""


def cut(target: Target, number: int, again: bool, crossed: bool, out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return what a call of scaled dot product attention returned, with edges cut.

    Args:
        target: the edit.
        number: which call of the layer this is.
        again: whether it runs again, to recompute what a checkpoint did not keep.
        crossed: whether keys come from elsewhere than queries.
        out: what the call returned, (samples, heads, queries, width).
        *args: what it was called with.
        **kwargs: likewise.

    Raises:
        RuntimeError: the attention cannot be recomputed, or came out otherwise.
        ValueError: there is no such key, or no other is left.

    """
    if not target.means(number, again):
        return out
    label, edges = target.label(number), target.rule.change.options["edges"]
    given: dict[str, Any] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    query, key = given["query"], given["key"]
    if given.get("dropout_p"):
        raise RuntimeError(
            f"{label}: its attention drops weights at random, so that it cannot be verified; model.eval()"
        )
    if is_wrapped(out) or out.dim() != 4:
        raise RuntimeError(
            f"{label}: attention under torch.func, or of shape {tuple(out.shape)} and not (samples, heads, queries, "
            "width), cannot be verified"
        )
    start, places, packed = _places(target, number, crossed, query, key, label)
    if not places:
        return out
    if missing := [each for each in edges.keys if each >= key.shape[-2]]:
        raise ValueError(f"{label}: there is no key {missing[0]}: this call has {key.shape[-2]} keys, from 0")
    target.held[f"edges {number}"] = []  # for who writes this in plain torch
    rows = torch.arange(out.shape[0], device=out.device)
    try:
        rows = rows if edges.rows is None else rows[edges.rows]
    except IndexError:
        raise IndexError(f"{label}: rows={edges.rows!r} does not fit a batch of {out.shape[0]}") from None
    new, olds, news = out.clone(), [], []
    for head in edges.heads:
        group = query.shape[-2]
        at_head, lines = (head // group, [head % group]) if packed else (head, places)
        target.held[f"edges {number}"] += [(at_head, line, each) for line in lines for each in edges.keys]
        old = out[rows][:, at_head, lines]
        mine = _without(given, rows, at_head, lines, edges.keys, old, label)
        new[rows[:, None], at_head, torch.tensor(lines, device=out.device)] = mine
        olds.append(old)
        news.append(mine)
    if not again:
        target.sizes.add(number, torch.stack(olds), torch.stack(news))
        target.places[number] = [start + place for place in places]
    return new


def _places(
    target: Target, number: int, crossed: bool, query: Tensor, key: Tensor, label: str
) -> tuple[int, list[int], bool]:
    """Say how many tokens came before, which queries of this call are meant, and whether heads lie where queries do."""
    edges = target.rule.change.options["edges"]
    tokens = target.tokens[number] if target.owner is not None else None
    length, heads = query.shape[-2], query.shape[1]
    # One query of grouped heads: transformers lays the heads of a group side by side, as if they were queries.
    one = tokens is None or bool(tokens.problem) or tokens.count == 1
    packed = heads != edges.count and heads * length == edges.count and one
    if not packed and heads != edges.count:
        raise RuntimeError(f"{label}: the layer says that it has {edges.count} heads, but this call has {heads}")
    count, start = (1 if packed else length), 0
    if tokens is not None and not tokens.problem and tokens.count == count:
        start = tokens.start
    elif tokens is not None and target.owner is not None and target.owner.sure:
        raise ValueError(
            f"{label}: positions of queries cannot be told: "
            f"{tokens.problem or f'{count} queries, but {tokens.count} tokens'}"
        )
    if tokens is not None and tokens.problem and not crossed and key.shape[-2] > count + 2:  # torch may add two keys
        raise ValueError(
            f"{label}: {key.shape[-2]} keys for {count} queries, of a cache or of other tokens, so that positions of "
            f"queries cannot be told: {tokens.problem}"
        )
    if not crossed and key.shape[-2] < start + count:
        raise ValueError(
            f"{label}: {key.shape[-2]} keys for {start + count} tokens: a sliding window, in which it cannot be told "
            "which key is which"
        )
    return start, [place for place in range(count) if place + start in edges.queries], packed


def _without(
    given: dict[str, Any], rows: Tensor, head: int, lines: list[int], keys: tuple[int, ...], old: Tensor, label: str
) -> Tensor:
    """Compute what these queries of one head get without some keys; verify what they get with them."""
    query, key, value = given["query"], given["key"], given["value"]
    of_keys = head // (query.shape[1] // key.shape[1])
    of_values = head // (query.shape[1] // value.shape[1])
    wide = torch.promote_types(old.dtype, torch.float32)
    with torch.autocast(old.device.type, enabled=False):
        q, k, v = (
            part.to(old.dtype).to(wide)
            for part in (query[rows][:, head, lines], key[rows][:, of_keys], value[rows][:, of_values])
        )
        scale = given.get("scale")
        scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        scores = _masked(scores, given, rows, head, lines)
        before = scores.softmax(-1) @ v
        error = float((before - old).detach().abs().max())
        size = float(v.detach().abs().max())
        if not error <= _CLOSE.get(old.dtype, 2e-2) * max(size, 1e-6):
            raise RuntimeError(
                f"{label}: attention as it was recomputed differs from what the call returned by {error:.2g}, where "
                f"values are up to {size:.2g}; so nothing is cut"
            )
        scores = scores.clone()
        scores[..., list(keys)] = -math.inf
        if bool((scores.detach().amax(-1) <= torch.finfo(old.dtype).min / 4).any()):
            raise ValueError(f"{label}: without these keys a query has none left; cut fewer")
        # The difference, so that a key that had no weight changes nothing, bit for bit.
        return (old.to(wide) + (scores.softmax(-1) @ v - before)).to(old.dtype)  # type: ignore[no-any-return]


def _masked(scores: Tensor, given: dict[str, Any], rows: Tensor, head: int, lines: list[int]) -> Tensor:
    """Mask scores as the call does."""
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    shape = (*query.shape[:-1], key.shape[-2])
    if given.get("is_causal"):
        causal = torch.ones(shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~causal[lines], -math.inf)
    if mask is None:
        return scores
    part = mask.expand(shape)[rows][:, head, lines]
    if part.dtype is torch.bool:
        return scores.masked_fill(~part, -math.inf)
    return scores + part  # type: ignore[no-any-return]
