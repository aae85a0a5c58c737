"""The paper on which a figure's still picture is drawn, in the units of its layout: what stays where no script runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from hookscope.pictures.colors import BACKWARD, FORWARD, INK
from hookscope.pictures.picture import from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SIDES", "WAYS", "Sheet", "open_axes"]

WAYS = {"forward": FORWARD, "backward": BACKWARD, "turn": BACKWARD, "branch": BACKWARD}
SIDES = {"middle": "center", "start": "left", "end": "right"}
"""SVG's word for the side on which a text stands, and matplotlib's."""


def open_axes(size: Sequence[float], units: float, dpi: int) -> tuple[Figure, Axes]:
    """Return a figure without margins, and its axes: x to the right, y down.

    Args:
        size: width and height.
        units: how many of them are an inch.
        dpi: dots in an inch.

    """
    from matplotlib.figure import Figure

    width, height = size
    figure = Figure(figsize=(width / units, height / units), dpi=dpi)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


class Sheet:
    """A matplotlib figure without margins: x to the right, y down, as in SVG."""

    def __init__(self, figure: Figure, axes: Axes, dpi: int) -> None:
        self._figure, self._axes, self._dpi = figure, axes, dpi

    @classmethod
    def open(cls, size: Sequence[float], dpi: int = 120) -> Self:
        """Return an empty sheet.

        Args:
            size: width and height in pixels of the page.
            dpi: dots for 100 of them.

        """
        return cls(*open_axes(size, 100, dpi), dpi)

    def panel(self, x: float, y: float, w: float, h: float, *, rounding: float = 9, **look: Any) -> None:
        """Draw a box with round corners; x and y are its left upper corner."""
        from matplotlib.patches import FancyBboxPatch

        style = f"round,pad=0,rounding_size={rounding}" if rounding else "square,pad=0"
        self._axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, **look))

    def box(self, x: float, y: float, w: float, h: float, **look: Any) -> None:
        """Draw a panel around a point."""
        self.panel(x - w / 2, y - h / 2, w, h, **look)

    def write(self, at: Sequence[float], text: str, size: float = 9.5, color: str = INK, **look: Any) -> None:
        """Write a text, centered unless told otherwise."""
        place: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 5} | look
        x, y = at
        self._axes.text(x, y, text, fontsize=size, color=color, **place)

    def circle(self, at: Sequence[float], radius: float, **look: Any) -> None:
        """Draw a circle, such as the peg of a hook."""
        from matplotlib.patches import Circle

        x, y = at
        self._axes.add_patch(Circle((x, y), radius, **look))

    def line(self, points: Iterable[Sequence[float]], **look: Any) -> None:
        """Draw a line through points."""
        self._axes.plot(*zip(*points, strict=True), **look)

    def arrow(self, points: Sequence[Sequence[float]], color: str, head: float = 14, **look: Any) -> None:
        """Draw a line with a head at its end."""
        look = {"linewidth": 2, "zorder": 1} | look
        self.line(points, color=color, **look)
        tip = {"arrowstyle": "-|>", "color": color, "mutation_scale": head, "linewidth": 0, "shrinkB": 0}
        (fx, fy), (x, y) = points[-2:]
        self._axes.annotate("", (x, y), (fx, fy), arrowprops=tip, zorder=look["zorder"])

    def rails(self, rails: Iterable[Mapping[str, Any]], dotted: str = "") -> None:
        """Draw the ways of the values; the ones that a layout, or `dotted`, names dotted are."""
        for rail in rails:
            style = ":" if rail.get("dotted") or rail["way"] == dotted else "-"
            self.arrow(rail["points"], WAYS[rail["way"]], linestyle=style)

    def png(self, alt: str) -> bytes:
        """Return the picture."""
        return from_figure(self._figure, alt, dpi=self._dpi).png
