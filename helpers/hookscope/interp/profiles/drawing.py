"""Draw the time of each layer as bars, and shares of the pass as bars below each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Protocol

from hookscope.extras import optional_import
from hookscope.pictures import Picture
from hookscope.pictures.colors import BACKWARD, FORWARD, FORWARD_SOFT, INK, PAGE
from hookscope.pictures.picture import from_figure
from hookscope.pictures.words import count_text, shorten

__all__ = ["draw_bars", "draw_flame"]

_LONG = 40  # characters of a name
_THIN = 0.01  # a share that is too thin to see


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


def draw_flame(shares: Mapping[str, float], what: str, title: str) -> Picture:
    """Draw each layer as wide as its share, below the layer around it; layers side by side are in call order."""
    with optional_import("the plot of a profile"):
        from matplotlib.figure import Figure
    parents = {name: _parent(name, shares) for name in shares if name}
    deep = {"": 0}
    for name in sorted(parents, key=len):
        deep[name] = deep[parents[name]] + 1
    figure = Figure(figsize=(8, 0.7 + 0.5 * (1 + max(deep.values()))), layout="constrained")
    axis = figure.subplots()
    starts, ends = {"": 0.0}, {"": 0.0}  # of each bar, and of the bars in it so far
    for name in sorted(shares, key=deep.__getitem__):  # stable: in call order on each level
        around = parents.get(name)
        if around is not None:
            starts[name] = ends[name] = ends[around]
            ends[around] += shares[name]
        if shares[name] < _THIN:
            continue
        inner = name in parents.values()
        face, ink = (FORWARD_SOFT, INK) if inner else (FORWARD, PAGE)
        axis.barh(deep[name], shares[name], left=starts[name], height=0.9, color=face, edgecolor="white", linewidth=2)
        label = f"{name.rpartition('.')[2] or 'whole model'}\n{shares[name]:.0%}"
        if shares[name] > 0.011 * max(map(len, label.split("\n"))):
            place = starts[name] + shares[name] / 2
            axis.text(place, deep[name], label, ha="center", va="center", fontsize=9, color=ink, parse_math=False)
    axis.set(xlim=(0, 1), ylim=(max(deep.values()) + 0.5, -0.5), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    leaves = sorted((name for name in shares if name not in parents.values()), key=lambda name: -shares[name])
    if thin := [name for name in leaves if shares[name] < _THIN]:
        axis.set_xlabel(
            f"too thin to see: {thin[0]} ({shares[thin[0]]:.1%}) and {count_text(len(thin) - 1, 'other layer')}",
            fontsize=9,
        )
    words = "; ".join(f"{name or '(root)'} {shares[name]:.0%}" for name in leaves[:3])
    alt = f"Bars below each other, as wide as a layer's share of {what}. The widest without layers inside: {words}."
    rows = [{"layer": name or "(root)", "share": f"{share:.1%}"} for name, share in shares.items()]
    return from_figure(figure, alt, title, rows, when_seen=True)


def _parent(name: str, names: Mapping[str, float]) -> str:
    """Return the nearest layer around a layer, of those that were called."""
    while name:
        name = name.rpartition(".")[0]
        if name in names:
            break
    return name
