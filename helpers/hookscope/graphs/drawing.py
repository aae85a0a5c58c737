"""Fold an autograd graph to a readable size, and write or draw it in layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hookscope.extras import optional_import
from hookscope.graphs.node import Node

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "READABLE",
    "Arrows",
    "NodeBox",
    "draw",
    "escape",
    "fits_page",
    "fold",
    "fold_leaves",
    "make_box",
    "mermaid_text",
    "place_boxes",
    "shorten_line",
    "tree",
]

READABLE = 200  # a graph with more boxes is folded
_SMALL, _SIDE_BY_SIDE = 16, 4  # boxes, and boxes in one layer, of a readable Mermaid diagram
_LEVELS = 20  # readable levels of indentation
_WIDE = 6  # columns that an image can have for long arrows
# Operations between a weight and the operation that uses it.
_RESHAPES = ("TBackward", "Transpose", "Permute", "View", "Unsqueeze", "Squeeze", "Expand", "ToCopy")
_ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": "0.35", "shrinkA": 0, "shrinkB": 0}

_Key = int | tuple[int, int, int]
"""The id of a box, or source, target and layer of a long arrow."""

Arrows = dict[tuple[int, int], tuple[int, ...]]
"""(source, target) -> indices in next_functions; empty for folded boxes."""


@dataclass(frozen=True)
class NodeBox:
    """A box in the drawing, for one node or for several that were folded."""

    id: int
    title: str
    details: tuple[str, ...]
    leaf: bool = False
    count: int = 1
    fixed: bool = False  # has a name or a hook, so it must not be folded into a chain
    labels: tuple[str, ...] = ()


def make_box(node: Node) -> NodeBox:
    """Make the box of a node."""
    shapes = " ".join("?" if shape is None else str(shape) for shape in node.shapes)
    first = " ".join(filter(None, [node.label, shapes]))
    labels = (node.label,) if node.label else ()
    fixed = bool(node.hooks) or bool(node.label and not node.leaf) or node.id == 0
    return NodeBox(node.id, node.name, (*filter(None, [first]), *node.hooks), node.leaf, fixed=fixed, labels=labels)


def fold(boxes: dict[int, NodeBox], arrows: Arrows, inputs: dict[int, int]) -> tuple[list[NodeBox], Arrows, str]:
    """Fold until at most `READABLE` boxes are left. The returned string says which nodes were folded.

    Args:
        boxes: ID -> box of the node.
        arrows: the edges.
        inputs: ID -> length of the node's `next_functions`.

    """
    said = []
    if len(boxes) > READABLE:
        boxes, arrows = fold_leaves(boxes, arrows, inputs)
        said.append("leaves are folded into the only node that uses them")
    if len(boxes) > READABLE:
        boxes, arrows = _fold_chains(boxes, arrows)
        said.append("chains are folded into one")
    if len(boxes) > READABLE:
        left = len(boxes) - READABLE
        boxes, arrows = _cut(boxes, arrows)
        said.append(f"{left} boxes far from the tensor are left out")
    folded = f" More than {READABLE} nodes, so {', '.join(said)}; .nodes and .edges have all." if said else ""
    return list(boxes.values()), arrows, folded


def fold_leaves(boxes: dict[int, NodeBox], arrows: Arrows, inputs: dict[int, int]) -> tuple[dict[int, NodeBox], Arrows]:
    """Fold a leaf and the nodes that reshape it into the node that uses it, if there is only one."""
    users: dict[int, list[int]] = {}
    for source, target in arrows:
        users.setdefault(target, []).append(source)
    into: dict[int, int] = {}
    for leaf in [box.id for box in boxes.values() if box.leaf and not box.fixed]:
        path = [leaf]
        while len(users.get(path[-1], [])) == 1:
            user = users[path[-1]][0]
            path.append(user)
            if inputs[user] > 1 or boxes[user].fixed or not boxes[user].title.startswith(_RESHAPES):
                into.update(dict.fromkeys(path[:-1], user))
                break
    kept = {index: box for index, box in boxes.items() if index not in into}
    for user in sorted(set(into.values())):
        inside = [boxes[index] for index, other in sorted(into.items()) if other == user]
        leaves = [box for box in inside if box.leaf]
        labels = tuple(label for box in leaves for label in box.labels)
        words = (
            ", ".join(labels)
            if len(labels) == len(leaves)
            else f"{len(leaves)} {'leaf' if len(leaves) == 1 else 'leaves'}"
        )
        details = (*kept[user].details, f"with {words}")
        kept[user] = replace(kept[user], details=details, count=1 + len(inside), labels=labels)
    return kept, {(a, b): indices for (a, b), indices in arrows.items() if a in kept and b in kept}


def _fold_chains(boxes: dict[int, NodeBox], arrows: Arrows) -> tuple[dict[int, NodeBox], Arrows]:
    """Fold each chain of three or more boxes, with one arrow in and one out, into one box."""
    after: dict[int, list[int]] = {index: [] for index in boxes}
    before: dict[int, list[int]] = {index: [] for index in boxes}
    for source, target in arrows:
        after[source].append(target)
        before[target].append(source)
    inner = {
        i for i in boxes if len(after[i]) == 1 and len(before[i]) == 1 and not boxes[i].fixed and not boxes[i].leaf
    }
    into: dict[int, int] = {}
    kept = dict(boxes)
    for first in boxes:
        if first not in inner or before[first][0] in inner:
            continue
        run = [first]
        while after[run[-1]][0] in inner:
            run.append(after[run[-1]][0])
        if len(run) < 3:
            continue
        into |= dict.fromkeys(run, first)
        for index in run[1:]:
            del kept[index]
        labels = tuple(label for index in run for label in boxes[index].labels)
        details = [f"{boxes[run[0]].title} to {boxes[run[-1]].title}"]
        if labels:
            details.append(f"with {len(labels)} leaves{_prefix(labels)}")
        count = sum(boxes[index].count for index in run)
        kept[first] = NodeBox(first, f"chain of {count} nodes", tuple(details), count=count, labels=labels)
    moved: Arrows = {}
    for (source, target), indices in arrows.items():
        ends = into.get(source, source), into.get(target, target)
        if ends[0] != ends[1]:
            moved[ends] = indices if source not in into else ()
    return kept, moved


def _prefix(labels: Sequence[str]) -> str:
    """Name the module that contains all these parameters, if there is one."""
    parts = [label.split(".")[:-1] for label in labels]
    common: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return f" of {'.'.join(common)}" if common else ""


def _cut(boxes: dict[int, NodeBox], arrows: Arrows) -> tuple[dict[int, NodeBox], Arrows]:
    """Keep the boxes that are closest to the tensor, and add one box for the others."""
    after: dict[int, list[int]] = {index: [] for index in boxes}
    for source, target in arrows:
        after[source].append(target)
    order = [0]
    met = {0}
    for index in order:
        fresh = [target for target in after[index] if target not in met]
        met.update(fresh)
        order.extend(fresh)
    near = set(order[:READABLE])
    rest = max(boxes) + 1
    away = [box for index, box in boxes.items() if index not in near]
    count, marked = sum(box.count for box in away), sum(box.fixed for box in away)
    details = ("not shown", f"{marked} of them with a name or a hook")[: 1 + bool(marked)]
    kept = {index: box for index, box in boxes.items() if index in near}
    kept[rest] = NodeBox(rest, f"{count} more nodes", details, count=count)
    cut: Arrows = {}
    for (source, target), indices in arrows.items():
        if source in near:
            cut[source, target if target in near else rest] = indices if target in near else ()
    return kept, cut


def _next(boxes: Sequence[NodeBox], arrows: Arrows) -> dict[int, list[int]]:
    after: dict[int, list[int]] = {box.id: [] for box in boxes}
    for source, target in arrows:
        after[source].append(target)
    return after


def tree(boxes: Sequence[NodeBox], arrows: Arrows) -> list[str]:
    """Write one line per box, indented below the first box that leads to it.

    If that needs more than 20 levels, the only successor of a box is not indented, but marked with ↓.
    """
    lines, deepest = _indented(boxes, arrows, compact=False)
    if deepest > _LEVELS:
        lines = ["(↓ marks the only successor of the line above)", *_indented(boxes, arrows, compact=True)[0]]
    return lines


def _indented(boxes: Sequence[NodeBox], arrows: Arrows, *, compact: bool) -> tuple[list[str], int]:
    after, by_id = _next(boxes, arrows), {box.id: box for box in boxes}
    lines = []
    deepest = 0
    met: set[int] = set()
    stack = [(boxes[0].id, 0, "")]
    while stack:
        index, depth, mark = stack.pop()
        deepest = max(deepest, depth)
        box = by_id[index]
        again = index in met
        met.add(index)
        details = ["(see above)" if after[index] else "(again)"] if again else [escape(line) for line in box.details]
        lines.append("  ".join([f"{'  ' * depth}{mark}{index} {escape(box.title)}", *details]))
        if not again:
            alone = compact and len(after[index]) == 1
            stack.extend((target, depth + (not alone), "↓ " * alone) for target in reversed(after[index]))
    return lines, deepest


def escape(text: str) -> str:
    """Escape characters that cannot be printed."""
    return text if text.isprintable() else repr(text)[1:-1]


def mermaid_text(text: str) -> str:
    """Escape characters that have a meaning in Mermaid or in the HTML of its labels."""
    return "".join(c if c.isalnum() or c in " ()[],._-:=/?" else f"#{ord(c)};" for c in escape(text))


def fits_page(boxes: Sequence[NodeBox], arrows: Arrows) -> bool:
    """Return whether the Mermaid diagram is readable on a page of normal width."""
    if len(boxes) > _SMALL:
        return False
    layers = Counter(layer for _, layer in place_boxes(boxes, arrows)[0].values())
    return max(layers.values()) <= _SIDE_BY_SIDE


def place_boxes(
    boxes: Sequence[NodeBox], arrows: Arrows
) -> tuple[dict[int, tuple[float, int]], dict[tuple[int, int], list[tuple[float, int]]]]:
    """Place each box in a layer below all boxes with an arrow to it, and route long arrows between the boxes.

    Returns the position (column, layer) of each box, and the positions that each arrow passes.
    """
    after = _next(boxes, arrows)
    waiting = Counter(target for _, target in arrows)
    depth = {box.id: 0 for box in boxes}
    ready = [boxes[0].id]
    for index in ready:
        for target in after[index]:
            depth[target] = max(depth[target], depth[index] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    layers: list[list[_Key]] = [[] for _ in range(max(depth.values()) + 1)]
    for box in boxes:
        layers[depth[box.id]].append(box.id)
    # A long arrow takes a free position in each layer that it passes, unless the image gets much wider.
    widest = max(_WIDE, *map(len, layers))
    before: dict[_Key, list[_Key]] = {box.id: [] for box in boxes}
    passed: dict[tuple[int, int], list[_Key]] = {}
    for source, target in sorted(arrows, key=lambda ends: depth[ends[1]] - depth[ends[0]]):
        between = range(depth[source] + 1, depth[target])
        way: list[_Key] = []
        if all(len(layers[layer]) < widest for layer in between):
            way = [(source, target, layer) for layer in between]
            for key, layer in zip(way, between, strict=True):
                layers[layer].append(key)
        passed[source, target] = way
        for one, other in pairwise([source, *way, target]):
            before.setdefault(other, []).append(one)
    column: dict[_Key, float] = {boxes[0].id: 0.0}
    room = (max(map(len, layers)) - 1) / 2
    for row in layers[1:]:
        wish = {key: sum(column[source] for source in before[key]) / len(before[key]) for key in row}
        order = sorted(range(len(row)), key=lambda position: (wish[row[position]], position))
        spots: list[float] = []
        for position in order:
            spots.append(max(wish[row[position]], spots[-1] + 1 if spots else -math.inf))
        if spots[-1] - spots[0] > 2 * room:  # wider than any layer, so close the gaps
            spots = [spots[0] + offset for offset in range(len(spots))]
        shift = (sum(wish.values()) - sum(spots)) / len(spots)
        shift = min(max(shift, -room - spots[0]), room - spots[-1])
        column |= {row[position]: spot + shift for position, spot in zip(order, spots, strict=True)}
    places = {box.id: (column[box.id], depth[box.id]) for box in boxes}
    return places, {
        ends: [(column[key], key[2]) for key in way if isinstance(key, tuple)] for ends, way in passed.items()
    }


def draw(boxes: Sequence[NodeBox], arrows: Arrows) -> Figure:
    """Draw the boxes in layers, from the tensor at the top down to the leaves.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    """
    with optional_import("drawing a graph"):
        from matplotlib.figure import Figure
    places, routes = place_boxes(boxes, arrows)
    text = {box.id: [shorten_line(escape(line)) for line in (f"{box.id} {box.title}", *box.details)] for box in boxes}
    # In inches: a character of 8 point monospace is 0.067 wide, and a line is 0.14 high.
    wide = max(len(line) for lines in text.values() for line in lines) * 0.067 + 0.45
    high = max(map(len, text.values())) * 0.14 + 0.5
    columns = [place for place, _ in [*places.values(), *(stop for way in routes.values() for stop in way)]]
    width = (max(columns) - min(columns) + 1) * wide + 0.2
    height = (max(layer for _, layer in places.values()) + 1) * high + 0.2
    figure = Figure(figsize=(width, height), dpi=min(100.0, 12000 / max(width, height)))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()

    def at(place: tuple[float, int]) -> tuple[float, float]:
        return 0.1 + (place[0] - min(columns) + 0.5) * wide, height - 0.1 - (place[1] + 0.5) * high

    half = {index: len(lines) * 0.07 + 0.08 for index, lines in text.items()}
    for (source, target), way in routes.items():
        (x1, y1), (x2, y2) = at(places[source]), at(places[target])
        stops = [(x1, y1 - half[source]), *map(at, way), (x2, y2 + half[target])]
        axes.annotate("", stops[-1], stops[-2], arrowprops=_ARROW)
        axes.plot(*zip(*stops[:-1], strict=True), color=_ARROW["color"], linewidth=1)
    for box in boxes:
        x, y = at(places[box.id])
        look: dict[str, Any] = {
            "boxstyle": "round,pad=0.4" if box.leaf else "square,pad=0.4",
            "facecolor": "0.9" if box.leaf else "white",
            "edgecolor": "black",
            "linewidth": 1.8 if box.leaf else 0.8,
            "linestyle": "--" if box.count > 1 else "-",
        }
        lines = "\n".join(text[box.id])
        font: dict[str, Any] = {"fontsize": 8, "family": "monospace", "parse_math": False}
        axes.text(x, y, lines, ha="center", va="center", bbox=look, **font)
    return figure


def shorten_line(text: str) -> str:
    """Leave out the middle of a line that is too long for a box."""
    return text if len(text) <= 34 else f"{text[:16]}…{text[-17:]}"
