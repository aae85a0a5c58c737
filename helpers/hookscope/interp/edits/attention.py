"""Heads of attention layers, before the output projection mixes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hookscope.error_pages import append_page
from hookscope.interp.edits.selection import Selection, parse_samples
from hookscope.layers import Modules

__all__ = ["Heads", "NoHeadsError", "columns_of", "count_of", "heads_around", "select_heads"]

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
    """The layer at which the results of the heads are concatenated, along the last axis.

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
    """Return how many heads a module has. A config counts only in a class whose name says that it is attention."""
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return count_of(module) if named else count_of(module, config=False)


def count_of(module: nn.Module, *, config: bool = True) -> int | None:
    """Return the number of heads from an attribute of a module or of its config; None if there is no such attribute."""
    for place in (module, getattr(module, "config", None) if config else None):
        for name in _COUNTS:
            if isinstance(count := getattr(place, name, None), int) and not isinstance(count, bool):
                return count
    return None


def _width(module: nn.Module) -> int:
    """Return how many values a projection takes."""
    if type(module).__name__ == "Conv1D":  # of transformers: its weight is (in, out)
        return int(module.weight.shape[0])  # type: ignore[index]
    return int(getattr(module, "in_features", getattr(module, "in_channels", 0)))
