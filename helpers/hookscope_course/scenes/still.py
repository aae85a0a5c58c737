"""The still picture of the map: its telling moment, at the end of the pass, where no script runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hookscope.pictures.picture import from_figure

__all__ = ["draw_map"]

_INK, _SOFT, _LINE, _FRAME, _DOOR = "#1d2733", "#5b6774", "#7a8694", "#f4f6f8", "#e6eaef"
_WAYS = {"forward": "#0b62c4", "backward": "#b03f08", "turn": "#b03f08", "branch": "#b03f08"}
_PEG = "#6b3fa0"
NAMES = {
    "x": "x",
    "compute": "forward",
    "y": "y",
    "y_grad": "grad of y",
    "step": "backward",
    "weight_grad": "weight.grad",
    "x_grad": "x.grad",
}
"""What is written in each box."""


def draw_map(
    layout: Mapping[str, Any],
    hooks: Mapping[str, tuple[str, int]],
    values: Mapping[str, str],
    changed: Collection[str],
) -> bytes:
    """Draw the map; return the PNG, or nothing without matplotlib.

    Args:
        layout: what `place_map` gave.
        hooks: for each place with a hook, what it does and its number in the order; 0 for none.
        values: what stands in the boxes; a box without a value has a question mark.
        changed: the boxes that a hook changed; they have a thick frame.

    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Circle, FancyBboxPatch
    except ModuleNotFoundError:
        return b""
    width, height = layout["size"]
    figure = Figure(figsize=(width / 100, height / 100), dpi=150)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    points = 0.72 * layout["font"]

    def box(x: float, y: float, w: float, h: float, **look: Any) -> None:
        style = "round,pad=0,rounding_size=10"
        axes.add_patch(FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=style, mutation_aspect=1, **look))

    x, y, w, h = layout["frame"]
    box(x + w / 2, y + h / 2, w, h, facecolor=_FRAME, edgecolor=_LINE, linewidth=1.2)
    for x, y, w, h in layout["doors"]:
        box(x + w / 2, y + h / 2, w, h, facecolor=_DOOR, edgecolor=_LINE, linewidth=1)
    for rail in layout["rails"]:
        *before, last = rail["points"]
        color, dotted = _WAYS[rail["way"]], ":" if rail["way"] == "turn" else "-"
        axes.plot(*zip(*rail["points"], strict=True), color=color, linewidth=2, linestyle=dotted, zorder=1)
        arrow = {"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 16, "linewidth": 0}
        axes.annotate("", last, before[-1], arrowprops=arrow, zorder=1)
    shown = {"y_grad": "start"}
    for name, (x, y, w, h) in layout["boxes"].items():
        color = _WAYS["forward" if name in ("x", "compute", "y") else "backward"]
        key = shown.get(name, name)
        value = None if name in ("compute", "step") else values.get(key, "?")
        thick = 3.2 if key in changed else 1.3
        box(x, y, w, h, facecolor="white", edgecolor=color, linewidth=thick, zorder=2)
        small: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 3}
        if value is None:
            axes.text(x, y, NAMES[name], fontsize=points * 1.1, color=_INK, **small)
        else:
            axes.text(x, y - 9, NAMES[name], fontsize=points * 0.9, color=_SOFT, **small)
            axes.text(x, y + 9, value, fontsize=points * 1.15, color=_INK, **small)
    x, y = layout["title"]
    axes.text(x, y, "layer: y = weight · x, weight = 2", ha="center", va="center", fontsize=points * 1.1)
    sides = {"middle": "center", "start": "left", "end": "right"}
    for kind, slot in layout["slots"].items():
        x, y = slot["at"]
        effect, number = hooks.get(kind, ("", 0))
        edge = {"edgecolor": _PEG, "facecolor": _PEG} if effect else {"edgecolor": _LINE, "facecolor": "white"}
        axes.add_patch(
            Circle((x, y), layout["radius"], linewidth=1.4, linestyle="-" if effect else "--", zorder=4, **edge)
        )
        if effect == "multiply":
            axes.text(
                x, y, "×10", color="white", fontsize=points * 0.85, weight="bold", ha="center", va="center", zorder=5
            )
        elif effect:
            axes.add_patch(Circle((x, y), 4, facecolor="white", edgecolor="none", zorder=5))
        if number:
            at = (x + layout["radius"] - 1, y - layout["radius"] + 1)
            axes.add_patch(Circle(at, 8, facecolor="white", edgecolor=_PEG, linewidth=1.2, zorder=6))
            look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 7}
            axes.text(at[0], at[1], str(number), color=_INK, fontsize=points * 0.8, weight="bold", **look)
        for line, words in enumerate(slot["lines"]):
            at = (slot["text"][0], slot["text"][1] + 1.15 * layout["font"] * line)
            axes.text(at[0], at[1], words, ha=sides[slot["anchor"]], va="baseline", fontsize=points, color=_SOFT)
    return from_figure(figure, "the map", dpi=150).png
