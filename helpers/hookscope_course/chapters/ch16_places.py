"""How likely the plural verbs are with a vector that is added at different tokens, as dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookscope.pictures.colors import DATA, INK, LINE, MUTED
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["draw_places"]


def draw_places(shares: Mapping[str, Mapping[str, float]], random: Mapping[str, Sequence[float]]) -> Picture:
    """Draw a line for each place, with a large dot for each named vector and a small one for each random vector.

    Args:
        shares: for each place the probability with each named vector.
        random: for each place the probability with each random vector.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 0.9 + 0.62 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names = list(next(iter(shares.values())))
    rows: list[dict[str, object]] = []
    for line, (place, named) in enumerate(shares.items()):
        axes.axhline(line, color=LINE, linewidth=1, zorder=0)
        heights = [line + 0.08 * (at % 5 - 2) for at in range(len(random[place]))]
        axes.plot(random[place], heights, "o", color=MUTED, alpha=0.55, markersize=5, markeredgewidth=0)
        for at, name in enumerate(names):
            # The vectors stand above and below the line, so that equal numbers stay visible.
            height = line - 0.2 + 0.4 * at / max(1, len(names) - 1)
            axes.plot(named[name], height, "o", color=DATA[at], markersize=13, markeredgecolor="white")
        mean = sum(random[place]) / len(random[place])
        row: dict[str, object] = {"added at": place} | {name: round(share, 2) for name, share in named.items()}
        rows.append(row | {"random, mean": round(mean, 2), "random, most": round(max(random[place]), 2)})
    kinds = [*((name, DATA[at], 11) for at, name in enumerate(names)), ("a random vector", MUTED, 5)]
    for name, color, size in kinds:
        axes.plot([], [], "o", color=color, markersize=size, label=name)
    axes.legend(frameon=False, ncols=len(kinds), loc="lower left", bbox_to_anchor=(0, 1), labelcolor=INK)
    axes.set(xlim=(-0.03, 1.03), yticks=range(len(shares)), xlabel="probability of the plural verbs")
    axes.set_yticks(range(len(shares)), labels=list(shares), color=INK)
    axes.set_ylim(len(shares) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    told = "; ".join(
        f"{place}: " + ", ".join(f"{name} {each[name]:.2f}" for name in names) for place, each in shares.items()
    )
    count = len(next(iter(random.values())))
    alt = f"A line for each place, with a dot for each vector. {told}. Small dots: {count} random vectors."
    return from_figure(figure, alt, f"Two vectors, and {count} random ones of the same length", rows)
