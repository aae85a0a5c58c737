"""Show, layer by layer, where activations and gradients vanish, explode or die."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.captures.call import Call, NotCapturedError
from hookscope.captures.result import Capture
from hookscope.captures.stats import Stats, compute_stats
from hookscope.extras import optional_import
from hookscope.pictures.colors import BACKWARD, FORWARD
from hookscope.pictures.picture import Picture, from_figure
from hookscope.pictures.words import shorten
from hookscope.pytree import tree_map

__all__ = ["gradient_flow"]

_COLUMNS = 1000  # of calls are drawn, of which the page has the pixels
_LABELS = 100
_LONG = 40  # letters
# The two kinds of marks differ in shape as well.
_LOOKS = {"activation": (FORWARD, "o"), "gradient": (BACKWARD, "s")}


def gradient_flow(seen: Capture) -> Picture:
    """Draw the sizes of activations and gradients, call by call, on a logarithmic axis.

    Each call has one column. A mark shows the mean of the absolute values, and a line goes up to the largest one. The
    share of exact zeros is below. `Picture.rows` lists the numbers, and `Picture.notes` says where a NaN began. Limits:
    https://hookscope.github.io/hookscope/limits/gradient_flow.html

    Args:
        seen: a capture with tensors or with `stats=True`. With `gradients=True`, the drawing also shows gradients.

    Raises:
        TypeError: `seen` is not a capture.
        NotCapturedError: the capture has no calls.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import torch, hookscope
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU())
        >>> _ = nn.init.constant_(net[0].weight, 2.0)
        >>> with hookscope.capture(net, gradients=True) as seen:
        ...     net(torch.tensor([[3.0], [-1.0]])).sum().backward()
        >>> gradient_flow(seen)
        Sequential: activations and gradients of 2 calls
        call  type    mean |x|  max |x|  % zeros  mean |grad|  max |grad|  grad % zeros
        ----  ------  --------  -------  -------  -----------  ----------  ------------
        0     Linear         4        6        0          0.5           1            50
        1     ReLU           3        6       50            1           1             0

    """
    _check_capture(seen)
    calls = seen.calls
    if not calls:
        why = "".join(f"; layer {name or '(root)'!r} {reason}" for name, reason in list(seen.uncalled.items())[:3])
        raise NotCapturedError(f"this capture has no calls{why or '; call the model inside the with block'}")
    sizes = {
        "activation": [_size(call, "output") for call in calls],
        "gradient": [_size(call, "grad") for call in calls],
    }
    rows: list[dict[str, object]] = []
    for call, x, grad in zip(calls, *sizes.values(), strict=True):
        row: dict[str, object] = {"call": call.label, "type": call.type}
        row |= {"mean |x|": x.get("mean"), "max |x|": x.get("max"), "% zeros": x.get("zeros")}
        if any(sizes["gradient"]):
            row |= {"mean |grad|": grad.get("mean"), "max |grad|": grad.get("max"), "grad % zeros": grad.get("zeros")}
        bad = [
            f"{size[what]:.0f} {what} in the {of}"
            for of, size in (("output", x), ("gradient", grad))
            for what in ("NaN", "inf")
            if size.get(what)
        ]
        rows.append(row | ({"note": ", ".join(bad)} if bad else {}))
    caption = f"{seen.title}: activations{' and gradients' if any(sizes['gradient']) else ''} of {len(calls)} calls"
    notes = _find_origins(seen, calls, sizes)
    return from_figure(_draw(calls, sizes), _in_words(calls, sizes), caption, rows, notes=notes, when_seen=True)


def _find_origins(seen: Capture, calls: tuple[Call, ...], sizes: dict[str, list[dict[str, float]]]) -> list[str]:
    """Say where the first NaN or infinite value is: in call order, and in the order of the backward pass."""
    outputs, gradients = (
        [call for call, size in zip(calls, each, strict=True) if _count_bad(size)] for each in sizes.values()
    )
    notes = []
    if outputs:
        first = outputs[0]
        note = f"the first NaN or infinite value of the forward pass is in the output of {first.label or '(root)'!r}"
        if _has_bad_weights(seen, first.layer):
            note += ". Its weights have such values, too: if they had them before this pass, look one step earlier"
        notes.append(note)
    if gradients and not outputs:  # otherwise backward starts from what forward has spoiled
        last = gradients[-1]
        later = any(sizes["gradient"][calls.index(last) + 1 :])
        where = "The gradients of all later calls are finite, so look" if later else "Look"
        notes.append(
            f"the first NaN or infinite value of the backward pass is in the gradient of {last.label or '(root)'!r}. "
            f"{where} at the operations that use its output"
        )
    return notes


def _has_bad_weights(seen: Capture, layer: str) -> bool:
    modules = getattr(seen, "modules", None)  # which a copy does not have
    module = None if modules is None else modules.find(layer)
    if module is None:
        return False
    weights = (each for each in module.parameters() if not (is_lazy(each) or each.is_meta) and each.is_floating_point())
    return any(not each.isfinite().all() for each in weights)


def _count_bad(size: dict[str, float]) -> float:
    return size.get("NaN", 0) + size.get("inf", 0)


def _check_capture(seen: object) -> None:
    if not isinstance(seen, Capture):
        what = "a model" if isinstance(seen, nn.Module) else type(seen).__name__
        raise TypeError(
            f"gradient_flow draws a capture, not {what}. Write `with hookscope.capture(model, gradients=True) as "
            "seen:`, run the model and backward() inside, and pass seen"
        )


def _size(call: Call, what: str) -> dict[str, float]:
    """Summarize one call: mean and max of the absolute values, percentage of zeros, counts of NaN and inf; or {}."""
    try:
        value = getattr(call, {"output": "stats", "grad": "grad_stats"}[what] if call.stats_only else what)
    except NotCapturedError:
        return {}
    found: list[Stats] = []

    def note(item: Any) -> Any:
        found.append(compute_stats(item) if isinstance(item, Tensor) else item)
        return item

    tree_map(note, value, Stats if call.stats_only else Tensor)
    if not found:
        return {}
    known = [(s, max(1, _count(s))) for s in found if not math.isnan(s.zeros)]
    finite = [(s, max(1, count - s.nan - s.inf)) for s, count in known if not math.isnan(s.mean_abs)]
    size: dict[str, float] = {"NaN": sum(s.nan for s, _ in known), "inf": sum(s.inf for s, _ in known)}
    # How many numbers a nested tensor has does not stand in its shape.
    if known and all(isinstance(side, int) for s, _ in known for side in s.shape):
        size["zeros"] = 100 * sum(s.zeros for s, _ in known) / sum(count for _, count in known)
    if finite:
        size["mean"] = sum(s.mean_abs * count for s, count in finite) / sum(count for _, count in finite)
        size["max"] = max(max(abs(s.min), abs(s.max)) for s, _ in finite)
    return size


def _count(stats: Stats) -> int:
    count = 1
    for side in stats.shape:
        count *= side if isinstance(side, int) else 1
    return count


def _draw(calls: tuple[Call, ...], sizes: dict[str, list[dict[str, float]]]) -> Any:
    with optional_import("gradient_flow"):
        from matplotlib.figure import Figure
    each = -(-len(calls) // _COLUMNS)
    columns = -(-len(calls) // each)
    figure = Figure(figsize=(min(3 + 0.28 * columns, 16), 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    for offset, (of, series) in zip((-0.12, 0.12), sizes.items(), strict=True):
        color, marker = _LOOKS[of]
        series = [_together(series[i : i + each]) for i in range(0, len(calls), each)] if each > 1 else series
        shown = [(i + offset, size) for i, size in enumerate(series) if size.get("mean")]
        if shown:
            at, means = [i for i, _ in shown], [size["mean"] for _, size in shown]
            above.vlines(at, means, [size["max"] for _, size in shown], color=color, alpha=0.5)
            above.plot(at, means, linestyle="", marker=marker, color=color, label=f"{of}: mean, line up to max")
        zeros = [(i + offset, size["zeros"]) for i, size in enumerate(series) if "zeros" in size]
        # Not bar(), which makes an object of each.
        below.vlines([i for i, _ in zeros], 0, [share for _, share in zeros], color=color, linewidth=_width(columns))
    above.set_yscale("log")
    above.set_ylabel("absolute value")
    if above.get_legend_handles_labels()[0]:
        # Beside each other the entries need the width of ten columns; a narrower figure has them below each other.
        figure.legend(loc="outside upper right", ncols=2 if columns >= 10 else 1, frameon=False)
    above.grid(axis="y", color="0.9")
    below.set_ylabel("% zeros")
    below.set_ylim(0, 100)
    marks = range(0, columns, -(-columns // _LABELS))  # more labels would not be legible
    labels = [shorten(calls[i * each].label, _LONG) for i in marks]
    below.set_xticks(marks, labels, rotation=90, fontsize=8, parse_math=False)
    if len(marks) < len(calls):
        what = f"each column shows {each} calls, and " if each > 1 else ""
        below.set_xlabel(f"shortened: {what}one column in {marks.step} is labeled with its first call")
    below.set_xlim(-0.6, columns - 0.4)
    return figure


def _together(sizes: list[dict[str, float]]) -> dict[str, float]:
    """Summarize the calls of one column."""
    column: dict[str, float] = {}
    for what, sum_up in (("mean", fmean), ("max", max), ("zeros", fmean)):
        if values := [size[what] for size in sizes if size.get(what) is not None]:
            column[what] = sum_up(values)
    return column


def _width(columns: int) -> float:
    """Return the width of a bar in points: a quarter of a column."""
    return max(0.5, 0.25 * 72 * min(0.28, 13 / columns))


def _in_words(calls: tuple[Call, ...], sizes: dict[str, list[dict[str, float]]]) -> str:
    parts = []
    for of, series in sizes.items():
        means = [(size["mean"], call.label) for size, call in zip(series, calls, strict=True) if size.get("mean")]
        if means:
            (low, where_low), (high, where_high) = min(means), max(means)
            parts.append(f"mean absolute {of} from {low:.3g} ({where_low}) to {high:.3g} ({where_high})")
        dead = [call.label for size, call in zip(series, calls, strict=True) if size.get("zeros") == 100]
        if dead:
            parts.append(f"{of} all zeros at {', '.join(dead[:5])}{' and others' if len(dead) > 5 else ''}")
    return f"Sizes in {len(calls)} calls, in call order: {'; '.join(parts) or 'no numbers'}."
