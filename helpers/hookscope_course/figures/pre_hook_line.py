"""Draw a sequence of pre-hooks: what each of them gets, and how the call ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookscope.pictures.colors import FORWARD, HOOK, MUTED, WRONG
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["draw_pre_hooks"]

PreHook = Callable[[nn.Module, Any], Any]
_STEP = 1.75  # from one box to the next


class _Line(NamedTuple):
    """One call: the hooks in the order in which they ran, the values before each and after the last, and the end."""

    hooks: list[str]
    values: list[str]
    end: str
    is_stopped: bool


def draw_pre_hooks(model: nn.Module, image: Tensor, *orders: Sequence[PreHook]) -> Picture:
    """Call a model once for each order of pre-hooks, and draw what each hook gets, a line for each call.

    Args:
        model: returns scores of shape (1, classes).
        image: what it is called with.
        *orders: the pre-hooks of each call, in the order in which they run.

    Example:
        >>> from hookscope import samples
        >>> draw_pre_hooks(samples.digit_cnn(), samples.digit(8), [lambda module, args: None]).rows[-1]
        {'call': 1, 'place': 'the network', 'gets': '0 to 1', 'then': 'reads an 8'}

    """
    lines = [_run(model, image, hooks) for hooks in orders]
    rows: list[dict[str, object]] = []
    for number, line in enumerate(lines, start=1):
        places = [*line.hooks, "the network"][: len(line.values)]
        thens = ["goes on"] * (len(places) - 1) + [line.end]
        rows += [
            {"call": number, "place": place, "gets": values, "then": then}
            for place, values, then in zip(places, line.values, thens, strict=True)
        ]
    said = (
        f"Call {number}: "
        + ", ".join(f"{row['place']} gets {row['gets']}" for row in rows if row["call"] == number)
        + f"; {line.end}."
        for number, line in enumerate(lines, start=1)
    )
    alt = f"Pre-hooks in a line before the network. {' '.join(said)}"
    return from_figure(_draw(lines), alt=alt, rows=rows, heading="The numbers in the picture")


def _run(model: nn.Module, image: Tensor, hooks: Sequence[PreHook]) -> _Line:
    values: list[str] = []

    def look(module: nn.Module, args: Any) -> None:
        values.append(f"{args[0].min():g} to {args[0].max():g}".replace("-", "−"))

    with ExitStack() as stack:
        stack.enter_context(model.register_forward_pre_hook(look))
        for hook in hooks:
            stack.enter_context(model.register_forward_pre_hook(hook))
            stack.enter_context(model.register_forward_pre_hook(look))
        try:
            with torch.no_grad():
                read = int(model(image).argmax())
            end, is_stopped = f"reads {'an' if read == 8 else 'a'} {read}", False
        except Exception as error:
            end, is_stopped = type(error).__name__, True
    return _Line([getattr(hook, "__name__", type(hook).__name__) for hook in hooks], values, end, is_stopped)


def _draw(lines: list[_Line]) -> Any:
    from matplotlib.figure import Figure

    wide = _STEP * max(len(line.hooks) for line in lines) + 3.2
    figure = Figure(figsize=(wide, 1.05 * len(lines)), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.7, wide - 0.7), ylim=(-len(lines) + 0.45, 0.6))
    axes.set_axis_off()
    for row, line in enumerate(lines):
        y = -row
        gone = len(line.values) - 1  # how many hooks have let it pass
        last = _STEP * gone + (_STEP / 2 if line.is_stopped else 1.1)
        axes.annotate(
            "", (last, y), (0, y), arrowprops={"arrowstyle": "-|>", "color": FORWARD, "linewidth": 2.2}, zorder=1
        )
        for place, values in enumerate(line.values):
            box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": FORWARD, "linewidth": 1.8}
            axes.text(_STEP * place, y, values, ha="center", va="center", fontsize=11, bbox=box, zorder=3)
        for place, hook in enumerate(line.hooks):
            at, is_met = _STEP * (place + 0.5), place <= gone
            axes.plot([at], [y], "o", markersize=20, color=HOOK if is_met else "white", markeredgecolor=HOOK, zorder=2)
            axes.text(at, y + 0.26, hook, ha="center", va="bottom", fontsize=10.5, color=HOOK, weight="bold")
            if line.is_stopped and place == gone:
                axes.text(at, y, "×", ha="center", va="center", fontsize=17, color="white", weight="bold", zorder=4)
                axes.text(at, y - 0.24, line.end, ha="center", va="top", fontsize=10.5, color=WRONG, weight="bold")
        end = _STEP * len(line.hooks) + 1.15
        words = "never called" if line.is_stopped else line.end
        axes.text(
            end, y, f"the network\n{words}", va="center", fontsize=11, color=MUTED if line.is_stopped else "black"
        )
    return figure
