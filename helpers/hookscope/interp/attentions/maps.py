"""The attention maps of one pass, by layer: the weights of each head, the result of the check, and notes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.interp.attentions.attention_calls import AttentionCall
from hookscope.interp.attentions.drawing import draw_all, draw_heads, find_choices
from hookscope.layers import LayerNotFoundError, Modules
from hookscope.layers.suggestions import hint, name_not_found, not_found
from hookscope.pictures import Picture, Result
from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text

__all__ = ["AttentionMap", "AttentionMaps"]

_MAX_SHOWN = 16  # heads, or calls, in one picture
Heads = int | Iterable[int] | Tensor | NDArray[Any] | None


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap(Result):
    """The weights of one attention call.

    Attributes:
        layer: the innermost module in which it ran; `""` is the model itself.
        label: its key among the maps: the layer's name, with ``#2`` for its second attention call.
        weights: the weights of the values, [batch, heads, queries, keys], in the dtype of the pass, without a graph.
        output_error: the largest difference between weights @ v, computed again, and the result of the call; None if
            a dropout inside one operation makes them differ.
        bound: the largest difference that rounding explains.
        by: how torch computed it: `scaled_dot_product_attention`, or a softmax between two products.
        dropout: the share of weights that dropout set to 0 in this call.
        remarks: notes from the pass.
        queries: a token for each query, or ().
        keys: a token for each key, or ().

    """

    _picture_and_table = True
    layer: str
    label: str
    weights: Tensor
    output_error: float | None
    bound: float
    by: str
    dropout: float = 0.0
    remarks: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether weights @ v equals the result of the call, up to rounding."""
        return self.output_error is not None and self.output_error <= self.bound

    @property
    def check(self) -> str:
        """The difference between weights @ v and the result of the call, as a sentence without a full stop.

        It is rounded up to a power of ten.

        Example:
            >>> AttentionMap("", "", torch.ones(1, 1, 1, 1), 3e-8, 1e-6, "softmax, then a product").check
            'weights @ v differs from the result of the call by at most 1e-07'

        """
        if self.output_error is None:
            return "weights @ v was not compared with the result of the call"
        if not self.output_error:
            return "weights @ v equals the result of the call, bit for bit"
        # To the next power of ten, because the digits depend on the processor.
        power = math.ceil(math.log10(self.output_error)) if math.isfinite(self.output_error) else self.output_error
        return f"weights @ v differs from the result of the call by at most {10.0**power:.0e}"

    @cached_property
    def blind(self) -> Tensor:
        """A mask of the queries that see no key, [batch, heads, queries]: all their weights are 0 or NaN."""
        total = self.weights.sum(-1)
        return (total == 0) | total.isnan()

    @cached_property
    def _row_sums(self) -> tuple[float, float]:
        """The smallest and the largest sum of a row, over queries that see a key; 1 without any."""
        totals = self.weights.float().sum(-1)[~self.blind]
        return (float(totals.min()), float(totals.max())) if totals.numel() else (1.0, 1.0)

    @cached_property
    def entropy(self) -> Tensor:
        """The mean entropy of the weights of a query, in bits, [batch, heads]: 0 for one key, 3 for eight equal ones.

        The mean is over queries that see a key; if there are none, it is NaN.
        """
        found = []
        for sample, blind in zip(self.weights, self.blind, strict=True):
            wide = sample.float().clamp_min(0)
            bits = torch.special.entr(wide).sum(-1).masked_fill(blind, 0) / math.log(2)
            found.append(bits.sum(-1) / (~blind).sum(-1))
        return torch.stack(found)

    @cached_property
    def greatest(self) -> Tensor:
        """The largest weight of a query that sees several keys, [batch, heads]; of any query if none does."""
        weights = self.weights.nan_to_num(0.0)
        return weights.masked_fill(~find_choices(weights), 0).flatten(2).amax(-1)

    def with_tokens(self, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> AttentionMap:
        """Return the same map with other tokens, for example if queries and keys come from two texts.

        Raises:
            ValueError: the number of tokens differs from that of queries or keys.

        """
        lists = [check_tokens(each) if each is not None else () for each in (queries, keys)]
        for what, given, size in zip(("queries", "keys"), lists, self.weights.shape[2:], strict=True):
            if given and len(given) != size:
                raise ValueError(f"{len(given)} tokens for the {size} {what} of {self.label!r}. Pass one for each")
        return replace(self, queries=lists[0] or self.queries, keys=lists[1] or self.keys)

    def token(self, position: int, of: str = "queries") -> str:
        """Name a query or a key: its position, and its token if there is one."""
        tokens = self.queries if of == "queries" else self.keys
        return f"{position} {tokens[position]}" if tokens else str(position)

    def picture(self, heads: Heads = None, sample: int = 0) -> Picture:
        """Draw one map for each head: a row is a query, a column is a key, and the weights of a row sum to 1.

        Args:
            heads: the number of a head, or several, also as a tensor or an array; by default the first 16.
            sample: which sample of the batch.

        Raises:
            TypeError: `heads` contains something other than integers.
            ValueError: `heads` is empty.
            IndexError: there is no such head or sample.

        """
        return draw_heads(self, self.heads(heads), self.sample(sample))

    def heads(self, heads: Heads) -> list[int]:
        """List the numbers of the given heads."""
        count = self.weights.shape[1]
        if heads is None:
            return list(range(min(count, _MAX_SHOWN)))
        given = heads.tolist() if isinstance(heads, Tensor | np.ndarray) else heads
        given = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
        if any(isinstance(head, bool) or not hasattr(head, "__index__") for head in given):  # not a mask
            raise TypeError(f"heads={heads!r} does not number heads. Pass an integer, or several, such as heads=[0, 2]")
        if not given:
            raise ValueError("heads is empty, so there is nothing to draw. Pass at least one head")
        chosen = [operator.index(head) for head in given]
        if wrong := [head for head in chosen if not 0 <= head < count]:
            raise IndexError(f"no head {wrong[0]}: {self.label!r} has {count}. Pass numbers from 0 to {count - 1}")
        return chosen

    def sample(self, sample: int) -> int:
        """Check the number of a sample and return it."""
        if not 0 <= sample < len(self.weights):
            raise IndexError(f"no sample {sample}: there are {len(self.weights)}. Pass 0 to {len(self.weights) - 1}")
        return sample

    def row(self) -> dict[str, object]:
        """Return the row of the table, over all samples and heads."""
        _, heads, queries, keys = self.weights.shape
        entropy = self.entropy[~self.entropy.isnan()]
        return {
            "call": self.label or "(root)",
            "heads": heads,
            "queries": queries,
            "keys": keys,
            "greatest weight": float(self.greatest.max()) if self.greatest.numel() else None,
            "entropy (bits)": float(entropy.mean()) if entropy.numel() else None,
            "error": "not checked" if self.output_error is None else f"{self.output_error:.1g}",
            "by": self.by,
        }

    @property
    def rows(self) -> list[dict[str, object]]:
        """The row of this call."""
        return [self.row()]

    @property
    def caption(self) -> str:
        """The size of the batch."""
        return f"Attention, {len(self.weights)} in the batch"

    @cached_property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes about this map."""
        notes = [*self.remarks]
        if self.output_error is not None and not self.verified:
            notes.append(
                "weights @ v differs from the result of the call by more than rounding, so do not trust this map"
            )
        if self.dropout and self.output_error is not None:
            notes.append(f"dropout of {self.dropout:g}: these are the weights after it, so rows do not sum to 1")
        low, high = self._row_sums
        if not self.dropout and high - low + abs(1 - high) > 0.01:
            sums = f"{low:.2g}" if high - low < 0.01 else f"{low:.2g} to {high:.2g}"
            notes.append(
                f"rows sum to {sums}, not to 1: this is a piece of a softmax over more keys, or the model changed the "
                "weights after it"
            )
        if count := int(self.blind.sum()):
            what = "NaN" if bool(self.weights.isnan().any()) else "0"
            why = "dropped, or fully masked" if self.dropout else "fully masked, because their query sees no key"
            notes.append(f"{count} of {self.blind.numel()} rows are {why}: their weights are {what}")
        return tuple(notes)


class AttentionMaps(Result, Mapping[str, AttentionMap]):
    """The result of `attention`: a mapping from layers to maps, in the order of the calls.

    ``maps["h.3.attn"]`` is the map of a layer, ``maps["decoder#2"]`` the map of its second attention call, and
    ``maps[0]`` the first map.

    Attributes:
        title: the class name of the model.
        notes: notes about the pass and its maps; they say why there is no map, if there is none.

    """

    _picture_and_table = True

    def __init__(
        self, modules: Modules, found: Sequence[AttentionCall], notes: Sequence[str], tokens: tuple[str, ...] = ()
    ) -> None:
        self.title = type(modules.model).__name__
        self._modules = modules
        self._pass_notes = tuple(notes)
        layers = [each.layer for each in found]
        self._maps: dict[str, AttentionMap] = {}
        for number, each in enumerate(found):
            label = each.layer
            if layers.count(label) > 1:
                label = f"{label}#{layers[: number + 1].count(each.layer)}"
            queries, keys = (tokens if len(tokens) == size else () for size in each.weights.shape[2:])
            self._maps[label] = AttentionMap(
                each.layer,
                label,
                each.weights,
                each.error,
                each.bound,
                each.by,
                each.dropped,
                each.notes,
                queries,
                keys,
            )

    def __getitem__(self, name: str | int) -> AttentionMap:
        if isinstance(name, int):
            if not -len(self) <= name < len(self):
                known = f"Pass 0 to {len(self) - 1}, or the name of a layer" if self else "; ".join(self.notes)
                raise IndexError(f"no map {name}: there are {len(self)}. {known}")
            return list(self._maps.values())[name]
        if name in self._maps:
            return self._maps[name]
        if several := [label for label, each in self._maps.items() if each.layer == name]:
            listed = f"{several[0]!r} to {several[-1]!r}" if len(several) > 2 else " and ".join(map(repr, several))
            raise LayerNotFoundError(f"layer {name!r} has {len(several)} maps: {listed}", str(name), several[:3])
        if name not in self._modules.names.values():
            error = not_found(self._maps, name, f"no layer {name!r}")
            raise error if error.suggestions else name_not_found(self._modules, str(name))
        inside = [label for label in self._maps if not name or label.startswith(f"{name}.")]
        around = [label for label, each in self._maps.items() if not each.layer or name.startswith(f"{each.layer}.")]
        near = (inside or around)[:3]
        raise LayerNotFoundError(f"no attention ran in layer {name!r} itself{hint(near)}", str(name), near)

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(self._maps)

    def __contains__(self, name: object) -> bool:
        return name in self._maps

    def get(self, name: str, default: Any = None) -> Any:
        """Return the map with this label, or `default`."""
        return self._maps.get(name, default)

    @property
    def rows(self) -> list[dict[str, object]]:
        """The table's rows: call, heads, queries, keys, greatest weight, mean entropy in bits, error, operation."""
        return [each.row() for each in self._maps.values()]

    @property
    def nbytes(self) -> int:
        """The memory of all maps, in bytes."""
        return sum(each.weights.nbytes for each in self._maps.values())

    @cached_property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes about the pass, then about maps."""
        by_text: dict[str, list[str]] = {}
        for label, each in self._maps.items():
            for text in each.notes:
                by_text.setdefault(text, []).append(label or "(root)")
        for layer in dict.fromkeys(each.layer for each in self._maps.values()):
            maps = [each for each in self._maps.values() if each.layer == layer]
            if len({each.weights.shape[2:] for each in maps}) > 1:
                text = (
                    "maps of several sizes, from several calls or from pieces of one attention; positions are counted "
                    "within each map"
                )
                by_text.setdefault(text, []).append(layer or "(root)")
        return (*self._pass_notes, *(f"{_join_labels(labels)}: {text}" for text, labels in by_text.items()))

    def picture(self, sample: int = 0) -> Picture:
        """Draw small maps of one sample, a row for each call and a column for each head; the first 16 of both.

        Raises:
            ValueError: there is no map.
            IndexError: there is no such sample.

        """
        if not self._maps:
            raise ValueError(f"{self.title}: 0 maps, so there is nothing to draw. {'; '.join(self.notes)}")
        return draw_all(self.title, list(self._maps.values()), sample, _MAX_SHOWN)

    def _is_drawn(self) -> bool:
        return bool(self)

    @property
    def caption(self) -> str:
        """The model, and the number of maps."""
        batches = {len(each.weights) for each in self._maps.values()}
        batch = f", {batches.pop()} in the batch" if len(batches) == 1 else ""
        return f"{self.title}: {count_text(len(self), 'attention map')}{batch}"


def _join_labels(labels: Sequence[str]) -> str:
    if len(labels) <= 3:
        return ", ".join(labels)
    return f"{labels[0]}, {labels[1]} and {len(labels) - 2} more"
