"""Where everything of the map stands, once for the page and for the still picture, wide and narrow."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

__all__ = ["place_map"]

Layout = dict[str, Any]
_WEIGHT = {"tensor_weight", "post_accumulate_grad"}


def place_map(kinds: Set[str], *, backward: bool, tray: bool, narrow: bool) -> Layout:
    """Return the size of the map and the place of each of its parts, as plain numbers and texts.

    Args:
        kinds: the places for hooks that are shown.
        backward: whether the way back is shown.
        tray: whether there is a tray of new hooks.
        narrow: for a page of 390 pixels.

    Returns:
        size, frame (the layer), title, doors, boxes (center and size), slots (center, words, where they stand), rails
        (points, by their way), track and branch (the stations that a value passes, in their order, with the corners
        between them as None), tray, radius and font.

    """
    layout = _narrow(backward) if narrow else _wide(backward, 126 if tray else 100)
    if backward and not kinds & _WEIGHT:
        layout = _shorten(layout, narrow)
    layout["slots"] = {kind: slot for kind, slot in layout["slots"].items() if kind in kinds}
    if not backward:
        for name in ("y_grad", "step", "weight_grad", "x_grad"):
            del layout["boxes"][name]
        layout["rails"] = [rail for rail in layout["rails"] if rail["way"] == "forward"]
        layout["branch"] = []
        there = layout["track"][: [name for name, *_ in layout["track"]].index("start")]
        layout["track"] = [*there, ["end", *there[-1][1:]]]
    if not tray:
        width, height = layout["size"]
        layout["tray"] = None
        layout["size"] = [width, layout["frame"][1] + layout["frame"][3] + 6] if narrow else [width, height]
    return layout


def _shorten(layout: Layout, narrow: bool) -> Layout:
    """Draw `weight.grad` nearer to the backward step, since no hook stands between them."""
    up = 46 if narrow else 40
    box = layout["boxes"]["weight_grad"]
    box[1] -= up
    x = layout["boxes"]["step"][0]
    box[0] = x
    for rail in layout["rails"]:
        if rail["way"] == "branch":
            rail["points"][-1][1] -= up
    layout["branch"] = [[name, x, box[1]] if name == "accumulate" else [name, x, y] for name, x, y in layout["branch"]]
    cut = up + (26 if narrow else 0)
    layout["frame"][3] -= cut
    layout["size"][1] -= cut
    if layout["tray"]:
        layout["tray"][1] -= cut
    return layout


def _wide(backward: bool, apart: int) -> Layout:
    f, b = 100, 100 + apart
    x, tx, enter, mid, leave, ry, ty, y = 52, 142, 242, 405, 569, 660, 706, 778
    bottom = b + 142 if backward else f + 40
    high = b + 60 if backward else f + 30
    return {
        "size": [830, bottom + 6],
        "radius": 14,
        "font": 13,
        "frame": [enter, 30, leave - enter, bottom - 30],
        "title": [mid, 20],
        "doors": [[enter - 49, 39, 98, high - 39], [leave - 49, 39, 98, high - 39]],
        "boxes": {
            "x": [x, f, 84, 44],
            "compute": [mid, f, 104, 44],
            "y": [y, f, 84, 44],
            "y_grad": [y, b, 84, 44],
            "step": [mid, b, 104, 44],
            "weight_grad": [mid - 65, b + 112, 140, 44],
            "x_grad": [x, b, 84, 44],
        },
        "slots": {
            "forward_pre": _slot(enter, f, ["forward", "pre-hook"], 0, -43),
            "forward": _slot(leave, f, ["forward", "hook"], 0, -43),
            "tensor_y": _slot(ty, b, ["tensor hook", "on y"], 0, 35),
            "retain_grad": _slot(ry, b, ["retain_grad", "on y"], 0, -43),
            "full_backward_pre": _slot(leave, b, ["full backward", "pre-hook"], 0, 33),
            "tensor_weight": _slot(mid, b + 58, ["tensor hook", "on weight"], 22, 3, "start"),
            "post_accumulate_grad": _slot(mid + 23, b + 112, ["post-accumulate-", "grad hook"], 20, 3, "start"),
            "full_backward": _slot(enter, b, ["full backward", "hook"], 0, 33),
            "tensor_x": _slot(tx, b, ["tensor hook", "on x"], 0, 33),
        },
        "rails": [
            {"way": "forward", "points": [[x + 42, f], [y - 44, f]]},
            {"way": "turn", "points": [[y, f + 22], [y, b - 24]]},
            {"way": "backward", "points": [[y - 42, b], [x + 44, b]]},
            {"way": "branch", "points": [[mid, b + 22], [mid, b + 88]]},
        ],
        "track": [
            ["call", x, f],
            ["forward_pre", enter, f],
            ["compute", mid, f],
            ["forward", leave, f],
            ["return", y, f],
            ["start", y, b],
            ["tensor_y", ty, b],
            ["retain_grad", ry, b],
            ["full_backward_pre", leave, b],
            ["step", mid, b],
            ["full_backward", enter, b],
            ["tensor_x", tx, b],
            ["end", x, b],
        ],
        "branch": [
            ["step", mid, b],
            ["tensor_weight", mid, b + 58],
            ["accumulate", mid, b + 98],
            ["post_accumulate_grad", mid + 23, b + 112],
        ],
        "tray": [628, b + 84, 198, 52],
    }


def _narrow(backward: bool) -> Layout:
    f, g, b = 98, 172, 262
    x, tx, enter, mid, leave, ry, y = 32, 82, 130, 196, 262, 308, 346
    bottom = b + 156 if backward else f + 40
    high = b + 26 if backward else f + 28
    return {
        "size": [380, bottom + 62],
        "radius": 13,
        "font": 11,
        "frame": [enter - 20, 34, leave - enter + 40, bottom - 34],
        "title": [mid, 22],
        "doors": [[enter - 29, 42, 58, high - 42], [leave - 29, 42, 58, high - 42]],
        "boxes": {
            "x": [x, f, 56, 42],
            "compute": [mid, f, 66, 42],
            "y": [y, f, 60, 42],
            "y_grad": [y, g, 60, 42],
            "step": [mid, b, 66, 42],
            "weight_grad": [mid - 20, b + 106, 100, 42],
            "x_grad": [x, b, 56, 42],
        },
        "slots": {
            "forward_pre": _slot(enter, f, ["forward", "pre-hook"], 0, -38),
            "forward": _slot(leave, f, ["forward", "hook"], 0, -38),
            "tensor_y": _slot(y, 221, ["tensor", "hook", "on y"], -18, -8, "end"),
            "retain_grad": _slot(ry, b, ["retain_grad", "on y"], 22, 32),
            "full_backward_pre": _slot(leave, b, ["full", "backward", "pre-hook"], 0, -52),
            "tensor_weight": _slot(mid, b + 56, ["tensor hook", "on weight"], 20, 4, "start"),
            "post_accumulate_grad": _slot(mid + 54, b + 106, ["post-accumulate-grad hook"], -54, 40),
            "full_backward": _slot(enter, b, ["full", "backward", "hook"], 0, -52),
            "tensor_x": _slot(tx, b, ["tensor hook", "on x"], -14, 36),
        },
        "rails": [
            {"way": "forward", "points": [[x + 28, f], [y - 32, f]]},
            {"way": "turn", "points": [[y, f + 21], [y, g - 23]]},
            {"way": "backward", "points": [[y, g + 21], [y, b], [x + 30, b]]},
            {"way": "branch", "points": [[mid, b + 21], [mid, b + 83]]},
        ],
        "track": [
            ["call", x, f],
            ["forward_pre", enter, f],
            ["compute", mid, f],
            ["forward", leave, f],
            ["return", y, f],
            ["start", y, g],
            ["tensor_y", y, 221],
            [None, y, b],
            ["retain_grad", ry, b],
            ["full_backward_pre", leave, b],
            ["step", mid, b],
            ["full_backward", enter, b],
            ["tensor_x", tx, b],
            ["end", x, b],
        ],
        "branch": [
            ["step", mid, b],
            ["tensor_weight", mid, b + 56],
            ["accumulate", mid, b + 106],
            ["post_accumulate_grad", mid + 54, b + 106],
        ],
        "tray": [4, bottom + 10, 372, 46],
    }


def _slot(x: float, y: float, lines: list[str], dx: float, dy: float, anchor: str = "middle") -> Layout:
    return {"at": [x, y], "lines": lines, "text": [x + dx, y + dy], "anchor": anchor}
