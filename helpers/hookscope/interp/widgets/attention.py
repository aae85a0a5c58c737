"""Pick a layer and a head, and see which token looks at which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traitlets

from hookscope.interp.attentions import AttentionMap, AttentionMaps
from hookscope.interp.attentions.drawing import draw_head
from hookscope.pictures import Rows
from hookscope.widgets.base import HookWidget, assets, show_errors

__all__ = ["AttentionPicker"]


class AttentionPicker(HookWidget):
    """Choose a layer and a head, and see its attention map and a table with the top key of each query.

    Args:
        maps: the result of `hookscope.attention(...)`.
        **chosen: attributes to start with, for example ``layer="h.3.attn", head=2``.

    Attributes:
        layer: the label of the map.
        head: the head, from 0. If another layer has fewer heads, it becomes the last one.
        sample: the index in the batch.

    Raises:
        TypeError: `maps` is not an `AttentionMaps`.
        ValueError: there are no maps, or an attribute does not exist.
        LayerNotFoundError: the map does not exist.
        IndexError: the head or the sample does not exist.

    Example:
        >>> import torch, hookscope
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> x = torch.zeros(1, 3, 8)
        >>> picker = AttentionPicker(hookscope.attention(layer, x, x, x), head=1)
        >>> picker
        AttentionPicker MultiheadAttention: (root), head 1 of 2, sample 0, 3 queries by 3 keys
        >>> picker.map.weights[picker.sample, picker.head].shape
        torch.Size([3, 3])

    """

    _esm, _css = assets(Path(__file__).with_name("attention"))

    layer = traitlets.Unicode().tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    sample = traitlets.Int(0).tag(sync=True)
    _layers: Any = traitlets.List().tag(sync=True)  # [label, text to show]
    _heads = traitlets.Int(1).tag(sync=True)
    _samples = traitlets.Int(1).tag(sync=True)
    _rows: Any = traitlets.List().tag(sync=True)
    _caption = traitlets.Unicode().tag(sync=True)
    _notes: Any = traitlets.List().tag(sync=True)

    def __init__(self, maps: AttentionMaps, **chosen: Any) -> None:
        if not isinstance(maps, AttentionMaps):
            raise TypeError(
                f"maps must be AttentionMaps, not {type(maps).__name__}. Pass the result of hookscope.attention(...)"
            )
        if not maps:
            raise ValueError(f"{maps.title} has no attention map to show: {'; '.join(maps.notes)}")
        if unknown := set(chosen) - {"layer", "head", "sample"}:
            raise ValueError(f"no attribute {unknown.pop()!r}. Choose from layer, head and sample")
        self._maps = maps
        labels = [[label, label or "(root)"] for label in maps]
        super().__init__(_layers=labels, layer=chosen.pop("layer", labels[0][0]))
        for name, value in chosen.items():
            setattr(self, name, value)
        self._show()

    @property
    def map(self) -> AttentionMap:
        """The map of the chosen layer, with all heads and samples."""
        return self._maps[self.layer]

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Mapping[str, Any]) -> str:
        return self._maps[str(proposal["value"])].label

    @traitlets.validate("head", "sample")
    def _check_number(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        if self.layer in self._maps:  # not before the first layer is set
            if name == "head":
                self.map.heads(value)
            else:
                self.map.sample(value)
        return value

    @traitlets.observe("layer", "head", "sample")
    @show_errors
    def _on_choice(self, change: Mapping[str, Any]) -> None:
        self._show()

    def _show(self) -> None:
        samples, heads = self.map.weights.shape[:2]
        if self.head >= heads or self.sample >= samples:  # setting them calls this method again
            with self.hold_sync():
                self.head, self.sample = min(self.head, heads - 1), min(self.sample, samples - 1)
            return
        picture = draw_head(self.map, self.head, self.sample)
        with self.hold_sync():
            self.png, self.alt = picture.png, picture.alt
            self._heads, self._samples = heads, samples
            self._rows = [list(row.values()) for row in picture.rows]
            self._caption = picture.caption
            self._notes = [self.map.check, *self.map.notes]
        self._numbers = picture.rows

    def numbers(self) -> Rows:
        """List the top key of each query."""
        return self._numbers

    def summary(self) -> str:
        """Describe the current map."""
        heads, queries, keys = self.map.weights.shape[1:]
        where = f"{self.layer or '(root)'}, head {self.head} of {heads}, sample {self.sample}"
        return f"AttentionPicker {self._maps.title}: {where}, {queries} queries by {keys} keys"
