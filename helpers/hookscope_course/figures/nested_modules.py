"""Draw nested modules as nested boxes, with the order in which their hooks fired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hookscope.pictures.colors import FRAME, LINE, PAGE
from hookscope.pictures.picture import Picture, from_figure
from hookscope.recordings.timeline import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hookscope.recordings.record import Recording

__all__ = ["draw_nesting"]

_DOORS = {"forward_pre": "left", "forward": "right", "full_backward_pre": "right", "full_backward": "left"}
"""The door of its module at which each kind of hook sits."""


class _Box(NamedTuple):
    """A module, and when each kind of its hooks fired."""

    name: str
    depth: int
    fired: dict[str, int]


def draw_nesting(recording: Recording) -> Picture:
    """Draw the recorded modules as boxes in boxes, and number their hooks in the order in which they fired.

    Forward runs from left to right along the upper row of numbers, backward from right to left along the lower one.

    Args:
        recording: what `record(...)` gave, after its block, with all four kinds of module hooks.

    Raises:
        ValueError: a module was called more than once, or some of its four hooks did not fire; names it.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 1))
        >>> with hookscope.record(net) as recording:
        ...     net(torch.ones(1, 1, requires_grad=True)).backward()
        >>> draw_nesting(recording).rows[-1]
        {'fires': 8, 'hook': 'full_backward', 'of': '(root)', 'door': 'left'}

    """
    boxes = _boxes(recording)
    fired = sorted((number, kind, box.name) for box in boxes for kind, number in box.fired.items())
    rows = [{"fires": number, "hook": kind, "of": name, "door": _DOORS[kind]} for number, kind, name in fired]
    last = {kind: ", ".join(name for _, each, name in fired if each == kind) for kind in ("forward", "full_backward")}
    alt = (
        f"Modules as boxes in boxes. Their forward hooks fire in the order {last['forward']}; their full backward "
        f"hooks in the order {last['full_backward']}."
    )
    caption = "Each number is a hook at the door of a module, in the order in which it fired. Pre-hooks are hollow."
    return from_figure(_draw(boxes), alt=alt, caption=caption, rows=rows, heading="The hooks in the picture")


def _boxes(recording: Recording) -> list[_Box]:
    found: dict[str, _Box] = {}
    for event in recording.events:
        if event.kind not in _DOORS:
            continue
        name = event.name or "(root)"
        box = found.setdefault(name, _Box(name, event.depth, {}))
        if event.kind in box.fired:
            raise ValueError(f"{name!r} was called twice, and has one box. Record modules that are called once")
        box.fired[event.kind] = event.index
    for box in found.values():
        if missing := [kind for kind in _DOORS if kind not in box.fired]:
            raise ValueError(f"no {missing[0]} hook of {box.name!r} fired. Record all four kinds, and call backward()")
    if not found:
        raise ValueError("no hook of a module was recorded. Name modules that are called in the block")
    return list(found.values())


def _draw(boxes: list[_Box]) -> Any:
    from matplotlib.figure import Figure

    left = min(box.fired["forward_pre"] for box in boxes)
    right = max(box.fired["forward"] for box in boxes)
    top, deepest = min(box.depth for box in boxes), max(box.depth for box in boxes)
    high = 2.0 + 0.75 * (deepest - top)
    figure = Figure(figsize=(8.3, 0.62 * high + 0.5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(left - 1.1, right + 1.1), ylim=(-high / 2 - 0.1, high / 2 + 0.1))
    axes.axis("off")
    for y, kind, start, end in ((0.45, "forward", left, right), (-0.45, "backward", right, left)):
        away = 0.95 if end > start else -0.95
        arrow = {"arrowstyle": "-|>", "color": COLORS[kind], "linewidth": 1.8}
        axes.annotate("", (end + away, y), (start - away, y), arrowprops=arrow, zorder=2)
        axes.text(start - away, y + 0.22, kind, color=COLORS[kind], fontsize=10, ha="left" if away > 0 else "right")
    for box in sorted(boxes, key=lambda box: box.depth):
        _draw_box(axes, box, high / 2 - 0.5 * (box.depth - top))
    return figure


def _draw_box(axes: Axes, box: _Box, half: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    doors = {"left": box.fired["forward_pre"], "right": box.fired["forward"]}
    wide = doors["right"] - doors["left"]
    look: dict[str, Any] = {
        "boxstyle": "round,pad=0,rounding_size=0.12",
        "facecolor": FRAME if wide > 1 else PAGE,
        "edgecolor": LINE,
    }
    axes.add_patch(FancyBboxPatch((doors["left"], -half), wide, 2 * half, zorder=1, **look))
    middle, y = (doors["left"] + doors["right"]) / 2, 0.0 if wide == 1 else half - 0.22
    short = box.name.rpartition(".")[2]
    axes.text(middle, y, short, ha="center", va="center", fontsize=11, weight="bold", zorder=5)
    for kind, number in box.fired.items():
        color = COLORS["forward" if kind.startswith("forward") else "backward"]
        filled = not kind.endswith("_pre")
        disc = {"boxstyle": "circle,pad=0.25", "facecolor": color if filled else "white", "edgecolor": color}
        y = 0.45 if kind.startswith("forward") else -0.45
        text: dict[str, Any] = {"color": "white" if filled else "black", "fontsize": 9.5, "weight": "bold"}
        axes.text(
            doors[_DOORS[kind]],
            y,
            str(number),
            ha="center",
            va="center",
            bbox=disc | {"linewidth": 1.8},
            zorder=6,
            **text,
        )
