"""Draw how many digits two readers get right after each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from hookscope.pictures.colors import DATA, LINE
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["draw_readers"]


def draw_readers(
    nearest: Mapping[str, int], better: Mapping[str, int], untrained: Sequence[Mapping[str, int]], total: int = 360
) -> Picture:
    """Draw the counts of the trained network as lines over a band of untrained networks.

    Args:
        nearest: for each layer of the trained network, how many digits the nearest center gets right.
        better: the same for the better reader.
        untrained: the same for the better reader, one for each untrained network.
        total: how many digits there are.

    Example:
        >>> draw_readers({"pixels": 48}, {"pixels": 50}, [{"pixels": 40}, {"pixels": 45}]).rows
        [{'after': 'pixels', 'nearest center': 48, 'better reader': 50, '2 untrained': '40–45'}]

    """
    low = {name: min(each[name] for each in untrained) for name in better}
    high = {name: max(each[name] for each in untrained) for name in better}
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(better))
    many = f"{len(untrained)} untrained"
    axes.fill_between(places, [*low.values()], [*high.values()], color=LINE, label=f"better reader, {many}")
    axes.plot(places, [*better.values()], "o-", color=DATA[0], markersize=4, label="better reader, trained")
    axes.plot(places, [*nearest.values()], "o:", color=DATA[0], markersize=4, label="nearest center, trained")
    axes.set(ylim=(0, total), yticks=range(0, total + 1, total // 6), ylabel=f"right, of {total}")
    axes.set_xticks(places, [*better], rotation=30, ha="right")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    rows: list[dict[str, object]] = [
        {
            "after": name,
            "nearest center": nearest[name],
            "better reader": better[name],
            many: f"{low[name]}–{high[name]}",
        }
        for name in better
    ]
    last = [*better][-1]
    alt = (
        f"Two lines and a band over {len(better)} places. After {last}, the better reader gets {better[last]} of "
        f"{total} digits right and the nearest center {nearest[last]}. In {len(untrained)} untrained networks, the "
        f"better reader gets {low[last]} to {high[last]}."
    )
    return from_figure(figure, alt, "How many digits two readers get right after each layer", rows)
