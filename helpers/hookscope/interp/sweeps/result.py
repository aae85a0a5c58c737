"""Hold the numbers of a sweep, and show them as a table and as a heat map."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookscope.extras import optional_import
from hookscope.interp.sweeps.passes import Inputs
from hookscope.pictures import Picture, Result, Table
from hookscope.pictures.fonts import find_families
from hookscope.pictures.palette import COOLWARM
from hookscope.pictures.picture import as_text, format_notes, from_figure
from hookscope.pictures.tokens import shorten_token
from hookscope.pictures.words import count_text, visible

if TYPE_CHECKING:
    pass

__all__ = ["Sweep"]

_WIDE = 16  # columns of a table that fit a page
_TICKS = 48  # labels on an axis that can be read
_LONG = 32  # letters of a label
_LETTERS = 12  # of a token
_BLACK, _DARK, _PALE = "#000000", "#555555", "#ffffff"


@dataclass(frozen=True, eq=False)
class RowSite:
    """Where the cells of one row are.

    Attributes:
        label: the row's name.
        layer: name of the layer that has the tensor.
        to: "output" or "input" of it; "heads" between the heads and the output projection of an
            `nn.MultiheadAttention`.
        call: which call of it, from 1; None for the only one.
        way: the way from there to the tensor, see `hookscope.interp.edits.parts.keys`.
        width: how many values a head has; 0 without heads.

    """

    label: str
    layer: str
    to: str
    call: int | None
    way: tuple[tuple[str, Any], ...]
    width: int


@dataclass(frozen=True, eq=False)
class SweepInputs:
    """What a sweep was made of.

    Attributes:
        rows: where its rows are.
        axis: along which axis positions or channels count.
        source: "run", "zero" or "mean".
        inputs: what the run was on that patches come from; None for that of the sweep itself.
        metric: the metric.
        random: whether a pass draws random numbers.
        writes: whether a pass changes a buffer, or an attribute of a module.
        model: the model, held weakly: the numbers of a sweep keep no weights in memory.
        given: what the model was run on.
        state: of torch's generator on the CPU, in which each pass began; None if no pass draws random numbers.

    """

    rows: tuple[RowSite, ...]
    axis: int
    source: str
    inputs: Inputs | None
    metric: Callable[[Any], Any]
    random: bool
    writes: bool
    model: weakref.ref[nn.Module]
    given: Inputs
    state: Tensor | None

    @property
    def source_written(self) -> str:
        """What the model is called with in the run that patches come from, as code; "" without such a run."""
        if self.inputs is None:
            return ""
        args = "inputs" if self.inputs.args is self.given.args else "source"
        return self.inputs.written(args, "kwargs" if self.inputs.kwargs is self.given.kwargs else "source")


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """What `sweep` returns: a number for every layer and position (or head, or channel).

    Attributes:
        values: the metric with that one place changed, float64, (layers, columns); NaN where it was not run.
        baseline: the metric with nothing changed.
        source: the metric in the run that the patches come from; None where they come from none.
        layers: names of the rows.
        columns: numbers of the columns, as they were given.
        kind: what the columns are: "position", "head", "channel", or "layer" for whole layers.
        change: in words, what happened to each place.
        title: class name of the model.
        batches: how many cells were run in each batch; empty if each was run alone, with plain hooks.
        skipped: whether layers before the change were left out.
        checked: how many cells of the batches were compared with plain hooks.
        largest_difference: the largest difference found in that, as a share of the scale of the values.
        notes: what else there is to know.
        tokens: a label for each column; empty if there are none.
        made: what it was made of; None after it was pickled, since metrics seldom can be.
        undone: cells that an interrupt left out, bool, (layers, columns); None if there are none.
        idle: how many cells were not run, since they put in what was there already.

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
    skipped: bool
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
        """What the columns are called: their numbers, with tokens where there are any, as in "3 cat"."""
        return self._name_columns("{} {}")

    @property
    def spoken(self) -> tuple[str, ...]:
        """The same within a sentence, as in "3 'cat'"."""
        return self._name_columns("{} {!r}")

    def _name_columns(self, form: str) -> tuple[str, ...]:
        if not self.tokens:
            return tuple(map(str, self.columns))
        shown = (shorten_token(token, _LETTERS) for token in self.tokens)
        return tuple(form.format(number, token) for number, token in zip(self.columns, shown, strict=True))

    @property
    def changes(self) -> Tensor:
        """By how much each value differs from the baseline, (layers, columns)."""
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
        idle = f"; {count_text(self.idle, 'cell')} not run, for what is put in is there already" if self.idle else ""
        if not self.batches:
            alone = f", {'' if run == 1 else 'each '}run alone, with plain hooks" if run else ""
            return f"{cells}{alone}{idle}"
        batches = f"{cells} in {count_text(len(self.batches), 'batch', 'batches')}"
        skipped = ", without the layers before the change" if self.skipped else ""
        apart = "they are equal"
        if self.largest_difference:
            apart = f"they differ by {self.largest_difference:.1g} of the scale at most"
        return f"{batches}{skipped}; {self.checked} of them compared with plain hooks: {apart}{idle}"

    @property
    def _missing(self) -> int:
        return 0 if self.undone is None else int(self.undone.sum())

    def table(self) -> Table:
        """Return the values: a column for each position up to 16, else lowest and highest of each layer."""
        return Table(self._make_rows(), self.caption)

    def picture(self) -> Picture:
        """Draw the values: grey is the baseline, red is above it, blue below.

        Black is what has no finite number; hatched, what an interrupt left out.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # a box is drawn; the table has the token
            return from_figure(self._draw(), self._write_alt(), self.caption, self._make_rows())

    def _make_rows(self) -> list[dict[str, object]]:
        lines = zip(self.layers, self.values.tolist(), strict=True)
        if self.kind == "layer":
            return [{"layer": layer, "value": line[0], "change": line[0] - self.baseline} for layer, line in lines]
        if len(self.columns) <= _WIDE:
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
        """What was changed, and the metric with no change."""
        rows = count_text(len(self.layers), "layer")
        across = "" if self.kind == "layer" else f" × {count_text(len(self.columns), self.kind)}"
        run = "" if self.source is None else f", {as_text(self.source)} in the source"
        head = f"{self.title}: {rows}{across}, each {self.change}, one at a time"
        return f"{head}\nthe metric is {as_text(self.baseline)} with no change{run}"

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
        hatched = f"; {count_text(left, 'cell')} hatched, left out by an interrupt" if left else ""
        black = f"; {count_text(blank, 'cell')} black, without a finite number" if blank else ""
        more = f" and {len(self.names) - _WIDE} more" if len(self.names) > _WIDE else ""
        named = f"; {self.kind}s: {', '.join(self.names[:_WIDE])}{more}" if self.tokens else ""
        return (
            f"Heat map of {rows}{across}: {ends}, around {as_text(self.baseline)} with no change (grey); "
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
        colours = ListedColormap((COOLWARM / 255).tolist()).with_extremes(bad=_BLACK)
        image = axes.imshow(
            values.numpy(),
            cmap=colours,
            vmin=centre - reach,
            vmax=centre + reach,
            aspect="auto",
            interpolation="nearest",
        )
        self._hatch(axes)
        left, below = range(0, rows, -(-rows // _TICKS)), range(0, columns, -(-columns // _TICKS))
        axes.set_yticks(left, [_shorten(self.layers[row]) for row in left], fontsize=8, parse_math=False)
        if self.kind == "layer":
            axes.set_xticks([])
        else:
            turned: dict[str, Any] = {"rotation": 90, "fontfamily": find_families(self.names)} if self.tokens else {}
            axes.set_xticks(below, [self.names[column] for column in below], fontsize=8, parse_math=False, **turned)
            axes.set_xlabel(self.kind)
        axes.set_ylabel("layer")
        bar = figure.colorbar(image, ax=axes)
        bar.set_label(f"metric; grey is {as_text(self.baseline)},\nwith no change")  # a map of few layers is low
        return figure

    def _hatch(self, axes: Any) -> None:
        """Draw what an interrupt left out, cells beside each other as one."""
        from matplotlib.patches import Rectangle

        for row, line in enumerate([] if self.undone is None else self.undone.tolist()):
            start = 0
            for left_out, cells in groupby(line):
                wide = len(list(cells))
                if left_out:
                    look: dict[str, Any] = {"facecolor": _PALE, "edgecolor": _DARK, "hatch": "////", "linewidth": 0}
                    axes.add_patch(Rectangle((start - 0.5, row - 0.5), wide, 1, **look))
                start += wide


def _shorten(label: str) -> str:
    """Leave out the beginning of a long label; the end says more."""
    label = visible(label)
    return label if len(label) <= _LONG else f"…{label[-_LONG:]}"
