"""See a sweep as a map, and run the edit of any cell again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets

from hookscope.interp.sweeps import Cell, Sweep
from hookscope.interp.sweeps.cell import CellOutcome
from hookscope.interp.widgets.output_table import Labels, compare_outputs
from hookscope.pictures import Rows
from hookscope.pictures.palette import COOLWARM
from hookscope.pictures.picture import as_text
from hookscope.widgets.base import HookWidget, assets, show_errors

__all__ = ["PatchMap"]

NOT_RUN, NAN, ABOVE, BELOW = -1, -2, -3, -4  # levels of cells without a color; see patch_map.js
_CHOICES = ("layer", "column", "sample", "position")
_MOST_CELLS = 200_000


class PatchMap(HookWidget):
    """Choose a cell of a sweep, and compare the model's output with and without its edit.

    The widget runs the edit of the cell again, alone, and reports if its metric differs from that of the sweep.
    Limits: https://hookscope.github.io/hookscope/limits/patch_map.html

    Args:
        sweep: the result of `hookscope.sweep(...)`.
        vocabulary: a list, dict or function that maps token IDs to words, for a language model.
        classes: the same for the classes of a classifier.
        **chosen: attributes to start with: `layer` and `column` of the cell, `sample` and `position` of the output. The
            default is the cell with the largest change.

    Raises:
        TypeError: `sweep` is not a `Sweep`.
        ValueError: `vocabulary` or `classes` does not fit the output, or the sweep has more than 200,000 cells.
        LayerNotFoundError, IndexError: the cell, the sample or the position does not exist.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.ReLU())
        >>> _ = torch.nn.init.ones_(net[0].weight)
        >>> sweep = hookscope.sweep(
        ...     net, torch.ones(1, 3), layers="*", source="zero", channels=[0, 1], metric=lambda y: y[0, 0]
        ... )
        >>> PatchMap(sweep, layer="1", column=0)
        PatchMap Sequential: 1, channel 0: 0 with the edit, 3 without

    """

    _esm, _css = assets(Path(__file__).with_name("patch_map"))

    layer = traitlets.Unicode().tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    sample = traitlets.Int(0).tag(sync=True)
    position = traitlets.Int(-1).tag(sync=True)
    # The map. It is set only once.
    _kind = traitlets.Unicode().tag(sync=True)
    _layers: Any = traitlets.List().tag(sync=True)
    _columns: Any = traitlets.List().tag(sync=True)  # [index, label, text for screen readers]
    _levels: Any = traitlets.List().tag(sync=True)  # indices into the palette, or one of the levels above
    _texts: Any = traitlets.List().tag(sync=True)
    _palette: Any = traitlets.List().tag(sync=True)
    _scale = traitlets.Unicode().tag(sync=True)
    _about: Any = traitlets.List().tag(sync=True)
    _table: Any = traitlets.List().tag(sync=True)  # the header, then the rows
    # The chosen cell.
    _caption = traitlets.Unicode().tag(sync=True)
    _words = traitlets.Unicode().tag(sync=True)
    _metric: Any = traitlets.List().tag(sync=True)  # [description, number]
    _notes: Any = traitlets.List().tag(sync=True)
    _title = traitlets.Unicode().tag(sync=True)
    _rows: Any = traitlets.List().tag(sync=True)  # the header, then the rows
    _samples = traitlets.Int(1).tag(sync=True)
    _positions = traitlets.Int(0).tag(sync=True)

    def __init__(
        self, sweep: Sweep, *, vocabulary: Labels | None = None, classes: Labels | None = None, **chosen: Any
    ) -> None:
        if not isinstance(sweep, Sweep):
            raise TypeError(
                f"sweep must be a Sweep, not {type(sweep).__name__}. Pass the result of hookscope.sweep(...)"
            )
        if unknown := set(chosen) - set(_CHOICES):
            raise ValueError(
                f"no attribute {unknown.pop()!r}. Choose from {', '.join(_CHOICES[:-1])} and {_CHOICES[-1]}"
            )
        if vocabulary is not None and classes is not None:
            raise ValueError("pass vocabulary= for a language model or classes= for a classifier, not both")
        if sweep.values.numel() > _MOST_CELLS:
            raise ValueError(
                f"the sweep has {sweep.values.numel():,} cells, but PatchMap shows {_MOST_CELLS:,} at most. Sweep "
                f"fewer layers or {sweep.kind}s, or use sweep.picture()"
            )
        self._sweep, self._labels = sweep, (vocabulary, classes)
        self._model = sweep.made.model() if sweep.made is not None else None  # a sweep does not keep its model
        self._is_updating = True
        self.outcome: CellOutcome | None = None
        first = _find_largest_change(sweep)
        self._cell = Cell(sweep, chosen.get("layer", first.layer), chosen.get("column", first.column))
        super().__init__(layer=self._cell.layer, column=self._cell.column)
        self._show_map()
        picture = sweep.picture()
        self.png, self._map_alt, self._map_rows = picture.png, picture.alt, picture.rows
        self._table = _format_table(picture.rows)
        self._run()
        self._is_updating = False
        for name in ("sample", "position"):
            if name in chosen:
                setattr(self, name, chosen[name])

    @property
    def cell(self) -> Cell:
        """The current cell, a `hookscope.interp.sweeps.Cell`."""
        return self._cell

    def close(self) -> None:
        """Remove the widget from the page, and release the model."""
        super().close()
        self._model = self.outcome = None

    def summary(self) -> str:
        """Describe the current cell and the effect of its edit."""
        return f"PatchMap {self._sweep.title}: {self._caption}"

    def numbers(self) -> Rows:
        """List the values of the map, one row per layer."""
        return self._map_rows

    # -- the current choice -------------------------------------------------------------------------------------

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Mapping[str, Any]) -> str:
        return Cell(self._sweep, str(proposal["value"]), self._sweep.columns[0]).layer

    @traitlets.validate("column")
    def _check_column(self, proposal: Mapping[str, Any]) -> int:
        return Cell(self._sweep, self._sweep.layers[0], int(proposal["value"])).column

    @traitlets.validate("sample", "position")
    def _check_number(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        if name == "sample" and not 0 <= value < max(self._samples, 1):
            raise IndexError(f"no sample {value}: the output has {self._samples} samples, counted from 0")
        if name == "position" and not -max(self._positions, 1) <= value < max(self._positions, 1):
            raise IndexError(f"no position {value}: the output has {self._positions} positions, counted from 0")
        return value

    @traitlets.observe("layer", "column")
    def _on_cell(self, change: Mapping[str, Any]) -> None:
        if self._is_updating or (self._cell.layer, self._cell.column) == (self.layer, self.column):
            return
        self._cell = Cell(self._sweep, self.layer, self.column)
        self._show_cell()

    @traitlets.observe("sample", "position")
    @show_errors
    def _on_output(self, change: Mapping[str, Any]) -> None:
        if not self._is_updating:
            with self.hold_sync():
                self._show_output()

    @show_errors
    def _show_cell(self) -> None:
        with self.hold_sync():
            self._run()

    # -- what the page shows ------------------------------------------------------------------------------------

    def _show_map(self) -> None:
        """Send the map to the page."""
        sweep = self._sweep
        colors = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in COOLWARM.tolist()]
        levels, reach = _levels(sweep)
        self._kind, self._layers, self._palette, self._levels = sweep.kind, list(sweep.layers), colors, levels
        self._columns = [list(column) for column in zip(sweep.columns, sweep.names, sweep.spoken, strict=True)]
        self._texts = [[as_text(value) for value in line] for line in sweep.values.tolist()]
        center = sweep.baseline if math.isfinite(sweep.baseline) else 0.0
        self._scale = (
            f"Gray is {as_text(sweep.baseline)}, the metric without an edit. Blue is lower, down to "
            f"{as_text(center - reach)}. Red is higher, up to {as_text(center + reach)}."
        )
        self._about = [f"{sweep.title}: {len(sweep.layers)} layers, each {sweep.change}.", sweep.how, *sweep.notes]

    def _run(self) -> None:
        """Show the cell with its value in the sweep, then run it again. If it cannot run, show the reason."""
        cell = self._cell
        self.outcome = None
        self._title, self._rows = "", []
        self._words, self._notes = cell.words, []
        self._show_metric(cell.value if cell.was_run else None)
        if gone := cell.gone:
            self._notes = [f"{gone[:1].upper()}{gone[1:]}."]
            return
        outcome = cell.run()
        self._notes = [*outcome.notes]
        self._show_metric(cell.value if cell.was_run else None, outcome)
        self.outcome = outcome
        self._show_output()

    def _show_metric(self, value: float | None, outcome: CellOutcome | None = None) -> None:
        """Show the metric, in the sweep and in the new run."""
        cell, sweep = self._cell, self._sweep
        before = sweep.baseline if outcome is None else outcome.baseline
        now = value if outcome is None else outcome.value
        text = "not run, because the sweep was interrupted" if now is None else f"{as_text(now)} with the edit"
        self._caption = f"{cell.name}: {text}, {as_text(before)} without"
        rows = [["without the edit", as_text(before)]]
        rows += [["with the edit", "not run" if now is None else as_text(now)]]
        if now is not None:
            rows += [["change", as_text(now - before)]]
        if sweep.source is not None:
            rows += [["with the source inputs", as_text(sweep.source)]]
        rows += [["in the sweep", "not run" if value is None else as_text(value)]]
        self._metric = rows
        self.alt = f"{self._map_alt} Current cell: {self._caption}."

    def _show_output(self) -> None:
        """Show the output of the model, for the current sample and position."""
        if self.outcome is None:
            return
        shown = compare_outputs(self.outcome.before, self.outcome.after, *self._labels, self.sample, self.position)
        self._title, self._samples, self._positions = shown.title, shown.samples, shown.positions
        self._rows = _format_table(shown.rows)


def _find_largest_change(sweep: Sweep) -> Cell:
    """Return the cell with the largest change; the first if no change is finite."""
    changes = sweep.changes.abs().nan_to_num(nan=-1.0, posinf=-1.0)
    row, column = divmod(int(changes.argmax()), len(sweep.columns))
    return Cell(sweep, sweep.layers[row], sweep.columns[column])


def _format_table(rows: Rows) -> list[list[str]]:
    """Return a table as texts: the header, then the rows."""
    heads = list(rows[0])
    return [heads, *([as_text(row[head]) for head in heads] for row in rows)]


def _levels(sweep: Sweep) -> tuple[list[list[int]], float]:
    """Return an index into the palette for each cell, and the distance of its ends from the baseline."""
    center = sweep.baseline if math.isfinite(sweep.baseline) else 0.0
    changes = sweep.values - center
    finite = changes.isfinite()
    reach = float(changes[finite].abs().max()) if bool(finite.any()) else 0.0
    reach = reach or 1.0
    middle = (len(COOLWARM) - 1) / 2
    levels = (middle * (1 + changes.nan_to_num(0.0, 0.0, 0.0) / reach)).round().long()
    levels[sweep.values.isnan()] = NAN
    levels[sweep.values == torch.inf] = ABOVE
    levels[sweep.values == -torch.inf] = BELOW
    if sweep.undone is not None:
        levels[sweep.undone] = NOT_RUN
    rows: list[list[int]] = levels.tolist()
    return rows, reach
