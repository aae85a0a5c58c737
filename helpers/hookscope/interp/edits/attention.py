"""Heads of attention layers, before the output projection mixes them; and knockout of edges between tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.functorch import is_wrapped
from hookscope.error_pages import append_page
from hookscope.interp.edits.layer_edit import LayerEdit
from hookscope.interp.edits.selection import Selection, parse_samples
from hookscope.interp.edits.spec import Operation, parse_numbers
from hookscope.layers import Modules

__all__ = [
    "Edges",
    "Heads",
    "NoHeadsError",
    "check_edges",
    "columns_of",
    "count_of",
    "heads_around",
    "knock_out",
    "make_knockout",
    "refuse_second_knockout",
    "select_heads",
]  # fmt: skip

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_PROJECTIONS = (
    "c_proj", "o_proj", "out_proj", "out_lin", "output_proj", "linear_out", "post_proj", "dense", "proj", "wo", "Wo",
    "o", "to_out", "out", "merge",
)  # fmt: skip


class NoHeadsError(ValueError):
    """hookscope cannot find the heads of a layer, or cannot separate them.

    Attributes:
        why: the reason, without the advice.

    """

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(append_page(f"{why}. {instead}", "no_heads"))
        self.why = why


@dataclass(frozen=True)
class Heads:
    """Where the results of the heads are concatenated, on the last axis.

    Attributes:
        name: the name of that layer.
        module: the layer.
        to: "input" of a projection; "output" of an attention layer without one; "heads" inside an
            `nn.MultiheadAttention`, which does not call its projection.
        count: the number of heads.
        width: the number of values of all heads together; 0 if it is not known yet.

    """

    name: str
    module: nn.Module
    to: Any
    count: int
    width: int


def heads_around(modules: Modules, name: str, module: nn.Module, to: str) -> Heads:
    """Find the heads of a layer.

    Args:
        modules: the modules of the model.
        name: the layer's name.
        module: an attention layer, or its output projection.
        to: the option of the edit; a projection has heads in its input only.

    Raises:
        NoHeadsError: no heads were found. The message says what to write instead.
        ValueError: the edit is of a gradient.

    Example:
        >>> class Attention(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.num_heads, self.out_proj = 2, nn.Linear(6, 6)
        >>> net = nn.ModuleDict({"attn": Attention()})
        >>> found = heads_around(Modules(net), "attn", net["attn"], "output")
        >>> found.name, found.to, columns_of(found, 1)
        ('attn.out_proj', 'input', [3, 4, 5])

    """
    if to == "grad":
        raise ValueError("heads= works with to='output' or 'input'. For gradients, use an index such as at[..., 0:64]")
    holder_name = name.rpartition(".")[0]
    holder = modules.find(holder_name) if name else None
    if isinstance(holder, nn.MultiheadAttention):
        name, module = holder_name, holder  # it never calls its output projection
    for each in (holder, module):
        if each is not None and "lambda_q1" in each._parameters:
            raise NoHeadsError(
                f"layer {name!r}: {type(each).__name__} is differential attention, which subtracts one half of its "
                "heads from the other before its output projection, so heads= cannot separate them",
                "Use an index into the input of that projection: at[..., 0:64], to='input'",
            )
    if isinstance(module, nn.MultiheadAttention):
        return Heads(name, module, "heads", module.num_heads, module.embed_dim)
    if (count := _heads_of(module)) is None and holder is not None and (count := _heads_of(holder)) is not None:
        if name.rpartition(".")[2] not in _PROJECTIONS:
            has_projection = any(part in holder._modules for part in _PROJECTIONS)
            has_projection |= hasattr(holder, "attention_head_size")  # BERT: the projection stands beside it
            raise NoHeadsError(
                f"layer {name!r} does not get the heads of {holder_name!r}. They are in the input of its output "
                "projection",
                (f"Pass heads= with {holder_name!r}, or use" if has_projection else "Use")
                + " an index here, such as at[..., 0:64]",
            )
        return Heads(name, module, "input", count, _width(module))
    if count is None:
        raise NoHeadsError(
            f"layer {name!r} ({type(module).__name__}) has no attribute with its number of heads",
            "Use an index into the input of its output projection instead: at[..., 0:64], to='input'",
        )
    for part in _PROJECTIONS:
        if (child := module._modules.get(part)) is None:
            continue
        place, first = f"{name}.{part}" if name else part, child
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child):  # a dropout may follow
            first = child[0]
            child, place = (first, f"{place}.0") if isinstance(child, nn.ModuleList) else (child, place)
        # Of whatever kind: it may be quantized, or have a LoRA beside it.
        if (width := _width(first)) or any(True for _ in child.parameters()):
            return Heads(place, child, "input", count, width)
    return Heads(name, module, "output", count, count * int(getattr(module, "attention_head_size", 0)))


def select_heads(found: Heads, heads: Any, index: Any, samples: Any) -> Selection:
    """Select some heads of a layer; `index` and `samples` as `Selection.of` takes them."""
    return Selection.of(index, samples, columns_of(found, heads), f" heads={heads!r}", found.width)


def columns_of(found: Heads, heads: Any) -> list[int]:
    """List the indices of some heads on the last axis.

    Raises:
        ValueError: there is no such head.
        NoHeadsError: the heads cannot be separated.

    """
    numbers = parse_samples(heads, "heads", "heads")
    if isinstance(numbers, slice):
        numbers = list(range(found.count))[numbers]
    if wrong := [head for head in numbers if not 0 <= head < found.count]:
        raise ValueError(f"layer {found.name!r} has no head {wrong[0]}. Its heads are 0 to {found.count - 1}")
    if not found.width:
        raise NoHeadsError(
            f"layer {found.name!r} has {found.count} heads, but no submodule with the name of an output projection "
            f"({', '.join(_PROJECTIONS[:4])}, …)",
            "Use an index into the input of the layer that mixes them: at[..., 0:64], to='input'",
        )
    if found.width % found.count:
        raise NoHeadsError(
            f"layer {found.name!r}: its {found.width} values cannot be divided among {found.count} heads",
            "Use an index",
        )
    size = found.width // found.count
    return [column for head in numbers for column in range(head * size, (head + 1) * size)]


def _heads_of(module: nn.Module) -> int | None:
    """How many heads a module has: a config counts only in a class that says it is attention, for others have one."""
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return count_of(module) if named else count_of(module, config=False)


def count_of(module: nn.Module, *, config: bool = True) -> int | None:
    """The number of heads according to an attribute of a module or its config; None if there is no such attribute."""
    for place in (module, getattr(module, "config", None) if config else None):
        for name in _COUNTS:
            if isinstance(count := getattr(place, name, None), int) and not isinstance(count, bool):
                return count
    return None


def _width(module: nn.Module) -> int:
    """How many values a projection takes."""
    if type(module).__name__ == "Conv1D":  # of transformers: its weight is (in, out)
        return int(module.weight.shape[0])  # type: ignore[index]
    return int(getattr(module, "in_features", getattr(module, "in_channels", 0)))


_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Edges:
    """Edges of attention.

    Attributes:
        heads: the heads.
        queries: positions of the tokens that attend.
        keys: positions of the tokens that they attend to.
        samples: which samples of the batch, as an index; None for all.
        count: the number of heads of the layer.

    """

    heads: tuple[int, ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    samples: Any
    count: int


def check_edges(
    chosen: dict[nn.Module, str], heads: Any, queries: Any, keys: Any, samples: Any
) -> dict[nn.Module, Edges]:
    """Check which edges to cut in each of the chosen layers.

    Raises:
        TypeError: a value is not an integer.
        ValueError: the number of heads of a layer is unknown, there is no such head, or a position is negative.

    """
    counts = {module: count_of(module) for module in chosen}
    for module, name in chosen.items():
        if counts[module] is None:
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) has no attribute with its number of heads. Name the "
                "attention layer, which calls F.scaled_dot_product_attention"
            )
    of_batch = None if samples is None else parse_samples(samples)
    return {
        module: Edges(
            parse_numbers(heads, f"layer {name!r}: heads", counts[module]),
            parse_numbers(queries, "queries"),
            parse_numbers(keys, "keys"),
            of_batch,
            counts[module] or 0,
        )
        for module, name in chosen.items()
    }


def make_knockout(edges: Edges) -> Operation:
    """Create the operation of `Edit.cut`; `knock_out` computes it."""
    shown = " ".join(
        f"{name}={given[0] if len(given) == 1 else list(given)}"
        for name, given in (("heads", edges.heads), ("queries", edges.queries), ("keys", edges.keys))
    )
    return Operation("cut", _Named(shown), lambda region, context: region, options={"edges": edges})


def refuse_second_knockout(old: Edges, new: Edges, layer: str, number: int) -> None:
    """Refuse to cut edges of a query that an earlier cut has changed, because the result could not be verified.

    Raises:
        ValueError: there is such a query. The message says how to combine both cuts.

    """
    heads, queries = ({*a} & {*b} for a, b in ((old.heads, new.heads), (old.queries, new.queries)))
    before, now = _samples(old.samples), _samples(new.samples)
    apart = before is not None and now is not None and before.isdisjoint(now)
    if heads and queries and not apart:
        keys = sorted({*old.keys, *new.keys})
        raise ValueError(
            f"layer {layer!r}: edit {number} already cuts edges of head {min(heads)} and query {min(queries)}. Combine "
            f"the two: keys={keys}"
        )


def _samples(given: Any) -> set[int] | None:
    """List samples; None where that takes a batch."""
    if isinstance(given, slice) and given.stop is not None and min(given.start or 0, given.stop) >= 0:
        return {*range(given.start or 0, given.stop, given.step or 1)}
    return {*given} if isinstance(given, list) and min(given) >= 0 else None


class _Named(str):
    """What an operation shows as its value."""


def knock_out(
    layer_edit: LayerEdit, number: int, again: bool, crossed: bool, out: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Return the output of a call of scaled dot product attention, with edges cut.

    Args:
        layer_edit: the edit.
        number: the number of this call of the layer.
        again: whether a checkpoint runs it again in backward.
        crossed: whether keys and queries come from different tensors.
        out: the output of the call, (samples, heads, queries, width).
        *args: the positional arguments of the call.
        **kwargs: its keyword arguments.

    Raises:
        RuntimeError: the attention cannot be recomputed, or the result differs.
        ValueError: there is no such key, or a query would have no key left.

    """
    if not layer_edit.applies_to(number, again):
        return out
    label, edges = layer_edit.label(number), layer_edit.spec.operation.options["edges"]
    given: dict[str, Any] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    query, key = given["query"], given["key"]
    if given.get("dropout_p"):
        raise RuntimeError(f"{label}: its attention uses dropout, so the result cannot be verified. Call model.eval()")
    if is_wrapped(out) or out.dim() != 4:
        raise RuntimeError(
            f"{label}: cannot verify attention of shape {tuple(out.shape)}. It must be (samples, heads, queries, "
            "width), and not run under torch.func"
        )
    start, places, packed = _places(layer_edit, number, crossed, query, key, label)
    if not places:
        return out
    if missing := [each for each in edges.keys if each >= key.shape[-2]]:
        raise ValueError(f"{label}: there is no key {missing[0]}. The call has keys 0 to {key.shape[-2] - 1}")
    rows = torch.arange(out.shape[0], device=out.device)
    try:
        rows = rows if edges.samples is None else rows[edges.samples]
    except IndexError:
        raise IndexError(f"{label}: samples={edges.samples!r} does not fit a batch of {out.shape[0]}") from None
    new, olds, news = out.clone(), [], []
    for head in edges.heads:
        group = query.shape[-2]
        at_head, lines = (head // group, [head % group]) if packed else (head, places)
        old = out[rows][:, at_head, lines]
        mine = _without(given, rows, at_head, lines, edges.keys, old, label)
        new[rows[:, None], at_head, torch.tensor(lines, device=out.device)] = mine
        olds.append(old)
        news.append(mine)
    if not again:
        layer_edit.sizes.add(number, torch.stack(olds), torch.stack(news))
        layer_edit.places[number] = [start + place for place in places]
    return new


def _places(
    layer_edit: LayerEdit, number: int, crossed: bool, query: Tensor, key: Tensor, label: str
) -> tuple[int, list[int], bool]:
    """Say how many tokens came before, which queries of this call are meant, and whether heads lie where queries do."""
    edges = layer_edit.spec.operation.options["edges"]
    tokens = layer_edit.tokens[number] if layer_edit.token_source is not None else None
    length, heads = query.shape[-2], query.shape[1]
    # One query of grouped heads: transformers lays the heads of a group side by side, as if they were queries.
    one = tokens is None or bool(tokens.problem) or tokens.count == 1
    packed = heads != edges.count and heads * length == edges.count and one
    if not packed and heads != edges.count:
        raise RuntimeError(f"{label}: the layer should have {edges.count} heads, but this call has {heads}")
    count, start = (1 if packed else length), 0
    if tokens is not None and not tokens.problem and tokens.count == count:
        start = tokens.start
    elif tokens is not None and layer_edit.token_source is not None and layer_edit.token_source.sure:
        raise ValueError(
            f"{label}: cannot determine the positions of queries: "
            f"{tokens.problem or f'{count} queries, but {tokens.count} tokens'}"
        )
    if tokens is not None and tokens.problem and not crossed and key.shape[-2] > count + 2:  # torch may add two keys
        raise ValueError(
            f"{label}: there are {key.shape[-2]} keys for {count} queries. Some keys come from a cache or from other "
            f"tokens, so the positions of the queries are unknown: {tokens.problem}"
        )
    if not crossed and key.shape[-2] < start + count:
        raise ValueError(
            f"{label}: there are {key.shape[-2]} keys for {start + count} tokens, as with a sliding window, so the "
            "positions of the keys are unknown"
        )
    return start, [place for place in range(count) if place + start in edges.queries], packed


def _without(
    given: dict[str, Any], rows: Tensor, head: int, lines: list[int], keys: tuple[int, ...], old: Tensor, label: str
) -> Tensor:
    """Compute the output of these queries of one head without some keys; verify their output with all keys."""
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
                f"{label}: the recomputed attention differs from the result of the call by {error:.2g}, with values up "
                f"to {size:.2g}, so nothing is cut"
            )
        scores = scores.clone()
        scores[..., list(keys)] = -math.inf
        if bool((scores.detach().amax(-1) <= torch.finfo(old.dtype).min / 4).any()):
            raise ValueError(f"{label}: without these keys, a query has no key left. Cut fewer keys")
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
