"""Place an autograd graph and two backward hooks: the full one at the module's edge, the legacy one on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hookscope.graphs import drawing
from hookscope.graphs.graph import Graph
from hookscope.pictures.colors import BACKWARD, FRAME, HOOK, INK, LINE, MUTED
from hookscope.pictures.picture import from_figure
from hookscope_course.figures.kit.still_sheet import open_axes

__all__ = ["draw_still", "place_graph"]

Layout = dict[str, Any]
_FOLDED, _SHOWN = 8, 6  # with more nodes than the first, leaves are folded, and at most as many as the second are drawn
_WIDEST = 1350  # pixels; a longer graph is always drawn downward
_LETTER, _FONT, _LINE, _RADIUS = 7.7, 13, 17, 13  # pixels
_GAP = {"wide": (72, 22), "narrow": (12, 54)}  # pixels between boxes, across and down
_MARGIN = 20  # pixels from the frame to a box
_LONGEST = 22  # letters in a line of a box


def place_graph(graph: Graph | None, at: Mapping[str, int], arguments: Sequence[str], sits: bool) -> dict[str, Layout]:
    """Return two layouts of the graph, "wide" and "narrow": positions in pixels, and texts.

    Gradients run from the output to the arguments: to the left in the wide layout, down in the narrow one.

    Args:
        graph: the graph behind the output, or None if the output requires no gradient.
        at: maps an argument to its node.
        arguments: all arguments. One without a node gets a box without an arrow.
        sits: whether the legacy hook has a node; this is node 0.

    Returns:
        size, box (width and height), frame (the module), boxes (center, kind, lines), arrows (points and the index in
        grad_input), legacy (the place of its hook, or None), full, bar (the line from which full gets gradients),
        tags (of the gradients that leave the module), radius and font.

    """
    blocks, arrows = _choose_boxes(graph, at, arguments)
    outside = {("argument", name) for name in arguments}
    order = [("output", ""), *[key for key in blocks if key != ("output", "") and key not in outside]]
    order += [key for key in blocks if key in outside]
    ids = {key: number for number, key in enumerate(order)}
    boxes = [drawing.NodeBox(number, "", ()) for number in ids.values()]
    linked = dict.fromkeys(((ids[source], ids[target]) for source, target in arrows), ())
    inner = [key for key in order[1:] if key not in outside]
    forced: dict[tuple[int, int], tuple[int, ...]] = {}
    if inner:
        plain: drawing.Arrows = {
            ends: () for ends in linked if order[ends[1]] not in outside and order[ends[0]] not in outside
        }
        depths, _ = drawing.place_boxes([box for box in boxes if order[box.id] not in outside], plain)
        deepest = max(depths, key=lambda number: depths[number][1])
        forced = {(deepest, ids[key]): () for key in order if key in outside}
    else:
        forced = {(0, ids[key]): () for key in order if key in outside}
    places, routes = drawing.place_boxes(boxes, linked | forced)
    entries = {}
    for key in outside:
        same = [
            index for index, name in enumerate(arguments) if name == key[1] or at.get(name, -1) == at.get(key[1], -2)
        ]
        entries[key] = f"[{', '.join(map(str, same))}]"
    extra = 0 if inner else 1  # an empty frame takes a layer
    spots = {key: (places[ids[key]][0], places[ids[key]][1] + (extra if key in outside else 0)) for key in order}
    ways = {(s, t): routes.get((ids[s], ids[t]), []) for s, t in arrows}
    wide, narrow = (_lay_out(blocks, arrows, spots, ways, entries, sits, wide=wide) for wide in (True, False))
    return {"wide": wide if wide["size"][0] <= _WIDEST else narrow, "narrow": narrow}


_Key = tuple[str, Any]


def _choose_boxes(
    graph: Graph | None, at: Mapping[str, int], arguments: Sequence[str]
) -> tuple[dict[_Key, tuple[str, list[str]]], dict[tuple[_Key, _Key], str]]:
    """Return the boxes (kind and lines) and the arrows (with the index in grad_input of node 0)."""
    output: _Key = ("output", "")
    blocks: dict[_Key, tuple[str, list[str]]] = {output: ("output", ["output"])}
    arrows: dict[tuple[_Key, _Key], str] = {}
    names: dict[int, str] = {}
    for name, number in at.items():
        names.setdefault(number, name)
    if graph is not None:
        shape = next(iter(graph.nodes[0].shapes), None)
        blocks[output] = ("output", ["output", *([str(shape)] if shape else [])])
        nodes = {node.id: drawing.make_box(node) for node in graph.nodes}
        for number in names:
            nodes[number] = replace(nodes[number], fixed=True)
        links: drawing.Arrows = {}
        for edge in graph.edges:
            if edge.source not in names:  # what is behind an argument is not the module's
                links[edge.source, edge.target] = (*links.get((edge.source, edge.target), ()), edge.index)
        near = _reach(links)
        nodes = {number: nodes[number] for number in near}
        links = {ends: index for ends, index in links.items() if ends[0] in nodes}
        if len(nodes) > _FOLDED:
            nodes, links = drawing.fold_leaves(nodes, links, {node.id: node.inputs for node in graph.nodes})
            near = [number for number in _reach(links) if number in nodes]
        most = _SHOWN if len(near) > _FOLDED else _FOLDED
        kept = near[:most] + [number for number in near[most:] if number in names]
        left = [number for number in near if number not in kept]

        def key(number: int) -> _Key:
            return ("argument", names[number]) if number in names else ("node", number if number in kept else -1)

        for number in kept:
            if number not in names:
                box = nodes[number]
                title = box.labels[0] if box.leaf and box.labels else "leaf" if box.leaf else _short(box.title)
                details = [text.partition(") ")[0] + (")" if ") " in text else "") for text in box.details]
                if box.leaf and box.labels:
                    details = [text.removeprefix(box.labels[0]).strip() for text in details]
                details = [_count(text) for text in details]
                lines = [drawing.escape(_cut(text)) for text in (title, *details[:2]) if text]
                blocks[key(number)] = ("leaf" if box.leaf else "node", lines)
        if left:
            blocks["node", -1] = ("more", [f"{len(left)} more nodes"])
        arrows[output, key(0)] = ""
        for (source, target), index in links.items():
            if key(source) != key(target):
                entry = ", ".join(map(str, index)) if source == 0 else ""
                arrows[key(source), key(target)] = f"[{entry}]" if entry else ""
        sizes = {node.id: next(iter(node.shapes), None) for node in graph.nodes}
    for name in arguments:
        if name in at and graph is not None:
            shape = sizes.get(at[name])
            blocks["argument", names[at[name]]] = (
                "argument",
                [_cut(names[at[name]]), *([str(shape)] if shape else [])],
            )
        else:
            blocks["argument", name] = ("missing", [_cut(name), "no gradient"])
    return blocks, arrows


def _reach(links: drawing.Arrows) -> list[int]:
    """Return the nodes behind node 0, the nearest first."""
    near = [0]
    for number in near:
        near += [target for source, target in links if source == number and target not in near]
    return near


def _short(name: str) -> str:
    """Return the name of a node without "Backward0"."""
    return name.rpartition("Backward")[0] or name


def _count(text: str) -> str:
    """Return how many parameters a folded box has, instead of many names."""
    names = text.removeprefix("with ").split(", ")
    return f"{len(names)} parameters" if text.startswith("with ") and len(names) > 1 else text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _lay_out(
    blocks: Mapping[_Key, tuple[str, list[str]]],
    arrows: Mapping[tuple[_Key, _Key], str],
    spots: Mapping[_Key, tuple[float, int]],
    ways: Mapping[tuple[_Key, _Key], Sequence[tuple[float, int]]],
    outside: Mapping[_Key, str],
    sits: bool,
    *,
    wide: bool,
) -> Layout:
    across, down = _GAP["wide" if wide else "narrow"]
    width = max(76.0, max(len(line) for _, lines in blocks.values() for line in lines) * _LETTER + 24)
    height = max(len(lines) for _, lines in blocks.values()) * _LINE + 12
    stops = [*spots.values(), *(stop for way in ways.values() for stop in way)]
    columns, deepest = [column for column, _ in stops], max(layer for _, layer in stops)
    first, last = min(columns), max(columns)
    head = 26  # the name of the module
    left, top = 4 + (0 if wide else _MARGIN), 4 + (head + _MARGIN if wide else 0)

    def center(column: float, layer: float) -> list[float]:
        if wide:
            return [
                left + width / 2 + (deepest - layer) * (width + across),
                top + height / 2 + (column - first) * (height + down),
            ]
        # The frame needs room for its name below the output.
        return [left + width / 2 + (column - first) * (width + across), top + height / 2 + layer * (height + down)]

    def side(point: Sequence[float], way: int) -> list[float]:
        """Return where an arrow leaves a box (1) or enters it (-1)."""
        x, y = point
        return [x - way * width / 2, y] if wide else [x, y + way * height / 2]

    def beside(point: Sequence[float]) -> list[float]:
        """Return where a hook on a node sits: next to its box, where the gradients leave it."""
        x, y = side(point, 1)
        return [x - _RADIUS + 4, y] if wide else [x, y + _RADIUS - 4]

    inner = [spot for key, spot in spots.items() if key not in outside and key[0] != "output"]
    ends = [layer for _, layer in inner] or [1]
    start, stop = center(first, min(ends)), center(last, max(ends))
    if wide:
        frame = [stop[0] - width / 2 - across / 2, 4, 0, 0]
        frame[2] = start[0] + width / 2 + across / 2 - frame[0]
        frame[3] = stop[1] + height / 2 + _MARGIN - frame[1]
        size = [left + (deepest + 1) * (width + across) - across + 4, frame[1] + frame[3] + 4]
        edge, title = frame[0], [frame[0] + frame[2] / 2, frame[1] + 20]
    else:
        frame = [4, start[1] - height / 2 - down / 2, 0, 0]
        frame[2] = stop[0] + width / 2 + _MARGIN - frame[0]
        frame[3] = stop[1] + height / 2 + down / 2 - frame[1]
        size = [frame[0] + frame[2] + 4, top + (deepest + 1) * (height + down) - down + 4]
        edge, title = frame[1] + frame[3], [frame[0] + frame[2] - 8, frame[1] + 17]
    drawn: list[dict[str, Any]] = []
    crossings, tags = [], []
    for (source, target), entry in arrows.items():
        points = [side(center(*spots[source]), 1)]
        for spot in ways[source, target]:
            points += [side(center(*spot), -1), side(center(*spot), 1)]
        points.append(side(center(*spots[target]), -1))
        one, other = points[:2]
        tag = [one[0] + 0.66 * (other[0] - one[0]), one[1] + 0.66 * (other[1] - one[1])]
        drawn.append({"points": _round(points), "entry": entry, "tag": _round([tag])[0]})
        if target in outside and source not in outside:
            crossings.append((_cross(points, edge, 0 if wide else 1), target))
    arguments = [key for key in blocks if key in outside]
    gates = [at for at, _ in crossings] or [center(*spots[key])[1 if wide else 0] for key in arguments[:1]]
    middle = (min(gates) + max(gates)) / 2 if gates else (frame[1] + frame[3] / 2 if wide else frame[0] + frame[2] / 2)
    for at, key in crossings:
        tags.append({"at": _round([[edge, at] if wide else [at, edge]])[0], "text": outside[key]})
    low, high = min([*gates, middle]), max([*gates, middle])
    root = next((target for source, target in arrows if source[0] == "output"), None)
    peg = [edge, middle] if wide else [middle, edge]
    seat = None
    if sits and root is not None:
        seat = beside(center(*spots[root]))
        for arrow in drawn:  # a text must not lie under the full hook
            if arrow["entry"] and abs(arrow["tag"][0] - peg[0]) + abs(arrow["tag"][1] - peg[1]) < 2 * _RADIUS:
                dx, dy = (0, _RADIUS + 12) if wide else (-_RADIUS - 14, 0)
                arrow["tag"] = _round([[seat[0] + dx, seat[1] + dy]])[0]
    bar = [[edge, low], [edge, high]] if wide else [[low, edge], [high, edge]]
    return {
        "size": [round(each) for each in size],
        "box": [round(width), round(height)],
        "frame": [round(each) for each in frame],
        "title": _round([title])[0],
        "anchor": "middle" if wide else "end",
        "boxes": [
            {"at": _round([center(*spots[key])])[0], "kind": kind, "lines": lines}
            for key, (kind, lines) in blocks.items()
        ],
        "arrows": drawn,
        "legacy": _round([seat])[0] if seat else None,
        "full": _round([peg])[0],
        "bar": _round(bar),
        "tags": tags,
        "radius": _RADIUS,
        "font": _FONT,
    }


def _cross(points: Sequence[Sequence[float]], edge: float, axis: int) -> float:
    """Return where an arrow crosses the edge of the frame, along the edge."""
    for one, other in pairwise(points):
        low, high = sorted((one[axis], other[axis]))
        if low <= edge <= high and high > low:
            share = (edge - one[axis]) / (other[axis] - one[axis])
            return one[1 - axis] + share * (other[1 - axis] - one[1 - axis])
    return points[-1][1 - axis]


def _round(points: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[round(each) for each in point] for point in points]


def draw_still(layout: Layout, title: str) -> bytes:
    """Draw a layout with both hooks as a PNG."""
    from matplotlib.patches import Circle, FancyBboxPatch

    width, height = layout["size"]
    key = 34
    figure, axes = open_axes((width, height + key), 100, dpi=130)
    points = 0.72 * layout["font"]

    def rectangle(x: float, y: float, w: float, h: float, **look: Any) -> None:
        axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=8", mutation_aspect=1, **look))

    rectangle(*layout["frame"], facecolor=FRAME, edgecolor=LINE, linewidth=1.2, zorder=0)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "color": INK}
    side = {"ha": "center" if layout["anchor"] == "middle" else "right"}
    axes.text(layout["title"][0], layout["title"][1], _plain(title), fontsize=points, weight="bold", **middle | side)
    for arrow in layout["arrows"]:
        *before, last = arrow["points"]
        axes.plot(*zip(*arrow["points"], strict=True), color=BACKWARD, linewidth=1.8, zorder=1)
        axes.annotate(
            "", last, before[-1], arrowprops={"arrowstyle": "-|>", "color": BACKWARD, "shrinkA": 0, "shrinkB": 0}
        )
    w, h = layout["box"]
    for box in layout["boxes"]:
        x, y = box["at"]
        dashed = "--" if box["kind"] in ("missing", "more") else "-"
        rectangle(
            x - w / 2, y - h / 2, w, h, facecolor="white", edgecolor=LINE, linestyle=dashed, linewidth=1.2, zorder=2
        )
        for number, line in enumerate(box["lines"]):
            place = y + (number - (len(box["lines"]) - 1) / 2) * _LINE
            look = middle | ({} if number == 0 else {"color": MUTED})
            axes.text(
                x, place, _plain(line), fontsize=points, weight="bold" if number == 0 else "normal", zorder=3, **look
            )
    if layout["bar"][0] != layout["bar"][1]:
        axes.plot(*zip(*layout["bar"], strict=True), color=HOOK, linewidth=5, solid_capstyle="round", zorder=3)
    for point, color in ((layout["full"], HOOK), (layout["legacy"], MUTED)):
        if point:
            axes.add_patch(Circle(point, _RADIUS, facecolor=color, edgecolor="white", zorder=4))
            axes.add_patch(Circle(point, 4, facecolor="white", edgecolor="none", zorder=5))
    for x, color, words in ((20, HOOK, "full hook"), (140, MUTED, "legacy hook")):
        axes.add_patch(Circle((x, height + key / 2), 9, facecolor=color, edgecolor="none"))
        missing = " (no node)" if color == MUTED and not layout["legacy"] else ""
        axes.text(x + 16, height + key / 2, words + missing, fontsize=points, color=INK, va="center")
    return from_figure(figure, "the graph", dpi=130).png


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
