"""Draw what ranks send each other while the loss falls, and two models that drift apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hookscope.pictures.colors import DATA
from hookscope.pictures.picture import Picture, from_figure

COLORS = DATA[:3]
LINES = ("-", "--", ":")
Training: TypeAlias = Sequence[tuple[Sequence[int], Sequence[float]]]
"""For each rank: the bytes that it received in each step, and the losses."""


def kilobytes(training: Training) -> float:
    """Return how much rank 0 gets in a step; some messages come a step late, so it is the median."""
    return round(statistics.median(training[0][0]) / 1000)


def bytes_and_losses(trained: Mapping[str, Training]) -> Picture:
    """Draw how much comes over the wire in a step, and how the loss on rank 0 falls."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 4))
    rows: list[dict[str, object]] = []
    for (name, training), color, line in zip(trained.items(), COLORS, LINES, strict=True):
        received, losses = kilobytes(training), training[0][1]
        left.barh(name, received, color=color)
        left.text(received + 6, name, f"{received:g} kB", va="center")
        # The first is wide, so that one that lies exactly on it does not hide it.
        right.plot(
            losses, color=color, linestyle=line, linewidth=2 if rows else 5, alpha=1 if rows else 0.45, label=name
        )
        rows.append({"with": name, "kB in a step": received, "first loss": f"{losses[0]:.2f}"})
        rows[-1]["mean of the last five losses"] = f"{statistics.mean(losses[-5:]):.2f}"
    left.set(xlim=(0, 280), title="kB received in a step", xlabel="kB")
    left.invert_yaxis()
    right.set(ylim=(0, None), xlabel="step", title="loss on rank 0", xticks=range(0, len(losses) + 1, 10))
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    bars = "; ".join(f"{row['with']} {row['kB in a step']:g} kB" for row in rows)
    alt = f"Bars: {bars}. Beside them the losses fall."
    return from_figure(figure, alt, "Bytes that rank 0 receives in each step, and its loss", rows)


def weights_of(steps: Mapping[str, Sequence[Sequence[float]]]) -> Picture:
    """Draw the weight on both ranks, step by step, for each place where the step is taken."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 2.6), layout="constrained")
    rows = []
    for axes, (place, ranks) in zip(figure.subplots(1, len(steps), sharey=True), steps.items(), strict=True):
        for rank, weights in enumerate(ranks):
            axes.plot(weights, color=COLORS[rank], linestyle=LINES[rank], linewidth=2.5)
            above = 6 if rank == 0 else -12
            axes.annotate(f"rank {rank}", (len(weights) - 1, weights[-1]), (4, above), textcoords="offset points")
            rows.append({"step": place, "rank": rank, "after one step": weights[1], "after ten": weights[-1]})
        axes.set(
            xlim=(0, 12), ylim=(0, 5.3), xlabel="steps", title=f"each step is taken {place}", xticks=range(0, 11, 2)
        )
        axes.set(ylabel="weight" if not rows[2:] else "")
        axes.spines[["top", "right"]].set_visible(False)
    alt = "The weight on two ranks over ten steps, for each place of the step: " + "; ".join(
        f"{row['step']}, rank {row['rank']}, it ends at {row['after ten']:g}" for row in rows
    )
    return from_figure(figure, f"{alt}.", "One weight on two ranks, from 5", rows)


def rows_of_weight(counted: Mapping[str, Sequence[Mapping[str, int]]], whole: int = 6, width: int = 4) -> Picture:
    """Draw which rows of a weight two ranks have at each place, for hooks before and after `fully_shard`."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(8.4, 2.1 * len(counted)), layout="constrained")
    rows = []
    for part, (when, ranks) in zip(figure.subfigures(len(counted), squeeze=False)[:, 0], counted.items(), strict=True):
        part.suptitle(f"hooks registered {when}", x=0.01, ha="left", weight="bold", fontsize=10)
        for axes, place in zip(part.subplots(1, len(ranks[0])), ranks[0], strict=True):
            for rank, found in enumerate(ranks):
                first = 0 if found[place] == whole else rank * (whole // 2)
                left = rank * (width + 2)
                for row in range(whole):
                    here = first <= row < first + found[place]
                    color = COLORS[row >= whole // 2] if here else "none"
                    axes.add_patch(Rectangle((left, row), width, 0.85, facecolor=color, edgecolor="0.6"))
                axes.text(left + width / 2, whole + 1.2, f"rank {rank}: {found[place]} rows", ha="center", fontsize=9)
                rows.append({"hooks registered": when, "place": place, "rank": rank, "rows": found[place]})
            axes.set(xlim=(-0.5, 2 * width + 2.5), ylim=(whole + 1.5, -0.3))
            axes.set_title(place, fontsize=10)
            axes.axis("off")
    said = "; ".join(f"registered {r['hooks registered']}, {r['place']}: {r['rows']}" for r in rows if r["rank"] == 0)
    alt = f"The rows of a weight of {whole} that a rank has. {said}."
    return from_figure(figure, alt, "The rows on each rank", rows)
