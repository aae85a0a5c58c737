"""Lay out boxes and the arrows between them. The page draws the layout as SVG, and `to_png` as a PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hookscope.graphs import drawing
from hookscope.pictures.colors import BACKWARD, HOOK, INK, MUTED, PAGE
from hookscope.pictures.pixel_text import replace_missing

__all__ = ["Arrow", "TextBox", "lay_out", "to_png"]

_CHARACTER, _LINE, _PAD = 7.3, 17, 9  # pixels: width and height of a monospace character at 12 px, and padding of a box
_ACROSS, _DOWN, _EDGE = 26, 74, 6  # pixels between boxes, between layers (with the text of an arrow), at the edge
_INKS = {"title": INK, "text": BACKWARD, "quiet": MUTED, "hook": HOOK, "grad": BACKWARD}
_LEGIBLE = 13  # font size in the PNG, in pixels
_ASIDE = (0, 0.5, -0.5, 0.8, -0.8, 1, -1)  # shift of a text, in half widths: it touches its line, or is next to it
_BETWEEN = 18  # pixels between two texts in a row, so that they do not look like one


@dataclass(frozen=True)
class TextBox:
    """A box.

    Attributes:
        lines: each line of text with its style: "title", "text", "quiet", "hook" or "grad".
        round: whether the corners are round, as for a leaf.
        lit: whether the frame is thick.

    """

    lines: tuple[tuple[str, str], ...]
    round: bool = False
    lit: bool = False


@dataclass(frozen=True)
class Arrow:
    """The text of an arrow, and whether a gradient flows along it."""

    text: str = ""
    flows: bool = True


def lay_out(
    blocks: Mapping[int, TextBox], arrows: Mapping[tuple[int, int], Arrow], first: int, wide: int = 0
) -> dict[str, Any]:
    """Place each box below all boxes that have an arrow to it; return positions in pixels, and texts.

    Args:
        blocks: maps an ID to its box.
        arrows: maps the IDs of two boxes to the arrow between them.
        first: the ID of the box at the top. Arrows lead from it to all other boxes.
        wide: the smallest width of a box, in characters.

    """
    order = [first]
    for key in order:
        order += [target for source, target in arrows if source == key and target not in order]
    plain = [drawing.NodeBox(key, "", ()) for key in order]
    places, routes = drawing.place_boxes(plain, dict.fromkeys(arrows, ()))
    longest = max(len(text) for block in blocks.values() for text, _ in block.lines)
    width_of_box = max(longest, wide) * _CHARACTER + 2 * _PAD
    longest_text = max((len(arrow.text) for arrow in arrows.values()), default=0) * _CHARACTER
    apart = max(width_of_box, longest_text) + _ACROSS  # room for two texts in a row
    high = {key: len(block.lines) * _LINE + 2 * _PAD for key, block in blocks.items()}
    stops = [*places.values(), *(stop for way in routes.values() for stop in way)]
    left = min(column for column, _ in stops)
    rows = [
        max((high[key] for key in places if places[key][1] == layer), default=0)
        for layer in range(max(layer for _, layer in stops) + 1)
    ]
    tops = [_EDGE]
    for row in rows:
        tops.append(tops[-1] + row + _DOWN)

    def centre(column: float) -> float:
        return round(_EDGE + width_of_box / 2 + (column - left) * apart, 1)

    boxes = [
        {
            "x": round(centre(places[key][0]) - width_of_box / 2, 1),
            "y": tops[places[key][1]],
            "width": round(width_of_box, 1),
            "height": high[key],
            "round": block.round,
            "lit": block.lit,
            "lines": [list(line) for line in block.lines],
        }
        for key, block in blocks.items()
    ]
    lines = []
    for (source, target), arrow in arrows.items():
        (column, layer), (to, below) = places[source], places[target]
        points = [[centre(column), tops[layer] + high[source]]]
        for stop, at in routes[source, target]:
            points += [[centre(stop), tops[at]], [centre(stop), tops[at] + rows[at]]]
        points.append([centre(to), tops[below]])
        lines.append({"points": points, "text": arrow.text, "flows": arrow.flows})
    width = centre(max(column for column, _ in stops)) + width_of_box / 2 + _EDGE
    _place_texts(lines, boxes, width)
    return {"width": round(width, 1), "height": tops[-1] - _DOWN + _EDGE, "boxes": boxes, "arrows": lines}


def _place_texts(lines: Sequence[dict[str, Any]], boxes: Sequence[Mapping[str, Any]], width: float) -> None:
    """Place the text of each arrow on its first segment, if possible without another line, text or box there."""
    taken = [(box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]) for box in boxes]
    for line in lines:
        (x1, y1), (x2, y2) = line["points"][:2]
        half = len(line["text"]) * _CHARACTER / 2 + 6
        others = [pair for other in lines if other is not line for pair in pairwise(other["points"])]
        best, least = (0.0, 0.0), math.inf
        for along in (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78, 0.14, 0.86):
            for aside in _ASIDE:
                x, y = x1 + (x2 - x1) * along + aside * half, y1 + (y2 - y1) * along
                area = (x - half, y - _LINE / 2, x + half, y + _LINE / 2)
                hits = sum(_overlap(area, other) for other in taken) * 10 + sum(_crosses(area, pair) for pair in others)
                outside = 10 * (area[0] < 0 or area[2] > width)
                if (cost := hits + outside + abs(aside) / 100) < least:
                    best, least = (round(x, 1), round(y, 1)), cost
        line["at"] = list(best)
        if line["text"]:
            x, y = best
            taken.append((x - half - _BETWEEN, y - _LINE / 2, x + half + _BETWEEN, y + _LINE / 2))


_Area = tuple[float, float, float, float]


def _overlap(one: _Area, other: _Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _crosses(area: _Area, ends: Sequence[Sequence[float]]) -> bool:
    """Return whether a straight line passes through an area."""
    (x1, y1), (x2, y2) = ends
    first, last = 0.0, 1.0
    for start, way, low, high in ((x1, x2 - x1, area[0], area[2]), (y1, y2 - y1, area[1], area[3])):
        if way == 0:
            if not low < start < high:
                return False
            continue
        enters, leaves = sorted(((low - start) / way, (high - start) / way))
        first, last = max(first, enters), min(last, leaves)
    return first < last


def to_png(drawing: Mapping[str, Any]) -> bytes:
    """Draw the result of `lay_out` as a PNG, dark on white."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=_LEGIBLE)
    image = Image.new("RGB", (int(drawing["width"]) + 1, int(drawing["height"]) + 1), "white")
    pen = ImageDraw.Draw(image)
    for arrow in drawing["arrows"]:
        points = [tuple(point) for point in arrow["points"]]
        for (x1, y1), (x2, y2) in pairwise(points):
            if arrow["flows"]:
                pen.line((x1, y1, x2, y2), fill=_INKS["grad"], width=2)
            else:
                for step in range(0, 20, 2):  # dashes
                    ends = [x1 + (x2 - x1) * step / 20, y1 + (y2 - y1) * step / 20]
                    ends += [x1 + (x2 - x1) * (step + 1) / 20, y1 + (y2 - y1) * (step + 1) / 20]
                    pen.line(tuple(ends), fill=_INKS["quiet"], width=1)
        pen.polygon(_get_head(points), fill=_INKS["grad" if arrow["flows"] else "quiet"])
    for box in drawing["boxes"]:
        x, y = box["x"], box["y"]
        area, thick = (x, y, x + box["width"], y + box["height"]), 3 if box["lit"] else 1
        pen.rounded_rectangle(area, 14 if box["round"] else 2, fill=PAGE, outline=INK, width=thick)
        for number, (text, look) in enumerate(box["lines"]):
            pen.text((x + _PAD, y + _PAD + number * _LINE), replace_missing(text), fill=_INKS[look], font=font)
    for arrow in drawing["arrows"]:
        if arrow["text"]:
            x, y = arrow["at"]
            left, top, right, bottom = pen.textbbox((x, y), replace_missing(arrow["text"]), font=font, anchor="mm")
            pen.rectangle((left - 2, top - 1, right + 2, bottom + 1), fill=PAGE)
            ink = _INKS["grad" if arrow["flows"] else "quiet"]
            pen.text((x, y), replace_missing(arrow["text"]), fill=ink, font=font, anchor="mm")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _get_head(points: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Return the corners of an arrow's head."""
    (x1, y1), (x2, y2) = points[-2:]
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    return [(x2, y2), (x2 - 9 * dx - 4 * dy, y2 - 9 * dy + 4 * dx), (x2 - 9 * dx + 4 * dy, y2 - 9 * dy - 4 * dx)]
