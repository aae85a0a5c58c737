"""Run one cell of a sweep with `hookscope.edit`, and describe its edit in words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import capture
from hookscope.interp.edits import edit
from hookscope.interp.edits.nested_values import get
from hookscope.interp.sweeps.outputs import relative_gap, to_number
from hookscope.interp.sweeps.passes import Inputs
from hookscope.interp.sweeps.result import RowSite, Sweep, SweepInputs
from hookscope.layers.suggestions import not_found
from hookscope.pictures.picture import as_text
from hookscope.preserve import preserve_model, preserve_rng_state

__all__ = ["Cell", "CellOutcome"]

_TOLERANCE = 1e-5  # of the scale: larger differences are not rounding
_SAVED = (
    "this sweep was saved or copied, which drops the model, its inputs and the metric. Run the sweep again to run a "
    "cell"
)
_FREED = "the model of this sweep was freed, because no variable holds it. Keep it in a variable, and sweep again"


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """The model's outputs with the edit of one cell and without it, computed by `Cell.run`.

    Attributes:
        before: the output without a change.
        after: the output with the edit.
        baseline: the metric of `before`.
        value: the metric of `after`.
        notes: how these numbers differ from those of the sweep, if they do.

    """

    before: Any
    after: Any
    baseline: float
    value: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _EditCall:
    """The call of a method of `Edit`: its name, the value, the index, and the keyword arguments."""

    verb: str
    value: Any
    at: Any
    options: dict[str, Any]


class Cell:
    """One cell of a sweep.

    Args:
        found: the result of `sweep`.
        layer: the name of a row.
        column: a position, head or channel of the sweep; 0 if whole layers were changed.

    Attributes:
        sweep, layer, column: as given.
        at: row and column in `Sweep.values`.

    Raises:
        LayerNotFoundError: the sweep has no such row; names the nearest.
        IndexError: it has no such column.

    Example:
        >>> from hookscope import sweep
        >>> net = nn.Linear(3, 2, bias=False)
        >>> _ = nn.init.ones_(net.weight)
        >>> found = sweep(net, torch.ones(1, 3), layers="", source="zero", channels=[0, 1], metric=torch.sum)
        >>> cell = Cell(found, "(root)", 1)
        >>> print(cell.words)
        Channel 1 of the output of (root) is set to zero.
        >>> outcome = cell.run()
        >>> outcome.before, outcome.after, outcome.value
        (tensor([[3., 3.]]), tensor([[3., 0.]]), 3.0)

    """

    def __init__(self, found: Sweep, layer: str, column: int = 0) -> None:
        if layer not in found.layers:
            raise not_found(found.layers, layer, f"no layer {layer!r} in this sweep")
        if column not in found.columns:
            some = ", ".join(map(str, found.columns[:8])) + (", …" if len(found.columns) > 8 else "")
            raise IndexError(f"no {found.kind} {column!r} in this sweep. Pass one of {some}")
        self.sweep, self.layer, self.column = found, layer, column
        self.at = (found.layers.index(layer), found.columns.index(column))

    # -- what the sweep has ------------------------------------------------------------------------------------

    @property
    def value(self) -> float:
        """The metric in the sweep; NaN if the cell was not run."""
        return float(self.sweep.values[self.at])

    @property
    def was_run(self) -> bool:
        """Whether the sweep ran this cell; False if an interrupt came first."""
        return self.sweep.undone is None or not bool(self.sweep.undone[self.at])

    @property
    def name(self) -> str:
        """The name of the cell, such as "h.1, position 3 'cat'"."""
        if self.sweep.kind == "layer":
            return self.layer
        return f"{self.layer}, {self.sweep.kind} {self.sweep.spoken[self.at[1]]}"

    @property
    def words(self) -> str:
        """The edit, in a sentence."""
        found, number = self.sweep, self.sweep.spoken[self.at[1]]
        axis = "" if found.made is None or found.made.axis == 1 else f" (axis {found.made.axis})"
        what = {
            "layer": f"The output of {self.layer}",
            "position": f"Position {number}{axis} of the output of {self.layer}",
            "channel": f"Channel {number}{axis} of the output of {self.layer}",
            "head": f"The output of head {number} of {self.layer}",
        }[found.kind]
        return f"{what} is {found.change}."

    # -- the edit -----------------------------------------------------------------------------------------------

    @property
    def gone(self) -> str:
        """The reason why the cell cannot be run, and what to do; "" if it can."""
        if self.sweep.made is None:
            return _SAVED
        return "" if self.sweep.made.model() is not None else _FREED

    @property
    def made(self) -> SweepInputs:
        """The inputs of the sweep.

        Raises:
            ValueError: the sweep was pickled.

        """
        if self.sweep.made is None:
            raise ValueError(self.gone)
        return self.sweep.made

    @property
    def row(self) -> RowSite:
        """The site of the tensor."""
        return self.made.rows[self.at[0]]

    @property
    def model(self) -> nn.Module:
        """The model of the sweep.

        Raises:
            ValueError: it was freed, or the sweep was pickled.

        """
        if (model := self.made.model()) is None:
            raise ValueError(self.gone)
        return model

    @property
    def index(self) -> Any:
        """The index of the changed values in the tensor; an ellipsis for all."""
        if self.sweep.kind == "layer":
            return ...
        if self.sweep.kind == "head":
            return (..., slice(self.column * self.row.width, (self.column + 1) * self.row.width))
        return (*[slice(None)] * self.made.axis, self.column)

    @property
    def _edit_name(self) -> str:
        """The layer's name for `edit`: the attention layer if a sweep changes heads."""
        label, call = self.row.label, self.row.call
        name = label if call is None else label.removesuffix(f"#{call}")
        return "" if name == "(root)" else name

    # -- run it -------------------------------------------------------------------------------------------------

    def run(self) -> CellOutcome:
        """Run the model without the edit and with it, through `hookscope.edit`, and compare the numbers with the sweep.

        Weights, buffers, modes and random number generators keep their state.

        Raises:
            ValueError: the model was freed, or the sweep was pickled.
            NotEditedError: the edit did not happen; says why.

        """
        made = self.made
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            # Such as that a fused path is switched off. The notes say whether the numbers differ.
            warnings.filterwarnings("ignore", "hookscope: ")
            before = self._run_model(made.given)
            call = self._make_edit()
            with edit(self.model) as edited:
                getattr(edited, call.verb)(self._edit_name, call.value, call.at, **call.options)
                after = self._run_model(made.given)
            baseline, changed = to_number(made.metric(before)), to_number(made.metric(after))
        return CellOutcome(before, after, baseline, changed, tuple(self._note_differences(baseline, changed)))

    def _make_edit(self) -> _EditCall:
        """Run the source if there is one, and return the edit."""
        made, row = self.made, self.row
        at = ... if self.sweep.kind in ("layer", "head") else self.index
        options: dict[str, Any] = {}
        if self.sweep.kind == "head":
            options["heads"] = self.column
        elif row.way:
            keys = tuple(key for _, key in row.way)
            options["part"] = keys[0] if len(keys) == 1 else keys
        if row.call is not None:
            options["calls"] = row.call
        if made.source == "zero":
            return _EditCall("set", 0, at, options)
        if made.inputs is None:
            return _EditCall("mean", None, at, options)
        if row.to == "heads":  # a capture does not see these heads
            value = self._run_source_heads(made.inputs, options)
            return _EditCall("set", value.mean(0, keepdim=True) if made.source == "mean" else value, at, options)
        with capture(self.model, row.layer, inputs=row.to == "input") as seen:
            self._run_model(made.inputs)
        if made.source == "run":
            return _EditCall("swap", seen, at, options)
        if row.call is None:
            return _EditCall("mean", seen, at, options)
        # edit.mean averages all calls of a capture.
        call = seen[row.layer].calls[row.call - 1]
        values: Any = call.output if row.to == "output" else {**dict(enumerate(call.args)), **call.kwargs}
        tensor: Tensor = get(values, tuple(key for _, key in row.way))
        return _EditCall("set", tensor.mean(0, keepdim=True)[self.index], at, options)

    def _run_source_heads(self, inputs: Inputs, options: dict[str, Any]) -> Tensor:
        """Run the source, and return the values that the edit would change."""
        kept: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor)
            return tensor

        with edit(self.model) as looking:
            looking.map(self._edit_name, keep, **options)
            self._run_model(inputs)
        return kept[0]

    def _run_model(self, inputs: Inputs) -> Any:
        with self._preserve_state(inputs):
            return inputs.run(self.model)

    @contextmanager
    def _preserve_state(self, inputs: Inputs) -> Iterator[None]:
        """Begin with the random numbers of the sweep, and restore everything afterward."""
        model, state = self.model, self.made.state
        with preserve_rng_state(model, inputs.args, inputs.kwargs), preserve_model(model, attributes=True):
            if state is not None:
                torch.set_rng_state(state)
            yield

    def _note_differences(self, baseline: float, value: float) -> Iterator[str]:
        """Say how the numbers differ from those of the sweep."""
        found = self.sweep
        known = [abs(number) for number in (found.baseline, found.source or 0.0) if math.isfinite(number)]
        scale = max([*known, *found.values[found.values.isfinite()].abs().tolist(), 0.0])
        if (gap := relative_gap(baseline, found.baseline, scale)) > _TOLERANCE:
            yield (
                f"Without a change the model now gives {as_text(baseline)}; in the sweep it gave "
                f"{as_text(found.baseline)}, {_describe_gap(gap)}. Its weights, mode, hooks or inputs have changed "
                "since the sweep. Run the sweep again."
            )
        if not self.was_run:
            yield "The sweep was interrupted before this cell, so its number was computed just now."
        elif (gap := relative_gap(value, self.value, scale)) > _TOLERANCE:
            yield (
                f"This edit now gives {as_text(value)}; in the sweep the cell has {as_text(self.value)}, "
                f"{_describe_gap(gap)}."
            )


def _describe_gap(gap: float) -> str:
    return "which is not rounding" if math.isinf(gap) else f"a gap of {gap:.1g} of the largest value in the sweep"
