"""The picture of chapter 13: how two ranks come to one gradient, drawn with the numbers that the ranks returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hookscope.pictures.picture import Picture, from_figure


def way_to_the_mean(inputs: Sequence[float], seen: Sequence[Mapping[str, float]]) -> Picture:
    """Draw each rank's way from its data to `weight.grad`, and the all-reduce between their buckets.

    Args:
        inputs: what each rank was given, rank 0 first.
        seen: for each rank, what "tensor hook" and "weight.grad after backward()" were.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.9 + 1.0 * len(seen)), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.5, 8.6), ylim=(-0.35, len(seen) - 0.1))
    axes.axis("off")
    heads = ("its own data", "backward:\nits own gradient", "your hooks\nsee", "bucket", "weight.grad\nafterwards")
    places = (0.4, 2.1, 3.7, 5.3, 7.6)
    for x, head in zip(places, heads, strict=True):
        axes.text(x, len(seen) - 0.45, head, ha="center", va="bottom", fontsize=9)
    box = {"boxstyle": "round,pad=0.5", "fc": "#e8f0fe", "ec": "#3b5b92"}
    for rank, numbers in enumerate(seen):
        y = len(seen) - 1 - rank
        local, mean = numbers["tensor hook"], numbers["weight.grad after backward()"]
        axes.text(-0.5, y, f"rank {rank}", va="center", fontsize=10, weight="bold")
        for x, value in zip(places, (inputs[rank], local, local, local, mean), strict=True):
            axes.text(x, y, f"{value:g}", ha="center", va="center", fontsize=11, bbox=box)
        for start, end in pairwise(places):
            axes.annotate("", (end - 0.33, y), (start + 0.33, y), arrowprops={"arrowstyle": "->", "color": "#555"})
    axes.annotate("", (5.3, 0.3), (5.3, len(seen) - 1.3), arrowprops={"arrowstyle": "<->", "color": "#b3541e", "lw": 2})
    axes.text(5.45, (len(seen) - 1) / 2, "all_reduce", color="#b3541e", va="center", fontsize=10)
    rows = [
        {"rank": rank, "your hooks see": numbers["tensor hook"], "weight.grad": numbers["weight.grad after backward()"]}
        for rank, numbers in enumerate(seen)
    ]
    alt = (
        "One line per rank: its own data, its own gradient, then your hooks, which see that gradient, then the bucket. "
        "Between the buckets an arrow, all_reduce. After it every rank has the same weight.grad, the mean."
    )
    return from_figure(figure, alt, "How the ranks come to one gradient", rows)
