"""Draw the time of each layer as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Protocol

from hookscope.extras import optional_import
from hookscope.pictures import Picture
from hookscope.pictures.colors import BACKWARD, FORWARD
from hookscope.pictures.picture import from_figure
from hookscope.pictures.words import count_text, shorten

__all__ = ["draw_bars"]

_LONG = 40  # characters of a name


class HasQuartiles(Protocol):
    """The part of `Time` that is drawn."""

    @property
    def median(self) -> float: ...
    @property
    def quartiles(self) -> tuple[float, float]: ...


class HasTimes(Protocol):
    """The part of `LayerProfile` that is drawn."""

    @property
    def name(self) -> str: ...
    @property
    def forward_self(self) -> HasQuartiles: ...
    @property
    def backward_self(self) -> HasQuartiles | None: ...


def draw_bars(layers: Sequence[HasTimes], title: str, rows: Sequence[Mapping[str, object]]) -> Picture:
    """Draw a bar for each layer from top to bottom, with a line between the quartiles."""
    with optional_import("the plot of a profile"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(layers)), layout="constrained")
    axis = figure.subplots()
    backward = any(layer.backward_self is not None for layer in layers)
    _bars(axis, [layer.forward_self for layer in layers], -0.2 if backward else 0.0, "forward", FORWARD, "")
    if backward:
        _bars(axis, [layer.backward_self for layer in layers], 0.2, "backward", BACKWARD, "//")
    axis.set_yticks(range(len(layers)), [shorten(layer.name or "(root)", _LONG) for layer in layers], parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds in the layer itself: median, with a line between the quartiles")
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
    # Outside the axes, because a long bar can be anywhere.
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    return from_figure(figure, _describe_bars(layers), title, rows, when_seen=True)


def _bars(axis: Any, times: Sequence[HasQuartiles | None], offset: float, label: str, color: str, hatch: str) -> None:
    shown = [(place + offset, time) for place, time in enumerate(times) if time is not None]
    at = [place for place, _ in shown]
    means = [1e3 * time.median for _, time in shown]
    axis.barh(at, means, height=0.36, label=label, color=color, hatch=hatch, edgecolor="white")
    low, high = ([1e3 * time.quartiles[end] for _, time in shown] for end in (0, 1))
    axis.hlines(at, low, high, color="black", linewidth=1)


def _describe_bars(layers: Sequence[HasTimes]) -> str:
    parts = []
    for layer in layers[:3]:
        if isnan(layer.forward_self.median):
            parts.append(f"{layer.name or '(root)'} not measured")
            continue
        text = f"{layer.name or '(root)'} {1e3 * layer.forward_self.median:.3g} ms forward"
        if layer.backward_self is not None:
            text += f" and {1e3 * layer.backward_self.median:.3g} ms backward"
        parts.append(text)
    count = count_text(len(layers), "layer")
    return f"Bars of {count}, the slowest on top, with the time in the layer itself: {'; '.join(parts)}."
