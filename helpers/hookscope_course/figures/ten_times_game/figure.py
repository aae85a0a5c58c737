"""The ten-times table as a game: guess which hook reaches y, x.grad and weight.grad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures.colors import CHANGED
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.playing_map.one_layer import MULTIPLIERS, PLACES, LayerRun, check_kind, run_hooks

__all__ = ["TenTimesGame"]

COLUMNS = ("y", "x.grad", "weight.grad")
_ROWS = ("forward_pre", "forward", "tensor_y", "full_backward_pre", "post_accumulate_grad", "full_backward")
DOES = {
    "forward_pre": "returns (10 * args[0],)",
    "forward": "returns 10 * output",
    "tensor_y": "returns 10 * grad",
    "full_backward_pre": "returns (10 * grad_output[0],)",
    "tensor_weight": "returns 10 * grad",
    "post_accumulate_grad": "weight.grad *= 10, returns None",
    "full_backward": "returns (10 * grad_input[0],)",
    "tensor_x": "returns 10 * grad",
}
"""What the hook in each row does; a post-accumulate-grad hook must return None."""
REASONS = {
    "forward_pre": {
        "y": "forward gets 30 instead of 3, so y is 2 · 30 = 60.",
        "x.grad": "x is multiplied by 10 on its way in, so x.grad is 10 · 2 = 20.",
        "weight.grad": "weight is multiplied by what forward got, which is 30, so weight.grad is 30.",
    },
    "forward": {
        "y": "what a forward hook returns replaces the output, so y is 10 · 6 = 60.",
        "x.grad": "y is now 10 · weight · x, so x.grad is 10 · 2 = 20.",
        "weight.grad": "y is now 10 · weight · x, so weight.grad is 10 · 3 = 30.",
    },
    "tensor_y": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "the gradient of y is 10 instead of 1 when it enters the layer, so x.grad is 10 · 2 = 20.",
        "weight.grad": "the gradient of y is 10 instead of 1 when it enters the layer, so weight.grad is 10 · 3 = 30.",
    },
    "full_backward_pre": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "grad_output is 10 instead of 1 in the layer's backward step, so x.grad is 10 · 2 = 20.",
        "weight.grad": "grad_output is 10 instead of 1 in the layer's backward step, so weight.grad is 10 · 3 = 30.",
    },
    "tensor_weight": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "the hook changes only the gradient of weight, not the gradient of x.",
        "weight.grad": "the hook's 30 is what is added to weight.grad.",
    },
    "post_accumulate_grad": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "the hook changes weight.grad in place, and x.grad is not computed from weight.grad.",
        "weight.grad": "the hook multiplies weight.grad in place, so it is 30.",
    },
    "full_backward": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "the hook replaces grad_input, which is what goes on to x, so x.grad is 10 · 2 = 20.",
        "weight.grad": "the layer makes it from grad_output; the hook replaces grad_input, which goes on to x.",
    },
    "tensor_x": {
        "y": "the hook fires in the backward pass, and y was computed in the forward pass.",
        "x.grad": "the hook's 20 is what is added to x.grad.",
        "weight.grad": "the hook changes only the gradient of x, not the gradient of weight.",
    },
}
"""Why a hook that multiplies by ten changes a value, or why not; true whatever was guessed."""


class TenTimesGame(HookWidget):
    """Guess what each hook reaches: it multiplies by ten, and `y`, `x.grad` or `weight.grad` become ten times as large.

    Click the cells that you think change, row by row, then press Run. Each row is a run of torch with that one hook.
    Below the table stands the reason for each cell of the row; your marks stay. A row without a mark is not counted
    as a guess, because each hook changes at least one value.

    Args:
        kinds: the rows; by default the six that chapter 02 knows. All that can multiply: see `MULTIPLIERS`.

    Attributes:
        marks: for each row, the columns that you think change.
        revealed: the rows that were run. Setting it does what `run` does.

    Raises:
        ValueError: there is no such row or column; or a row that was run is to be marked again.

    Example:
        >>> game = TenTimesGame()
        >>> game.mark("full_backward", "x.grad", "weight.grad")
        >>> print(game.run("full_backward"))
        full backward hook: 2 of 3 cells right.
        weight.grad stays 3: the layer makes it from grad_output; the hook replaces grad_input, which goes on to x.

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("marks", "revealed")

    marks: Any = traitlets.Dict().tag(sync=True)
    revealed: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _rows: Any = traitlets.List().tag(sync=True)  # kind, name, what it does, values, reasons, changes
    _plain: Any = traitlets.List().tag(sync=True)
    _columns: Any = traitlets.List(list(COLUMNS)).tag(sync=True)

    def __init__(self, kinds: str | Iterable[str] | None = None) -> None:
        chosen = _ROWS if kinds is None else (kinds,) if isinstance(kinds, str) else tuple(kinds)
        self._kinds = [check_kind(kind, MULTIPLIERS) for kind in dict.fromkeys(chosen)]
        if not self._kinds:
            raise ValueError("kinds is empty: name a row or more, or leave it out")
        self._plain_values = _ends(run_hooks({}))
        self._values = {kind: _ends(run_hooks({kind: "multiply"})) for kind in self._kinds}
        rows = [
            [
                kind,
                PLACES[kind].name,
                DOES[kind],
                list(self._values[kind].values()),
                list(REASONS[kind].values()),
                [name in self._reached(kind) for name in COLUMNS],
            ]
            for kind in self._kinds
        ]
        super().__init__(_rows=rows, _plain=list(self._plain_values.values()))
        self._draw()
        keep_state(self, "marks", "revealed")

    def mark(self, kind: str, *columns: str) -> None:
        """Say which columns a row changes, instead of what was said before."""
        self.marks = {**self.marks, kind: list(columns)}

    def run(self, *kinds: str) -> str:
        """Reveal these rows, or all of them, and say what was right and why."""
        chosen = [check_kind(kind, self._kinds) for kind in kinds] or self._kinds
        self.revealed = [kind for kind in self._kinds if kind in self.revealed or kind in chosen]
        return "\n".join(self._told(kind) for kind in self._kinds if kind in chosen)

    def start_over(self) -> None:
        """Hide every row again, and take the marks away."""
        with self.hold_trait_notifications():
            self.revealed = []
            self.marks = {}

    @property
    def score(self) -> str:
        """How many of the revealed rows are right in every cell, and how many were not guessed."""
        guessed = [kind for kind in self.revealed if self.marks.get(kind)]
        right = sum(not self._wrong(kind) for kind in guessed)
        left = len(self.revealed) - len(guessed)
        return f"{right} of {len(guessed)} rows" + (f"; {left} not guessed" if left else "")

    def changes(self, kind: str) -> list[str]:
        """Return the columns that a row changes; only once it is revealed."""
        if check_kind(kind, self._kinds) not in self.revealed:
            raise RuntimeError(f"this row is hidden until you have guessed; then call run({kind!r}), or press Run")
        return self._reached(kind)

    def _reached(self, kind: str) -> list[str]:
        return [name for name, value in self._values[kind].items() if value != self._plain_values[name]]

    def _wrong(self, kind: str) -> list[str]:
        marked, reached = self.marks.get(kind, []), self._reached(kind)
        return [name for name in COLUMNS if (name in marked) != (name in reached)]

    def _told(self, kind: str) -> str:
        is_guessed, name = bool(self.marks.get(kind)), PLACES[kind].name
        wrong = self._wrong(kind) if is_guessed else COLUMNS
        if not wrong:
            return f"{name}: right."
        lines = [
            f"{name}: {f'{len(COLUMNS) - len(wrong)} of {len(COLUMNS)} cells right' if is_guessed else 'not guessed'}."
        ]
        for column in wrong:
            becomes = "becomes" if column in self._reached(kind) else "stays"
            lines.append(f"{column} {becomes} {self._values[kind][column]:g}: {REASONS[kind][column]}")
        return "\n".join(lines)

    @traitlets.validate("marks")
    def _check_marks(self, proposal: Mapping[str, Any]) -> dict[str, list[str]]:
        marks = {}
        for kind, columns in proposal["value"].items():
            check_kind(kind, self._kinds)
            for column in columns:
                if column not in COLUMNS:
                    raise ValueError(f"there is no column {column!r}; there are: {', '.join(COLUMNS)}")
            marks[kind] = [name for name in COLUMNS if name in columns]
            if kind in self.revealed and marks[kind] != self.marks.get(kind, []):
                raise ValueError(f"the row {kind!r} has been run, so its marks stay; start_over() begins a new game")
        return marks

    @traitlets.validate("revealed")
    def _check_revealed(self, proposal: Mapping[str, Any]) -> list[str]:
        wanted = {check_kind(kind, self._kinds) for kind in proposal["value"]}
        return [kind for kind in self._kinds if kind in wanted]

    @traitlets.observe("revealed")
    @show_errors
    def _on_change(self, change: Mapping[str, Any]) -> None:
        self._draw()

    def _draw(self) -> None:
        names = ", ".join(PLACES[kind].name for kind in self._kinds)
        begin = f"A table of {len(self._kinds)} hooks, each of which multiplies by ten: {names}."
        if not self.revealed:
            self.alt = f"{begin} Which of y, x.grad and weight.grad does each of them reach?"
        else:
            reached = "; ".join(
                f"the {PLACES[kind].name} changes {' and '.join(self._reached(kind))}" for kind in self.revealed
            )
            self.alt = f"{begin} Run so far: {reached}."
        self.png = self._still()

    def _still(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 0.34 * (len(self._kinds) + 2)), dpi=110)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 6.4), ylim=(len(self._kinds) + 2, 0))
        axes.set_axis_off()
        lines: list[tuple[str, Mapping[str, Any], bool]]
        lines = [("times ten", dict.fromkeys(COLUMNS, ""), False), ("no hook", self._plain_values, True)]
        lines += [(PLACES[kind].name, self._values[kind], kind in self.revealed) for kind in self._kinds]
        for row, (name, values, known) in enumerate(lines):
            axes.axhline(row + 1, color="0.8", linewidth=0.8)
            axes.text(0.1, row + 0.5, name, va="center", fontsize=10, weight="bold" if not row else "normal")
            for place, column in enumerate(COLUMNS):
                value = values[column]
                text = column if not row else f"{value:g}" if known else "?"
                changed = bool(row) and known and value != self._plain_values[column]
                frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": CHANGED, "linewidth": 2.2}
                look: dict[str, Any] = {"bbox": frame} if changed else {}
                axes.text(3.1 + 1.2 * place, row + 0.5, text, va="center", ha="center", fontsize=10, **look)
        return from_figure(figure, self.alt).png

    def numbers(self) -> Rows:
        """List the values without a hook, and with each that was run."""
        rows: list[dict[str, object]] = [{"hook": "no hook", **self._plain_values}]
        for kind in self._kinds:
            known = kind in self.revealed
            rows.append({"hook": PLACES[kind].name, **(self._values[kind] if known else dict.fromkeys(COLUMNS, "?"))})
        return rows

    def summary(self) -> str:
        """Say what was asked, and the score of the rows that were run."""
        if not self.revealed:
            return f"TenTimesGame: {self.alt}"
        return "\n".join([f"TenTimesGame: {self.score}", *(self._told(kind) for kind in self.revealed)])


def _ends(run: LayerRun) -> dict[str, float]:
    return dict(zip(COLUMNS, (run.y, run.x_grad, run.weight_grad), strict=True))
