"""Where everything stands in the residual river: a row per block where there is room, else from the top down."""

from __future__ import annotations

from typing import Any

__all__ = ["place_river"]

Points = list[list[float]]


def place_river(blocks: int, narrow: bool) -> dict[str, Any]:
    """Return the layout as plain numbers: boxes by center and size, everything else by points.

    `water` is the river in pieces, one after each stage. `rails` are the arrows of the parts that add. `taps` and
    `lenses` are what can be clicked. `stops` and `tracks` are where the drop rests and travels, by stage.
    """
    return _place_down(blocks) if narrow else _place_rows(blocks)


def _place_rows(blocks: int) -> dict[str, Any]:
    high, low, top, pitch = 58, 51, 88, 189
    boxes: dict[str, list[float]] = {}
    taps: dict[str, list[float]] = {}
    layout: dict[str, Any] = {
        "size": [840, top + pitch * (blocks - 1) + 82], "font": 13, "radius": 12, "boxes": boxes, "taps": taps,
        "frames": [], "rails": [], "pluses": [], "pipes": [], "lenses": [], "water": [], "stops": [], "tracks": [],
    }  # fmt: skip
    river = float(top)
    for name, up in (("tokens", -38), ("positions", 38)):
        boxes[name] = [56, river + up, 92, 38]
        taps[name] = [118, river + up]
        layout["rails"].append([[102, river + up], [118, river + up], [140, river + up / 38 * 12]])
    layout["pluses"].append([146, river])
    start: Points = [[146, river]]
    _pipe(layout, 174, river, low, 84)
    for block in range(blocks):
        river = top + pitch * block
        layout["frames"].append([230, river - 84, 522, 160, f"blocks.{block}", [242, river + 64]])
        for part, into, center, plus, stop in (("attn", 252, 330, 408, 444), ("mlp", 500, 578, 656, 700)):
            name, y = f"blocks.{block}.{part}", river - high
            boxes[name] = [center, y, 96, 40]
            taps[name] = [plus, y]
            layout["rails"] += [
                [[into, river], [into, y], [center - 50, y]],
                [[center + 48, y], [plus, y], [plus, river - 13]],
            ]
            layout["pluses"].append([plus, river])
            layout["water"].append([*start, [plus, river]])
            layout["tracks"].append([layout["stops"][-1], *start[1:], [stop, river]])
            start = [[plus, river]]
            _pipe(layout, stop, river, low, 96)
        taps[f"blocks.{block}.norm2"] = [474, river]
        taps[f"blocks.{block}"] = [752, river]
        if block < blocks - 1:
            turn, after = river + 90, river + pitch
            start += [[806, river], [806, turn], [196, turn], [196, after]]
    layout["says"] = [801, river, 66, 44]
    layout["water"].append([*start, [766, river]])
    return layout


def _place_down(blocks: int) -> dict[str, Any]:
    x, row = 186.0, 92
    boxes: dict[str, list[float]] = {}
    taps: dict[str, list[float]] = {}
    tall = 96 + row * 2 * blocks
    layout: dict[str, Any] = {
        "size": [380, tall + 84], "font": 12, "radius": 12, "boxes": boxes, "taps": taps,
        "frames": [], "rails": [], "pluses": [], "pipes": [], "lenses": [], "water": [], "stops": [], "tracks": [],
    }  # fmt: skip
    for name, across in (("tokens", 64), ("positions", 308)):
        boxes[name] = [across, 26, 92, 38]
        taps[name] = [across + (64 if across < x else -64), 26]
        layout["rails"].append([[across + (46 if across < x else -46), 26], [x + (-13 if across < x else 13), 26]])
    layout["pluses"].append([x, 26])
    start: Points = [[x, 26]]
    layout["stops"].append([x, 52])
    layout["pipes"].append([[x, 66], [266, 66]])
    layout["lenses"].append([318, 66, 100, 34])
    y = 96.0
    for block in range(blocks):
        layout["frames"].append([14, y, 352, 2 * row - 14, f"blocks.{block}", [290, y + 17]])
        for part in ("attn", "mlp"):
            name, plus = f"blocks.{block}.{part}", y + (48 if part == "attn" else 44)
            boxes[name] = [72, plus, 84, 38]
            taps[name] = [140, plus]
            layout["rails"] += [[[x, plus - 32], [72, plus - 32], [72, plus - 21]], [[114, plus], [x - 13, plus]]]
            layout["pluses"].append([x, plus])
            layout["water"].append([*start, [x, plus]])
            stop = [x, plus + 18]
            layout["tracks"].append([layout["stops"][-1], stop])
            layout["stops"].append(stop)
            layout["pipes"].append([[x, plus + 14], [266, plus + 14]])
            layout["lenses"].append([314, plus + 14, 92, 36])
            start = [[x, plus]]
            y += row
        taps[f"blocks.{block}.norm2"] = [x, y - row + 2]
        taps[f"blocks.{block}"] = [x, y - 14]
    layout["says"] = [x, tall + 50, 96, 44]
    layout["water"].append([*start, [x, tall + 26]])
    return layout


def _pipe(layout: dict[str, Any], x: float, river: float, low: float, width: float) -> None:
    layout["stops"].append([x, river])
    layout["pipes"].append([[x, river], [x, river + low - 22]])
    layout["lenses"].append([x, river + low, width, 42])
