"""What calling a module does, in the lines of torch's own source that matter."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import torch
import traitlets
from torch import Tensor, nn

from hookscope.pictures.colors import FORWARD, FRAME, HOOK, INK, LINE, MUTED
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import open_axes

__all__ = ["CallSource"]

_LONGEST = 46  # characters of a line of source


class Double(nn.Module):
    """The module that is called: returns twice its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 2 * x."""
        return 2 * x


class _Step(NamedTuple):
    """A line of source: how to find it, what is beside it, and what is said when it runs."""

    part: str
    note: str
    kind: str
    said: str = ""


_SOURCE = (
    _Step(
        "if not (self._backward_hooks",
        "Is no hook registered at all?",
        "plain",
        "double(x) runs _call_impl. Here it checks whether any hooks are registered. There are two, so it goes on.",
    ),
    _Step("return forward_call(*args, **kwargs)", "Then run forward, and that is all.", "plain"),
    _Step(
        "args_result = hook(self, args)",
        "Otherwise call each pre-hook, with 2 arguments.",
        "hook",
        "The pre-hook is called with two arguments: the module, and args, which is (3,).",
    ),
    _Step(
        "result = forward_call(*args, **kwargs)",
        "Run your forward.",
        "plain",
        "forward_call is your forward. It gets the 3.",
    ),
    _Step(
        "return 2 * x",
        "Your forward: double.forward(x) runs only this line.",
        "own",
        "Your forward makes 6 out of 3.",
    ),
    _Step(
        "hook_result = hook(self, args, result)",
        "Call each forward hook, with 3 arguments.",
        "hook",
        "The forward hook is called with three arguments: the module, args, and the result, 6.",
    ),
    _Step("return result", "Give the result to the caller.", "plain", "The caller gets 6."),
)
_OWN = next(at for at, step in enumerate(_SOURCE) if step.kind == "own")
_DIRECT = (
    "double.forward(x) goes straight to your forward. No line of _call_impl runs, so no hook is called. "
    "The caller gets 6 all the same."
)


class CallSource(LazyFigure):
    """Step through what `double(x)` runs and what `double.forward(x)` runs.

    The lines are read from the installed torch, and each has a note beside it. The lines that run are lit, in order.

    Attributes:
        way: ``"call"`` for `double(x)`, ``"forward"`` for `double.forward(x)`.
        step: how many of its lines have run; a number that is too large means all.

    Raises:
        LookupError: this torch has no such line.

    Example:
        >>> CallSource().way
        'call'

    """

    _esm, _css = assets(Path(__file__).with_suffix(""))
    replay = Replay.alone("way", "step")

    way = traitlets.Enum(["call", "forward"], "call").tag(sync=True)
    step = traitlets.Int(1, min=1).tag(sync=True)
    _lines: Any = traitlets.List().tag(sync=True)
    _ways: Any = traitlets.Dict().tag(sync=True)

    def __init__(self) -> None:
        called = [[at, step.said] for at, step in enumerate(_SOURCE) if step.said]
        super().__init__(
            _lines=_find_lines(),
            _ways={
                "call": {"title": "double(x)", "steps": called},
                "forward": {"title": "double.forward(x)", "steps": [[_OWN, _DIRECT]]},
            },
        )
        noted = [line for line, step in zip(self._lines, _SOURCE, strict=True) if step.said]
        self.alt = (
            "Lines of torch's source, each with a note. double(x) runs these, in this order: "
            + "; ".join(f"{line['code']} ({line['note']})" for line in noted)
            + f". {_DIRECT}"
        )

    def summary(self) -> str:
        """Say what the figure shows."""
        return "What double(x) runs: the lines of torch's source that matter"

    def numbers(self) -> Rows:
        """List the lines, and which of them run in each way."""
        return [
            {
                "line": line["number"] or "yours",
                "source": line["code"],
                "what it does": line["note"],
                "double(x)": "runs" if step.said else "",
                "double.forward(x)": "runs" if step.kind == "own" else "",
            }
            for line, step in zip(self._lines, _SOURCE, strict=True)
        ]

    def _still(self) -> bytes:
        return _draw(self._lines, self.alt)


def _find_lines() -> list[dict[str, Any]]:
    """Find the lines in the source, with their numbers in torch's file."""
    source, first = inspect.getsourcelines(nn.Module._call_impl)
    found = []
    for step in _SOURCE:
        if step.kind == "own":
            found.append({"number": 0, "code": step.part, "note": step.note, "kind": step.kind})
            continue
        at = next((at for at, line in enumerate(source) if line.strip().startswith(step.part)), None)
        if at is None:
            raise LookupError(
                f"torch {torch.__version__} has no line {step.part!r} in nn.Module._call_impl. "
                "The figure was made for torch 2.8 to 2.15: install one of these to see it"
            )
        code = source[at].partition("  #")[0].strip()
        if len(code) > _LONGEST:
            code = f"{code[:_LONGEST].rpartition(' or ')[0]} or …"
        found.append({"number": first + at, "code": code, "note": step.note, "kind": step.kind})
    return found


def _draw(lines: list[dict[str, Any]], alt: str) -> bytes:
    from matplotlib.patches import Circle, Rectangle

    figure, axes = open_axes((96, 42), 10, dpi=110)
    axes.text(2, 3, "double(x) runs _call_impl, torch/nn/modules/module.py", fontsize=10.5, weight="bold", va="center")
    axes.add_patch(Rectangle((1, 5.5), 94, 35.5, facecolor=FRAME, edgecolor=LINE))
    for at, (line, step) in enumerate(zip(lines, _SOURCE, strict=True)):
        y = 8.5 + 4.95 * at
        if step.kind == "own":
            axes.add_patch(Rectangle((8, y - 2.1), 86, 4.2, facecolor="white", edgecolor=FORWARD, linewidth=2))
        if step.kind == "hook":
            axes.add_patch(Circle((3.4, y), 1, color=HOOK))
        ink = INK if step.said else MUTED
        if line["number"]:
            axes.text(8.6, y, line["number"], fontsize=8.5, color=MUTED, ha="right", va="center")
        axes.text(10, y, line["code"], fontsize=10, family="monospace", color=ink, va="center")
        axes.text(53.5, y, line["note"], fontsize=10, color=ink, va="center")
    return from_figure(figure, alt).png
