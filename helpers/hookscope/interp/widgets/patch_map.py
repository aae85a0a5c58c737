"""See a sweep as a map, choose a cell, and see the edit that makes it, really run, and its plain torch lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets

from hookscope.interp.sweeps import Cell, Sweep
from hookscope.interp.sweeps.cell import Outcome
from hookscope.interp.widgets.output_table import Labels, compare_outputs
from hookscope.interp.widgets.patch_code import write_patch_code
from hookscope.pictures import Rows
from hookscope.pictures.palette import COOLWARM
from hookscope.pictures.picture import as_text
from hookscope.widgets.base import assets, show_errors
from hookscope.widgets.code_panel import CodeWidget, write_or_explain

__all__ = ["PatchMap"]

NOT_RUN, NAN, ABOVE, BELOW = -1, -2, -3, -4  # levels of cells that have no colour of the map; see patch_map.js
_CHOICES = ("layer", "column", "sample", "position")
_MOST_CELLS = 200_000


class PatchMap(CodeWidget):
    """Choose a cell of a sweep, and see its edit and what the model returned before and after.

    The edit of the chosen cell is run by `hookscope.edit`, alone, on the model and the inputs of the sweep, with the
    random numbers of the sweep; so is the model without it. Where what comes out is not what the sweep has, the widget
    says by how much. The lines it shows run as they stand, given `model`, its `inputs` (a tuple) and `kwargs`, and
    `source` (a tuple or a dict). What the sweep no longer has, because it was saved or its model is gone, is said.

    As long as the widget is there, it holds the model; a sweep does not.

    Args:
        found: what `hookscope.sweep(...)` returned.
        vocabulary: words by number, as a list, a dict or a function, for models that return a score for each: the top
            words are shown with their probabilities.
        classes: likewise, names of the classes that a classifier tells apart; without them they are numbers.
        **chosen: traits to begin with, for example ``layer="h.3", column=5``; without any, the cell that changes most.

    Attributes:
        layer: the name of the chosen row.
        column: the chosen position, head or channel, as it was given to `sweep`; 0 where whole layers were changed.
        sample: the sample of the output that is shown.
        position: the position in the output that is shown where it has positions, -1 for the last.
        outcome: what the model returned before and after, an `Outcome` of the sweep; None if it cannot be run.
        lines: the lines with `hookscope.edit` that make the cell.
        code: the plain torch lines that do the same.

    Raises:
        TypeError: `found` is no sweep.
        ValueError: no such trait; `vocabulary` or `classes` do not fit what the model returns; more than 200,000 cells.
        LayerNotFoundError: the sweep has no such layer; names the nearest.
        IndexError: it has no such position, head or channel; the output has no such sample or position.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.ReLU())
        >>> _ = torch.nn.init.ones_(net[0].weight)
        >>> found = hookscope.sweep(
        ...     net, torch.ones(1, 3), layers="*", source="zero", channels=[0, 1], metric=lambda y: y[0, 0]
        ... )
        >>> patches = PatchMap(found, layer="1", column=0)
        >>> patches
        PatchMap Sequential: 1, channel 0: 0 with the edit, 3 without
        >>> patches.outcome.after
        tensor([[0., 3.]])
        >>> print(patches.lines.splitlines()[-2].strip())
        e.set('1', 0, at[:, 0])

    """

    _esm, _css = assets(Path(__file__).with_name("patch_map"))

    layer = traitlets.Unicode().tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    sample = traitlets.Int(0).tag(sync=True)
    position = traitlets.Int(-1).tag(sync=True)
    # The map: written once.
    _kind = traitlets.Unicode().tag(sync=True)
    _layers: Any = traitlets.List().tag(sync=True)
    _columns: Any = traitlets.List().tag(sync=True)  # [number, label]
    _levels: Any = traitlets.List().tag(sync=True)  # places in the palette, or one of the levels above
    _texts: Any = traitlets.List().tag(sync=True)
    _palette: Any = traitlets.List().tag(sync=True)
    _scale = traitlets.Unicode().tag(sync=True)
    _about: Any = traitlets.List().tag(sync=True)
    _table: Any = traitlets.List().tag(sync=True)  # the heads, then the rows, as in the two below
    # The chosen cell.
    _caption = traitlets.Unicode().tag(sync=True)
    _words = traitlets.Unicode().tag(sync=True)
    _metric: Any = traitlets.List().tag(sync=True)  # [what, number]
    _notes: Any = traitlets.List().tag(sync=True)
    _title = traitlets.Unicode().tag(sync=True)
    _rows: Any = traitlets.List().tag(sync=True)  # the heads, then the rows
    _samples = traitlets.Int(1).tag(sync=True)
    _positions = traitlets.Int(0).tag(sync=True)
    lines = traitlets.Unicode(help="the lines with `hookscope.edit` that make the cell").tag(sync=True)

    def __init__(
        self, found: Sweep, *, vocabulary: Labels | None = None, classes: Labels | None = None, **chosen: Any
    ) -> None:
        if not isinstance(found, Sweep):
            raise TypeError(f"give what hookscope.sweep(model, ...) returned, not {type(found).__name__}")
        if unknown := set(chosen) - set(_CHOICES):
            raise ValueError(f"no trait {unknown.pop()!r}; there are {', '.join(_CHOICES[:-1])} and {_CHOICES[-1]}")
        if vocabulary is not None and classes is not None:
            raise ValueError("give vocabulary= for a language model or classes= for a classifier, not both")
        if found.values.numel() > _MOST_CELLS:
            raise ValueError(
                f"{found.values.numel():,} cells are more than a page can hold ({_MOST_CELLS:,}): sweep fewer layers "
                f"or {found.kind}s, or look at found.picture()"
            )
        self._found, self._labels = found, (vocabulary, classes)
        self._model = found.made.model() if found.made is not None else None  # so that it stays
        self._is_updating = True
        self.outcome: Outcome | None = None
        first = _find_largest_change(found)
        self._cell = Cell(found, chosen.get("layer", first.layer), chosen.get("column", first.column))
        super().__init__(layer=self._cell.layer, column=self._cell.column)
        self._show_map()
        picture = found.picture()
        self.png, self._map_alt, self._map_rows = picture.png, picture.alt, picture.rows
        self._table = _format_table(picture.rows)
        self._run()
        self._is_updating = False
        for name in ("sample", "position"):
            if name in chosen:
                setattr(self, name, chosen[name])

    @property
    def cell(self) -> Cell:
        """The chosen cell, a `hookscope.interp.sweeps.Cell`."""
        return self._cell

    def close(self) -> None:
        """Take the widget off the page and let go of the model."""
        super().close()
        self._model = self.outcome = None

    def summary(self) -> str:
        """Say which cell of which sweep is chosen, and what the edit does."""
        return f"PatchMap {self._found.title}: {self._caption}"

    def numbers(self) -> Rows:
        """List the values of the map, a row for each layer."""
        return self._map_rows

    # -- what is chosen -----------------------------------------------------------------------------------------

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Mapping[str, Any]) -> str:
        return Cell(self._found, str(proposal["value"]), self._found.columns[0]).layer

    @traitlets.validate("column")
    def _check_column(self, proposal: Mapping[str, Any]) -> int:
        return Cell(self._found, self._found.layers[0], int(proposal["value"])).column

    @traitlets.validate("sample", "position")
    def _check_number(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        if name == "sample" and not 0 <= value < max(self._samples, 1):
            raise IndexError(f"no sample {value}: the output has {self._samples}, counted from 0")
        if name == "position" and not -max(self._positions, 1) <= value < max(self._positions, 1):
            raise IndexError(f"no position {value}: the output has {self._positions}")
        return value

    @traitlets.observe("layer", "column")
    def _on_cell(self, change: Mapping[str, Any]) -> None:
        if self._is_updating or (self._cell.layer, self._cell.column) == (self.layer, self.column):
            return
        self._cell = Cell(self._found, self.layer, self.column)
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

    # -- what is shown ------------------------------------------------------------------------------------------

    def _show_map(self) -> None:
        """Tell the page about the map."""
        found = self._found
        colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in COOLWARM.tolist()]
        levels, reach = _levels(found)
        self._kind, self._layers, self._palette, self._levels = found.kind, list(found.layers), colours, levels
        self._columns = [list(column) for column in zip(found.columns, found.names, found.spoken, strict=True)]
        self._texts = [[as_text(value) for value in line] for line in found.values.tolist()]
        centre = found.baseline if math.isfinite(found.baseline) else 0.0
        self._scale = (
            f"Grey is {as_text(found.baseline)}, the metric with no change; blue is below, to "
            f"{as_text(centre - reach)}; red is above, to {as_text(centre + reach)}."
        )
        self._about = [f"{found.title}: {len(found.layers)} layers, each {found.change}.", found.how, *found.notes]

    def _run(self) -> None:
        """Say what the sweep knows of the cell, then run it; what cannot be run is said, and nothing old stays."""
        cell, found = self._cell, self._found
        self.outcome = None
        self._title, self._rows, self.lines, self.code = "", [], "", ""
        self._words, self._notes = cell.words, []
        self._show_metric(cell.value if cell.was_run else None)
        if found.made is not None:
            self.lines, self.code = cell.lines, write_or_explain(lambda: write_patch_code(cell))
        if gone := cell.gone:
            self._notes = [f"{gone[:1].upper()}{gone[1:]}."]
            return
        outcome = cell.run()
        self._notes = [*outcome.notes]
        self._show_metric(cell.value if cell.was_run else None, outcome)
        self.outcome = outcome
        self._show_output()

    def _show_metric(self, value: float | None, outcome: Outcome | None = None) -> None:
        """Say the metric: in the sweep, and run just now."""
        cell, found = self._cell, self._found
        before = found.baseline if outcome is None else outcome.baseline
        now = value if outcome is None else outcome.value
        text = "not run: the sweep was interrupted before it" if now is None else f"{as_text(now)} with the edit"
        self._caption = f"{cell.name}: {text}, {as_text(before)} without"
        rows = [["before, with no change", as_text(before)]]
        rows += [["after, with this edit", "not run" if now is None else as_text(now)]]
        if now is not None:
            rows += [["change", as_text(now - before)]]
        if found.source is not None:
            rows += [["in the clean run, as the sweep had it", as_text(found.source)]]
        rows += [["this cell of the sweep", "not run" if value is None else as_text(value)]]
        self._metric = rows
        self.alt = f"{self._map_alt} Chosen: {self._caption}."

    def _show_output(self) -> None:
        """Show what the model returned, of the chosen sample and position."""
        if self.outcome is None:
            return
        shown = compare_outputs(self.outcome.before, self.outcome.after, *self._labels, self.sample, self.position)
        self._title, self._samples, self._positions = shown.title, shown.samples, shown.positions
        self._rows = _format_table(shown.rows)


def _find_largest_change(found: Sweep) -> Cell:
    """Choose the cell that changes most; the first if none has a number."""
    changes = found.changes.abs().nan_to_num(nan=-1.0, posinf=-1.0)
    row, column = divmod(int(changes.argmax()), len(found.columns))
    return Cell(found, found.layers[row], found.columns[column])


def _format_table(rows: Rows) -> list[list[str]]:
    """Write a table as texts: what its columns are called, then its rows."""
    heads = list(rows[0])
    return [heads, *([as_text(row[head]) for head in heads] for row in rows)]


def _levels(found: Sweep) -> tuple[list[list[int]], float]:
    """Return a place in the palette for each cell, and how far its ends are from the baseline, as in the heat map."""
    centre = found.baseline if math.isfinite(found.baseline) else 0.0
    changes = found.values - centre
    finite = changes.isfinite()
    reach = float(changes[finite].abs().max()) if bool(finite.any()) else 0.0
    reach = reach or 1.0
    middle = (len(COOLWARM) - 1) / 2
    levels = (middle * (1 + changes.nan_to_num(0.0, 0.0, 0.0) / reach)).round().long()
    levels[found.values.isnan()] = NAN
    levels[found.values == torch.inf] = ABOVE
    levels[found.values == -torch.inf] = BELOW
    if found.undone is not None:
        levels[found.undone] = NOT_RUN
    rows: list[list[int]] = levels.tolist()
    return rows, reach
