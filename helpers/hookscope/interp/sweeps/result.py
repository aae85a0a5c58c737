"""The numbers of a sweep, as a table and as a heat map."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.extras import optional_import
from hookscope.interp.sweeps.passes import Inputs
from hookscope.pictures import Picture, Result, Table
from hookscope.pictures.colors import MUTED, PAGE
from hookscope.pictures.fonts import find_families
from hookscope.pictures.palette import COOLWARM
from hookscope.pictures.picture import as_text, format_notes, from_figure
from hookscope.pictures.tokens import shorten_token
from hookscope.pictures.words import count_text, visible

__all__ = ["Sweep"]

_MAX_COLUMNS = 16  # of a table on a page
_MAX_TICKS = 48  # labels on an axis
_MAX_LABEL = 32  # characters of a label
_MAX_TOKEN = 12  # characters of a token


@dataclass(frozen=True, eq=False)
class RowSite:
    """The tensor that the cells of one row change.

    Attributes:
        label: the row's name.
        layer: the name of the layer that has the tensor.
        to: "output" or "input" of it; "heads" between the heads and the output projection of an
            `nn.MultiheadAttention`.
        call: which call of it, from 1; None for the only one.
        way: the keys that lead from there to the tensor, see `hookscope.interp.edits.nested_values.keys`.
        width: the number of values in a head; 0 without heads.

    """

    label: str
    layer: str
    to: str
    call: int | None
    way: tuple[tuple[str, Any], ...]
    width: int


@dataclass(frozen=True, eq=False)
class SweepInputs:
    """Everything that is needed to run a cell of a sweep again.

    Attributes:
        rows: the tensor of each row.
        axis: the axis of positions or channels.
        source: "run", "zero" or "mean".
        inputs: the inputs of the run on the source; None if the source is zero, or the mean over the sweep's inputs.
        metric: the metric.
        model: a weak reference to the model, so that a sweep keeps no weights in memory.
        given: the inputs of the sweep.
        state: the state of torch's CPU generator before each pass; None if no pass draws random numbers.

    """

    rows: tuple[RowSite, ...]
    axis: int
    source: str
    inputs: Inputs | None
    metric: Callable[[Any], Any]
    model: weakref.ref[nn.Module]
    given: Inputs
    state: Tensor | None


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """The result of `sweep`: a number for every layer and position, head or channel.

    Attributes:
        values: the metric with one change, float64, (layers, columns); NaN in cells that were not run.
        baseline: the metric without a change.
        source: the metric of the run on the source; None without such a run.
        layers: the names of the rows.
        columns: the numbers of the columns, as given.
        kind: "position", "head" or "channel"; "layer" if whole layers were changed.
        change: the change in words.
        title: the class name of the model.
        batches: the number of cells in each batch; empty if each cell was run alone, with plain hooks.
        checked: the number of cells in batches that were compared with plain hooks.
        largest_difference: the largest difference in these, as a share of the scale of the values.
        notes: notes about the run.
        tokens: a label for each column, or ().
        made: everything needed to run a cell again; None after pickling, because most metrics cannot be pickled.
        undone: the cells that were not run because of an interrupt, bool, (layers, columns); None without any.
        idle: the number of cells that were not run because their patch equals the original value.

    """

    values: Tensor
    baseline: float
    source: float | None
    layers: tuple[str, ...]
    columns: tuple[int, ...]
    kind: str
    change: str
    title: str
    batches: tuple[int, ...]
    checked: int
    largest_difference: float
    notes: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    made: SweepInputs | None = None
    undone: Tensor | None = None
    idle: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": None}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns: their numbers, with tokens if there are any, such as "3 cat"."""
        return self._name_columns("{} {}")

    @property
    def spoken(self) -> tuple[str, ...]:
        """The same for use in a sentence, such as "3 'cat'"."""
        return self._name_columns("{} {!r}")

    def _name_columns(self, form: str) -> tuple[str, ...]:
        if not self.tokens:
            return tuple(map(str, self.columns))
        shown = (shorten_token(token, _MAX_TOKEN) for token in self.tokens)
        return tuple(form.format(number, token) for number, token in zip(self.columns, shown, strict=True))

    @property
    def changes(self) -> Tensor:
        """The difference of each value from the baseline, (layers, columns)."""
        return self.values - self.baseline

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each cell: layer, position (or head, or channel), token if there are any, value, change."""
        return [
            {
                "layer": layer,
                **({} if self.kind == "layer" else {self.kind: column}),
                **({"token": self.tokens[place]} if self.tokens else {}),
                "value": value,
                "change": value - self.baseline,
            }
            for layer, line in zip(self.layers, self.values.tolist(), strict=True)
            for place, (column, value) in enumerate(zip(self.columns, line, strict=True))
        ]

    @property
    def how(self) -> str:
        """How the cells were computed, in a sentence."""
        run = self.values.numel() - self.idle - self._missing
        cells = count_text(run, "cell")
        idle = f"; {count_text(self.idle, 'cell')} not run: the patch equals the original value" if self.idle else ""
        if not self.batches:
            alone = f", {'' if run == 1 else 'each '}run alone, with plain hooks" if run else ""
            return f"{cells}{alone}{idle}"
        batches = f"{cells} in {count_text(len(self.batches), 'batch', 'batches')}"
        gap = (
            f"differ by at most {self.largest_difference:.1g} of the scale" if self.largest_difference else "are equal"
        )
        return f"{batches}; {self.checked} of them compared with plain hooks: they {gap}{idle}"

    @property
    def _missing(self) -> int:
        return 0 if self.undone is None else int(self.undone.sum())

    def table(self) -> Table:
        """Return the values; with more than 16 columns, only the lowest and the highest value of each layer."""
        return Table(self._make_rows(), self.caption)

    def picture(self) -> Picture:
        """Draw the values: gray is the baseline, red is above it, and blue is below it.

        Cells without a finite number are black. Cells that were not run because of an interrupt are hatched.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Glyph .* missing from"
            )  # matplotlib draws a box; the table has the token
            return from_figure(self._draw(), self._write_alt(), self.caption, self._make_rows())

    def _make_rows(self) -> list[dict[str, object]]:
        lines = zip(self.layers, self.values.tolist(), strict=True)
        if self.kind == "layer":
            return [{"layer": layer, "value": line[0], "change": line[0] - self.baseline} for layer, line in lines]
        if len(self.columns) <= _MAX_COLUMNS:
            return [{"layer": layer} | dict(zip(self.names, line, strict=True)) for layer, line in lines]
        rows: list[dict[str, object]] = []
        at: tuple[object, ...] = self.names if self.tokens else self.columns
        for layer, line in lines:
            known = [(value, place) for place, value in enumerate(line) if math.isfinite(value)]
            (low, low_at), (high, high_at) = (
                [(value, at[place]) for value, place in (min(known), max(known))] if known else [(None, None)] * 2
            )
            row: dict[str, object] = {"layer": layer, "lowest": low, "lowest at": low_at}
            rows.append(row | {"highest": high, "highest at": high_at})
        return rows

    @property
    def caption(self) -> str:
        """The caption: the change in each cell, and the metric without a change."""
        rows = count_text(len(self.layers), "layer")
        across = "" if self.kind == "layer" else f" × {count_text(len(self.columns), self.kind)}"
        run = "" if self.source is None else f", {as_text(self.source)} in the source"
        head = f"{self.title}: {rows}{across}, each {self.change}, one at a time"
        return f"{head}\nthe metric is {as_text(self.baseline)} without a change{run}"

    def _describe_largest(self) -> str:
        changes = torch.nan_to_num(self.changes.abs(), nan=-1.0)
        if not changes.numel() or changes.max() < 0:
            return "no cell has a number"
        row, column = divmod(int(changes.argmax()), len(self.columns))
        value = float(self.values[row, column])
        where = self.layers[row] + ("" if self.kind == "layer" else f", {self.kind} {self.spoken[column]}")
        return f"largest change: {as_text(value - self.baseline)}, to {as_text(value)} ({where})"

    def _lines(self) -> list[str]:
        return [visible(self._describe_largest()), self.how, *format_notes(self.notes)]

    def _write_alt(self) -> str:
        shown = self.values[self.values.isfinite()]
        rows = count_text(len(self.layers), "layer")
        across = "" if self.kind == "layer" else f" by {count_text(len(self.columns), self.kind)}"
        ends = (
            f"values from {as_text(float(shown.min()))} to {as_text(float(shown.max()))}" if len(shown) else "no value"
        )
        left = self._missing
        blank = self.values.numel() - len(shown) - left
        hatched = f"; {count_text(left, 'cell')} hatched, not run because of an interrupt" if left else ""
        black = f"; {count_text(blank, 'cell')} black, without a finite number" if blank else ""
        more = f" and {len(self.names) - _MAX_COLUMNS} more" if len(self.names) > _MAX_COLUMNS else ""
        named = f"; {self.kind}s: {', '.join(self.names[:_MAX_COLUMNS])}{more}" if self.tokens else ""
        return (
            f"Heat map of {rows}{across}: {ends}, around {as_text(self.baseline)} without a change (gray); "
            f"{self._describe_largest()}{black}{hatched}{named}."
        )

    def _draw(self) -> Any:
        with optional_import("the heat map of a sweep"):
            from matplotlib.colors import ListedColormap
            from matplotlib.figure import Figure
        rows, columns = self.values.shape
        figure = Figure(figsize=(min(3.5 + 0.3 * columns, 14), min(1.8 + 0.26 * rows, 12)), layout="constrained")
        axes = figure.subplots()
        values = self.values.clone()
        values[~values.isfinite()] = math.nan
        centre = self.baseline if math.isfinite(self.baseline) else 0.0
        reach = float(torch.nan_to_num((values - centre).abs(), nan=0.0).max()) or 1.0
        colours = ListedColormap((COOLWARM / 255).tolist()).with_extremes(bad="black")
        image = axes.imshow(
            values.numpy(),
            cmap=colours,
            vmin=centre - reach,
            vmax=centre + reach,
            aspect="auto",
            interpolation="nearest",
        )
        self._hatch(axes)
        left, below = range(0, rows, -(-rows // _MAX_TICKS)), range(0, columns, -(-columns // _MAX_TICKS))
        axes.set_yticks(left, [_shorten(self.layers[row]) for row in left], fontsize=8, parse_math=False)
        if self.kind == "layer":
            axes.set_xticks([])
        else:
            turned: dict[str, Any] = {"rotation": 90, "fontfamily": find_families(self.names)} if self.tokens else {}
            axes.set_xticks(below, [self.names[column] for column in below], fontsize=8, parse_math=False, **turned)
            axes.set_xlabel(self.kind)
        axes.set_ylabel("layer")
        bar = figure.colorbar(image, ax=axes)
        bar.set_label(
            f"metric after the change\n(gray: {as_text(self.baseline)}, no change)"
        )  # two lines, because a map of few layers is low
        return figure

    def _hatch(self, axes: Any) -> None:
        """Hatch the cells that were not run because of an interrupt."""
        from matplotlib.patches import Rectangle

        look: dict[str, Any] = {"facecolor": PAGE, "edgecolor": MUTED, "hatch": "////", "linewidth": 0}
        for row, column in [] if self.undone is None else self.undone.nonzero().tolist():
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))


def _shorten(label: str) -> str:
    """Cut the beginning of a long label, because the end is more informative."""
    label = visible(label)
    return label if len(label) <= _MAX_LABEL else f"…{label[-_MAX_LABEL:]}"
