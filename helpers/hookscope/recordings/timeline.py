"""Draw recorded events from left to right, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hookscope.extras import optional_import
from hookscope.pictures.colors import BACKWARD, FORWARD
from hookscope.pictures.picture import Picture, from_figure
from hookscope.pictures.words import shorten
from hookscope.recordings.event import find_phase

if TYPE_CHECKING:
    from hookscope.recordings.event import Event

_LABELS = 130  # names of layers
_LONG = 100  # characters of one
_NAMED = 16  # names of the user's hooks that fit
# Forward markers point right, backward left; pre-hooks are hollow. Nodes point down, and squares mean that .grad was
# filled.
COLORS = {"forward": FORWARD, "backward": BACKWARD}
MARKERS = {
    "forward_pre": (">", False),
    "forward": (">", True),
    "full_backward_pre": ("<", False),
    "full_backward": ("<", True),
    "backward": ("X", True),
    "tensor": ("D", True),
    "post_accumulate_grad": ("s", True),
    "retain_grad": ("s", False),
    "node_pre": ("v", False),
    "node_post": ("v", True),
}


def draw(events: Sequence[Event], caption: str, rows: Sequence[Mapping[str, object]]) -> Picture:
    """Draw a line for each layer, tensor or node, and a marker for each event.

    Args:
        events: the events; at least one.
        caption: text below the image.
        rows: the events as rows of a table.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    """
    with optional_import("a timeline"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

    lines = list(dict.fromkeys((event.name or "(root)", event.type) for event in events))
    at = {line: place for place, line in enumerate(lines)}
    places = {event.index: at[event.name or "(root)", event.type] for event in events}
    own = [event.index for event in events if event.hook]
    named = 0 < len(own) <= _NAMED
    wide = min(3.6 + 0.2 * max(len(events), 18), 13)
    high = min(1.6 + (0.48 if named else 0.3) * max(len(lines) + named, 3), 40)
    figure = Figure(figsize=(wide, high), layout="constrained")
    axes = figure.subplots()
    for by in dict.fromkeys(event.by for event in events):  # connects the events of each thread
        path = [event.index for event in events if event.by == by]
        axes.plot(path, [places[index] for index in path], color="0.75", linewidth=1, zorder=1)
    size = 9 if len(events) <= 45 else 6.5 if len(events) <= 90 else 4
    for kind, (marker, filled) in MARKERS.items():
        if group := [event.index for event in events if event.kind == kind]:
            color = COLORS[find_phase(kind)]
            axes.plot(
                group,
                [places[index] for index in group],
                linestyle="",
                marker=marker,
                markersize=size,
                markerfacecolor=color if filled else "white",
                markeredgecolor=color,
                markeredgewidth=1.5,
                label=kind,
                zorder=3,
            )
    if own:
        ring: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markeredgecolor": "black", "linestyle": ""}
        heights = [places[index] for index in own]
        axes.plot(own, heights, **ring, markersize=size + 7, label="your own hook", zorder=4)
    for event in events if len(events) <= 90 else ():
        where = (event.index, places[event.index])
        if event.call > 1:
            axes.annotate(f"#{event.call}", where, (0, size), textcoords="offset points", ha="center", fontsize=8)
        if event.hook and named:  # slanted, so that neighbors do not touch
            axes.annotate(
                shorten(event.hook, _LONG),
                where,
                (3, -size),
                parse_math=False,
                textcoords="offset points",
                fontsize=8,
                rotation=35,
                rotation_mode="anchor",
                ha="right",
                va="top",
                zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )
    for phase, run in groupby(events, key=lambda event: event.phase):
        numbers = [event.index for event in run]
        first, last = numbers[0], numbers[-1]
        if phase != "forward":
            axes.axvspan(first - 0.5, last + 0.5, color="0.95", zorder=0)
        if last - first >= len(events) / 12 or len(events) <= 12:
            axes.text((first + last) / 2, -0.75, phase, ha="center", va="bottom", color=COLORS[phase])
    step = -(-len(lines) // _LABELS)  # more labels would not be legible
    labels = [shorten(name if name == of else f"{name}  {of}", _LONG) for name, of in lines[::step]]
    axes.set_yticks(range(0, len(lines), step), labels, parse_math=False)
    if step > 1:
        axes.set_title(f"Only every {step}th of {len(lines):,} lines has a label", fontsize=9)
    axes.set_ylim(len(lines) + (0.3 if named else -0.4), -0.7)
    margin = max(0.6, len(events) / 120)
    axes.set_xlim(1 - margin, len(events) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20, min_n_ticks=1))
    axes.set_xlabel("event number")
    axes.set_ylabel("layer or tensor")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4 if wide > 8 else 3, frameon=False)
    heading = "The events in the image"
    return from_figure(figure, _in_words(events), caption, rows, dpi=110, heading=heading, when_seen=True)


def _in_words(events: Sequence[Event]) -> str:
    """Describe the order: all events if there are few, else the first and last of each phase."""
    parts = []
    for phase, group in groupby(events, key=lambda event: event.phase):
        labels = [event.label for event in group]
        if len(events) > 20 and len(labels) > 4:
            labels = [*labels[:2], f"{len(labels) - 3} more", labels[-1]]
        parts.append(f"{phase}: {', '.join(labels)}")
    if len(parts) > 6:
        parts = [*parts[:3], f"{len(parts) - 4} more phases", parts[-1]]
    return f"The order in which {len(events)} hooks fired. {'; '.join(parts)}.".replace("forward:", "Forward:", 1)
