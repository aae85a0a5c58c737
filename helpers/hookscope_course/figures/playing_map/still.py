"""The still picture of the map: its telling moment, at the end of the pass, where no script runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hookscope.pictures.colors import BACKWARD, DOOR, FORWARD, FRAME, HOOK, LINE, MUTED
from hookscope_course.figures.kit.still_sheet import SIDES, Sheet

__all__ = ["draw_map"]

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
    """Draw the map; return the PNG.

    Args:
        layout: what `place_map` gave.
        hooks: for each place with a hook, what it does and its number in the order; 0 for none.
        values: what stands in the boxes; a box without a value has a question mark.
        changed: the boxes that a hook changed; they have a thick frame.

    """
    sheet = Sheet.open(layout["size"], dpi=150)
    points = 0.72 * layout["font"]

    sheet.panel(*layout["frame"], rounding=10, facecolor=FRAME, edgecolor=LINE, linewidth=1.2)
    for door in layout["doors"]:
        sheet.panel(*door, rounding=10, facecolor=DOOR, edgecolor=LINE, linewidth=1)
    sheet.rails(layout["rails"], dotted="turn")
    shown = {"y_grad": "start"}
    for name, (x, y, w, h) in layout["boxes"].items():
        color = FORWARD if name in ("x", "compute", "y") else BACKWARD
        key = shown.get(name, name)
        value = None if name in ("compute", "step") else values.get(key, "?")
        thick = 3.2 if key in changed else 1.3
        sheet.box(x, y, w, h, rounding=10, facecolor="white", edgecolor=color, linewidth=thick, zorder=2)
        if value is None:
            sheet.write([x, y], NAMES[name], points * 1.1)
        else:
            sheet.write([x, y - 9], NAMES[name], points * 0.9, MUTED)
            sheet.write([x, y + 9], value, points * 1.15)
    sheet.write(layout["title"], "layer: y = weight · x, weight = 2", points * 1.1)
    for kind, slot in layout["slots"].items():
        x, y = slot["at"]
        effect, number = hooks.get(kind, ("", 0))
        edge = {"edgecolor": HOOK, "facecolor": HOOK} if effect else {"edgecolor": LINE, "facecolor": "white"}
        style = "-" if effect else "--"
        sheet.circle([x, y], layout["radius"], linewidth=1.4, linestyle=style, zorder=4, **edge)
        if effect == "multiply":
            sheet.write([x, y], "×10", points * 0.85, "white", weight="bold")
        elif effect:
            sheet.circle([x, y], 4, facecolor="white", edgecolor="none", zorder=5)
        if number:
            at = (x + layout["radius"] - 1, y - layout["radius"] + 1)
            sheet.circle(at, 8, facecolor="white", edgecolor=HOOK, linewidth=1.2, zorder=6)
            sheet.write(at, str(number), points * 0.8, weight="bold", va="center_baseline", zorder=7)
        for line, words in enumerate(slot["lines"]):
            at = (slot["text"][0], slot["text"][1] + 1.15 * layout["font"] * line)
            sheet.write(at, words, points, MUTED, ha=SIDES[slot["anchor"]], va="baseline")
    return sheet.png("the map")
