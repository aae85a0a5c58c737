"""Charts of the parts of a gradient: a bar for each sample, a line over the steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from hookscope.pictures.colors import DATA, RIGHT, WRONG, WRONG_SOFT
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["sample_bars", "step_lines"]

_MARKS = tuple(zip(("o-", "s--", "^:"), DATA, strict=False))


def sample_bars(norms: Tensor, wrong: Collection[int]) -> Picture:
    """Draw the norm of each sample's gradient as a bar; those with a wrong label are hatched and red.

    Args:
        norms: one for each sample.
        wrong: the places of the samples with a wrong label.

    Example:
        >>> import torch
        >>> sample_bars(torch.tensor([1.0, 3.0]), [1]).rows
        [{'sample': 1, 'label': 'wrong', 'norm': 3}, {'sample': 0, 'label': 'right', 'norm': 1}]

    """
    figure = Figure(figsize=(7.6, 2.6), layout="constrained")
    axes = figure.subplots()
    for kind, color, edge, hatch in (("right", RIGHT, RIGHT, ""), ("wrong", WRONG_SOFT, WRONG, "////")):
        places = [place for place in range(len(norms)) if (place in wrong) == (kind == "wrong")]
        look: dict[str, Any] = {"color": color, "edgecolor": edge, "hatch": hatch, "label": f"{kind} label"}
        axes.bar(places, norms[places].tolist(), width=0.9, **look)
    axes.set(xlabel="sample", ylabel="norm of its gradient", xlim=(-1, len(norms)))
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    largest = norms.topk(min(8, len(norms))).indices.tolist()
    rows: list[dict[str, object]] = [
        {"sample": n, "label": "wrong" if n in wrong else "right", "norm": round(norms[n].item())} for n in largest
    ]
    marked = norms[[*wrong]]
    alt = (
        f"{len(norms)} bars, most of them near 0. The {len(marked)} samples with a wrong label have the bars from "
        f"{marked.min():.0f} to {marked.max():.0f}."
    )
    return from_figure(figure, alt, "The gradient of each sample", rows)


def step_lines(shares: Mapping[str, Sequence[float]]) -> Picture:
    """Draw what each step adds to the gradient of `weight_hh`, a line for each cell; step 1 adds nothing.

    Args:
        shares: maps the name of a cell to the norm of the part of each step.

    Example:
        >>> step_lines({"RNN": [0.0, 1e-3, 1e-2]}).rows
        [{'step': 2, 'RNN': '1e-03'}, {'step': 3, 'RNN': '1e-02'}]

    """
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    last = max(map(len, shares.values()))
    for (name, norms), (mark, color) in zip(shares.items(), _MARKS, strict=False):
        axes.semilogy(range(2, len(norms) + 1), norms[1:], mark, color=color, markersize=4, label=name)
    axes.set(xlabel="step (row of the digit)", ylabel="norm of its part")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    chosen = sorted({2, last, *range(10, last, 9)})
    rows: list[dict[str, object]] = [
        {"step": step, **{name: f"{norms[step - 1]:.0e}" for name, norms in shares.items()}} for step in chosen
    ]
    ends = "; ".join(
        f"{name} from {norms[-1]:.0e} at the last step to {norms[1]:.0e} at step 2" for name, norms in shares.items()
    )
    return from_figure(
        figure, f"{len(shares)} lines over the steps: {ends}.", "What each step adds to weight_hh.grad", rows
    )
