"""Draw full backward hooks: the two nodes at the ends of a module, and where hooks of nested modules fire."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.pictures.colors import BACKWARD, FRAME, HOOK, INK, LINE, PAGE, WRONG
from hookscope.pictures.picture import Picture, from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_nest", "draw_two_nodes"]

_NEST = {  # by name: left, bottom, width, height
    "(root)": (1.1, 0.1, 8.0, 3.3),
    "block": (1.9, 0.5, 4.4, 2.3),
    "block.linear": (2.6, 0.9, 1.2, 1.2),
    "block.relu": (4.5, 0.9, 1.2, 1.2),
    "head": (7.0, 0.9, 1.2, 1.2),
}
_RAIL = 1.35  # the height of the way back in the drawing of the nest


def draw_two_nodes() -> Picture:
    """Draw the two nodes that torch puts at the ends of an LSTM, and the gradients of `output` and of `h_n`.

    Example:
        >>> [row["passes the first node"] for row in draw_two_nodes().rows]
        ['yes', 'no']

    """
    rows: list[dict[str, object]] = [
        {"gradient of": "output", "passes the first node": "yes", "your hook": "fires"},
        {"gradient of": "h_n", "passes the first node": "no", "your hook": "does not fire"},
    ]
    alt = (
        "A module with a node at each end. The gradient of output passes the first node, behind the outputs, then the "
        "module, then the second node, which calls your hook. The gradient of h_n goes around the first node, so the "
        "second node does not call your hook."
    )
    figure, axes = _figure(8.4, 3.3)
    _frame(axes, (2.2, 0.5, 3.6, 2.5), "nn.LSTM")
    _frame(axes, (3.4, 0.75, 1.2, 1.6), "backward")
    _way(axes, [(6.9, 1.85), (4.6, 1.85)], BACKWARD)
    _way(axes, [(6.9, 1.1), (4.6, 1.1)], WRONG)
    _way(axes, [(3.4, 1.55), (0.95, 1.55)], BACKWARD)
    for x, y, text in ((7.45, 1.85, "output"), (7.45, 1.1, "h_n"), (0.7, 1.55, "x")):
        look = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": BACKWARD, "linewidth": 1.4}
        axes.text(x, y, text, ha="center", va="center", fontsize=11, color=INK, bbox=look, zorder=4)
    for x, y, number in ((5.8, 1.85, 1), (2.2, 1.55, 2)):
        _peg(axes, x, y, str(number))
    axes.text(5.95, 2.2, "1 collects\ngrad_output", va="bottom", ha="left", fontsize=9.5, color=HOOK, weight="bold")
    axes.text(2.05, 1.9, "2 calls\nyour hook", va="bottom", ha="right", fontsize=9.5, color=HOOK, weight="bold")
    axes.text(5.95, 0.82, "not through node 1:\nno call at node 2", va="top", fontsize=9.5, color=WRONG, weight="bold")
    return from_figure(figure, alt=alt, rows=rows, heading="The same as a table")


def draw_nest(order: Sequence[str], no_wait: Collection[str] = ()) -> Picture:
    """Draw the nested net of chapter 08 with a number where each full backward hook fires.

    Args:
        order: the names of its modules, in the order in which their hooks fired.
        no_wait: the modules whose input does not require grad: their hooks fire at the output.

    Raises:
        ValueError: a name is missing or unknown.

    Example:
        >>> draw_nest(["head", "block.relu", "block.linear", "block", "(root)"]).rows[0]
        {'fires': 1, 'module': 'head', 'at its': 'input'}

    """
    if sorted(order) != sorted(_NEST) or not set(no_wait) <= set(_NEST):
        raise ValueError(f"order={list(order)!r}, no_wait={list(no_wait)!r}: the modules are {', '.join(_NEST)}")
    rows: list[dict[str, object]] = [
        {"fires": number, "module": name, "at its": "output" if name in no_wait else "input"}
        for number, name in enumerate(order, 1)
    ]
    where = ", ".join(f"{row['fires']} {row['module']} at its {row['at its']}" for row in rows)
    alt = f"(root) holds block and head, and block holds linear and relu. The hooks fire from right to left: {where}."
    figure, axes = _figure(9.9, 3.75)
    for name, place in _NEST.items():
        _frame(axes, place, name.removeprefix("block.") if name != "(root)" else "(root): the whole net")
    _way(axes, [(9.45, _RAIL), (3.0 if no_wait else 0.75, _RAIL)], BACKWARD)
    axes.text(9.68, _RAIL, "loss", ha="center", va="center", fontsize=10, color=INK)
    axes.text(0.4, _RAIL, "input", ha="center", va="center", fontsize=10, color=INK)
    for number, name in enumerate(order, 1):
        left, _, width, _ = _NEST[name]
        _peg(axes, left + width if name in no_wait else left, _RAIL, str(number))
    return from_figure(figure, alt=alt, rows=rows, heading="The order in the picture")


def _figure(width: float, height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.82 * width, 0.82 * height), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.set_axis_off()
    return figure, axes


def _frame(axes: Axes, place: tuple[float, float, float, float], title: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, bottom, width, height = place
    fill = PAGE if width < 2 else FRAME
    shape = "round,pad=0,rounding_size=0.15"
    axes.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=shape, facecolor=fill, edgecolor=LINE, linewidth=1.4)
    )
    axes.text(left + width / 2, bottom + height - 0.12, title, ha="center", va="top", fontsize=10, color=INK)


def _way(axes: Axes, points: Sequence[tuple[float, float]], color: str) -> None:
    axes.plot(*zip(*points, strict=True), color=color, linewidth=2.2, zorder=2)
    look = {"arrowstyle": "-|>", "color": color, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 16}
    axes.annotate("", points[-1], points[-2], arrowprops=look, zorder=2)


def _peg(axes: Axes, x: float, y: float, text: str) -> None:
    axes.plot([x], [y], marker="o", markersize=20, color=HOOK, zorder=5)
    axes.text(x, y, text, ha="center", va="center", fontsize=11, weight="bold", color="white", zorder=6)
