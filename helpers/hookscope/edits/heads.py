"""Find where the heads of an attention layer lie side by side, before its output projection mixes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hookscope.edits.aim import Aim, rows_of
from hookscope.layers import Modules

__all__ = ["Heads", "NoHeadsError", "aim_at", "columns_of", "count_of", "heads_around"]

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_PROJECTIONS = (
    "c_proj", "o_proj", "out_proj", "out_lin", "output_proj", "linear_out", "post_proj", "dense", "proj", "wo", "Wo",
    "o", "to_out", "out", "merge",
)  # fmt: skip


class NoHeadsError(ValueError):
    """The heads of a layer are not to be found, or cannot be told apart.

    Attributes:
        why: says so, without what to write instead.

    """

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(f"{why}; {instead}")
        self.why = why


@dataclass(frozen=True)
class Heads:
    """Where heads lie side by side, on the last axis.

    Attributes:
        name: the layer there.
        module: that layer.
        to: "input" of a projection; "output" of an attention layer without one; "heads", inside of an
            `nn.MultiheadAttention`, whose projection is no call of a layer.
        count: how many heads there are.
        width: how many values they have together; 0 if that is not known yet.

    """

    name: str
    module: nn.Module
    to: Any
    count: int
    width: int


def heads_around(modules: Modules, name: str, module: nn.Module, to: str) -> Heads:
    """Find the heads of a layer.

    Args:
        modules: those of the model.
        name: the layer's name.
        module: an attention layer, or its output projection.
        to: what was asked for; a projection has heads in its input only.

    Raises:
        NoHeadsError: no heads are to be found; says what to write instead.
        ValueError: heads of gradients were asked for.

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
        raise ValueError("heads= goes with to='output' or 'input'; for gradients write an index, at[..., 0:64]")
    holder_name = name.rpartition(".")[0]
    holder = modules.called(holder_name) if name else None
    if isinstance(holder, nn.MultiheadAttention):
        name, module = holder_name, holder  # it never calls its output projection
    for each in (holder, module):
        if each is not None and "lambda_q1" in each._parameters:
            raise NoHeadsError(
                f"layer {name!r}: {type(each).__name__} is differential attention, which takes one half of its heads "
                "from the other before its output projection, so heads= cannot tell them apart",
                "write an index into what goes into that: at[..., 0:64], to='input'",
            )
    if isinstance(module, nn.MultiheadAttention):
        return Heads(name, module, "heads", module.num_heads, module.embed_dim)
    if (count := _heads_of(module)) is None and holder is not None and (count := _heads_of(holder)) is not None:
        if name.rpartition(".")[2] not in _PROJECTIONS:
            has_projection = any(part in holder._modules for part in _PROJECTIONS)
            has_projection |= hasattr(holder, "attention_head_size")  # BERT: the projection stands beside it
            raise NoHeadsError(
                f"layer {name!r} is not where the heads of {holder_name!r} lie side by side, which is the input of its "
                "output projection" + f": give heads= with {holder_name!r}" * has_projection,
                "or write an index here, at[..., 0:64]" if has_projection else "write an index here, at[..., 0:64]",
            )
        return Heads(name, module, "input", count, _width(module))
    if count is None:
        raise NoHeadsError(
            f"layer {name!r} ({type(module).__name__}) does not say how many heads it has",
            "write an index into what goes into its output projection instead: at[..., 0:64], to='input'",
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


def aim_at(found: Heads, heads: Any, index: Any, rows: Any) -> Aim:
    """Aim at some heads of a layer; `index` and `rows` as `Aim.of` takes them."""
    return Aim.of(index, rows, columns_of(found, heads), f" heads={heads!r}", found.width)


def columns_of(found: Heads, heads: Any) -> list[int]:
    """List the places of some heads on the last axis.

    Raises:
        ValueError: there is no such head.
        NoHeadsError: the heads cannot be told apart.

    """
    numbers = rows_of(heads, "heads", "heads")
    if isinstance(numbers, slice):
        numbers = list(range(found.count))[numbers]
    if wrong := [head for head in numbers if not 0 <= head < found.count]:
        raise ValueError(f"layer {found.name!r} has no head {wrong[0]}: its {found.count} heads count from 0")
    if not found.width:
        raise NoHeadsError(
            f"layer {found.name!r} has {found.count} heads, and nothing in it has a name by which an output projection "
            f"is known ({', '.join(_PROJECTIONS[:4])}, …)",
            "write an index into the input of the layer that mixes them: at[..., 0:64], to='input'",
        )
    if found.width % found.count:
        raise NoHeadsError(
            f"layer {found.name!r}: {found.count} heads do not share {found.width} values evenly", "write an index"
        )
    size = found.width // found.count
    return [column for head in numbers for column in range(head * size, (head + 1) * size)]


def _heads_of(module: nn.Module) -> int | None:
    """How many heads a module has: a config counts only in a class that says it is attention, for others have one."""
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return count_of(module) if named else count_of(module, config=False)


def count_of(module: nn.Module, *, config: bool = True) -> int | None:
    """How many heads a module, or its config, says that it has; None if it does not."""
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
