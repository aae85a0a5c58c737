"""Draw the places of all kinds of hooks, from a recording, and mark the current one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import hookscope
from hookscope.pictures.colors import FRAME, INK, LINE, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope.recordings.timeline import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KINDS", "hook_map"]


class Kind(NamedTuple):
    """A kind of hook: what it is called, how it is registered, where the course teaches it."""

    name: str
    register: str
    chapter: str


KINDS = {
    "forward_pre": Kind("forward pre-hook", "module.register_forward_pre_hook", "04"),
    "forward": Kind("forward hook", "module.register_forward_hook", "03"),
    "tensor": Kind("tensor hook", "tensor.register_hook", "07"),
    "retain_grad": Kind("retain_grad", "tensor.retain_grad", "07"),
    "full_backward_pre": Kind("full backward pre-hook", "module.register_full_backward_pre_hook", "08"),
    "post_accumulate_grad": Kind("post-accumulate hook", "tensor.register_post_accumulate_grad_hook", "07"),
    "full_backward": Kind("full backward hook", "module.register_full_backward_hook", "08"),
}
"""The kinds that are on the map, by the name that `hookscope.record` gives them."""
# Where each of them sits: of a kind, and on what.
_PLACES = {
    ("forward_pre", ""): (3.3, 3.2),
    ("forward", ""): (7.5, 3.2),
    ("tensor", "y"): (10.55, 1.5),
    ("retain_grad", "y"): (9.45, 1.5),
    ("full_backward_pre", ""): (7.5, 1.5),
    ("tensor", "weight"): (5.0, 0.3),
    ("post_accumulate_grad", "weight"): (6.75, -0.3),
    ("full_backward", ""): (3.3, 1.5),
    ("tensor", "x"): (1.4, 1.5),
}
_ABOVE = {("retain_grad", "y"), ("tensor", "x")}  # whose words stand above, or they would run into the next ones


def hook_map(*here: str, backward: bool = True) -> Picture:
    """Draw where each kind of hook sits around a module, numbered in the order in which a recording saw them fire.

    Args:
        here: the kinds that the page is about, as `hookscope.record` names them; they are framed.
        backward: draw the way back as well; a page before chapter 02 must not give its questions away.

    Returns:
        The picture, with a row for each hook: its number, what it sits on, how it is registered, its chapter.

    Raises:
        ValueError: there is no such kind; names the nearest.

    Example:
        >>> hook_map("forward").rows[1]["hook"]
        'forward hook'

    """
    for kind in here:
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(KINDS)}"
            raise ValueError(f"no kind of hook '{kind}'; {advice}")
    fired = [(kind, on) for kind, on in _fired() if backward or kind.startswith("forward")]
    *most, last = [KINDS[kind].name for kind in here] or [""]
    names = f"{', '.join(most)} and {last}" if most else last
    where = f" You are here: {names}." if here else ""
    rows = [
        {
            "fires": number,
            "hook": KINDS[kind].name,
            "on": on or "the module",
            "register": f".{KINDS[kind].register.partition('.')[2]}",
            "chapter": KINDS[kind].chapter,
            "you are": "here" if kind in here else None,
        }
        for number, (kind, on) in enumerate(fired, start=1)
    ]
    if not here:
        for row in rows:
            del row["you are"]
    alt = (
        "A module between its input x and its output y. Forward, from left to right, hooks fire in this order: "
        f"{_in_words(fired[:2])}."
    )
    alt += f" Back from the loss, from right to left: {_in_words(fired[2:])}.{where}" if backward else where
    figure = _draw(fired, here, backward)
    caption = f"Where hooks sit, in the order in which they fire.{where}"
    return from_figure(figure, alt=alt, caption=caption, rows=rows, heading="The hooks in the picture")


def _fired() -> list[tuple[str, str]]:
    """Run a layer forward and back, and return which hook fired on what, in order; the bias is as the weight."""
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        layer, x = nn.Linear(2, 1, bias=False), torch.ones(1, 2, requires_grad=True)
        with hookscope.record(layer, parameters=True) as recording:
            recording.watch(x, "x")
            y = recording.watch(layer(x), "y", retain_grad=True)
            torch.autograd.backward(y.sum())
    return [(event.kind, "" if event.kind in _OF_MODULES else event.name) for event in recording.events]


_OF_MODULES = {kind for kind, on in _PLACES if not on}


def _in_words(fired: list[tuple[str, str]]) -> str:
    return ", ".join(KINDS[kind].name + (f" on {on}" if on else "") for kind, on in fired)


def _draw(fired: list[tuple[str, str]], here: tuple[str, ...], both: bool = True) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    low = -0.75 if both else 2.0  # the ring around the lowest sign, too
    figure = Figure(figsize=(8.3, 0.86 * (4.1 - low)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(-0.1, 12.3), ylim=(low, 4.1))
    axes.axis("off")
    forward, backward = COLORS["forward"], COLORS["backward"]

    def box(x: float, y: float, text: str, color: str = "black") -> None:
        frame = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": color}
        axes.text(x, y, text, ha="center", va="center", fontsize=11, bbox=frame, zorder=3)

    def arrow(start: tuple[float, float], end: tuple[float, float], color: str) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.6}, zorder=1)

    floor = max(low, 0.65) + 0.1
    look: dict[str, Any] = {"boxstyle": "round,pad=0.05", "facecolor": FRAME, "edgecolor": LINE}
    axes.add_patch(FancyBboxPatch((2.3, floor), 6.2, 3.7 - floor, **look))
    axes.text(5.4, 3.92, "module", ha="center", va="center", fontsize=11, color=MUTED)
    arrow((0.7, 3.2), (9.9, 3.2), forward)
    arrow((10.4, 3.2), (11.2, 3.2), forward)
    box(0.35, 3.2, "x")
    box(5.4, 3.2, "forward", forward)
    box(10.15, 3.2, "y")
    box(11.6, 3.2, "loss")
    if both:
        arrow((11.6, 2.85), (11.6, 1.9), backward)
        arrow((11.0, 1.5), (0.9, 1.5), backward)
        arrow((5.4, 1.2), (5.4, -0.15), backward)
        box(11.6, 1.5, "backward", backward)
        box(5.4, 1.5, "step back", backward)
        box(0.4, 1.5, "x.grad")
        axes.text(5.4, -0.3, "weight.grad", ha="center", va="center", fontsize=11)
    for number, (kind, on) in enumerate(fired, start=1):
        x, y = _PLACES[kind, on]
        shape, filled = MARKERS[kind]
        color = forward if kind.startswith("forward") else backward
        strong = not here or kind in here
        axes.plot(x, y, shape, ms=15, mec=color, mfc=color if filled else "white", mew=2, zorder=4)
        if kind in here:
            axes.plot(x, y, "o", ms=27, mec="black", mfc="none", mew=2.5, zorder=5)
        words = f"{number}  {KINDS[kind].name}" + (f"\non {on}" if on else "")
        weight = "bold" if kind in here else "normal"
        style: dict[str, Any] = {"fontsize": 9.5, "color": INK if strong else MUTED, "weight": weight}
        if on == "weight":
            left = kind == "tensor"
            axes.text(x - 0.42 if left else x + 0.42, y, words, ha="right" if left else "left", va="center", **style)
        else:
            words = words.replace(" pre-hook", "\npre-hook").replace("d hook", "d\nhook")
            up = (kind, on) in _ABOVE
            axes.text(x, y + (0.38 if up else -0.38), words, ha="center", va="bottom" if up else "top", **style)
    return figure
