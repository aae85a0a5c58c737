"""Take one cell of a sweep: the edit that makes it, in words and as a line, and what comes of it when it is run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import capture
from hookscope.explanations.code import index_text
from hookscope.interp.edits import edit
from hookscope.interp.edits.parts import get
from hookscope.interp.sweeps.outputs import to_number
from hookscope.interp.sweeps.passes import Inputs
from hookscope.interp.sweeps.result import RowSite, Sweep, SweepInputs
from hookscope.layers.suggestions import not_found
from hookscope.pictures.picture import as_text
from hookscope.preserve import preserve_model, preserve_rng_state

__all__ = ["Cell", "Outcome"]

_LIMIT = 1e-5  # of the scale: what rounding may do to a number
_SAVED = (
    "this sweep was saved or copied, and that keeps neither the model, nor its inputs, nor the metric: run the sweep "
    "again for outputs and lines"
)
_LOOK = ("kept = []", "", "", "def look(tensor):", "    kept.append(tensor)", "    return tensor", "", "")
_FREED = "the model of this sweep is gone, since nothing else held it: keep it in a variable, and run the sweep again"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model does with the edit of one cell, and without it, run just now.

    Attributes:
        before: what the model returns with nothing changed.
        after: what it returns with the edit.
        baseline: the metric of `before`.
        value: the metric of `after`.
        notes: where these numbers are not those of the sweep, and by how much.

    """

    before: Any
    after: Any
    baseline: float
    value: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _EditCall:
    """A call of a method of `Edit`: its name, the value as it is written, and the options."""

    verb: str
    value: str
    at: Any
    options: dict[str, Any] = field(default_factory=dict)


class Cell:
    """One cell of a sweep.

    Args:
        found: what `sweep` returned.
        layer: the name of a row.
        column: a position, head or channel of the sweep; 0 where whole layers were changed.

    Attributes:
        sweep, layer, column: as given.
        at: row and column in `Sweep.values`.

    Raises:
        LayerNotFoundError: the sweep has no such row; names the nearest.
        IndexError: it has no such column.

    Example:
        >>> from hookscope import sweep
        >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())
        >>> _ = nn.init.ones_(net[0].weight)
        >>> found = sweep(net, torch.ones(1, 3), layers="0", source="zero", channels=[0, 1], metric=torch.sum)
        >>> cell = Cell(found, "0", 1)
        >>> print(cell.words)
        Channel 1 of what layer 0 returns is set to zero.
        >>> print(cell.lines)
        import torch
        from hookscope import at, edit
        <BLANKLINE>
        with torch.no_grad(), edit(model) as e:
            e.set('0', 0, at[:, 1])
            output = model(*inputs)
        >>> outcome = cell.run()
        >>> outcome.before, outcome.after, outcome.value
        (tensor([[3., 3.]]), tensor([[3., 0.]]), 3.0)

    """

    def __init__(self, found: Sweep, layer: str, column: int = 0) -> None:
        if layer not in found.layers:
            raise not_found(found.layers, layer, f"no layer {layer!r} in this sweep")
        if column not in found.columns:
            some = ", ".join(map(str, found.columns[:8])) + (", …" if len(found.columns) > 8 else "")
            raise IndexError(f"no {found.kind} {column!r} in this sweep: it has {some}")
        self.sweep, self.layer, self.column = found, layer, column
        self.at = (found.layers.index(layer), found.columns.index(column))

    # -- what the sweep says of it ------------------------------------------------------------------------------

    @property
    def value(self) -> float:
        """The metric in the sweep; NaN also where it was not run."""
        return float(self.sweep.values[self.at])

    @property
    def was_run(self) -> bool:
        """Whether the sweep came so far before it was interrupted."""
        return self.sweep.undone is None or not bool(self.sweep.undone[self.at])

    @property
    def name(self) -> str:
        """What it is called, as in "h.1, position 3 'cat'"."""
        if self.sweep.kind == "layer":
            return self.layer
        return f"{self.layer}, {self.sweep.kind} {self.sweep.spoken[self.at[1]]}"

    @property
    def words(self) -> str:
        """The edit, in a sentence."""
        found, number = self.sweep, self.sweep.spoken[self.at[1]]
        axis = "" if found.made is None or found.made.axis == 1 else f" (axis {found.made.axis})"
        what = {
            "layer": f"What layer {self.layer} returns",
            "position": f"What layer {self.layer} returns at position {number}{axis}",
            "channel": f"Channel {number}{axis} of what layer {self.layer} returns",
            "head": f"What head {number} of layer {self.layer} hands on",
        }[found.kind]
        return f"{what} is {found.change}."

    # -- the edit -----------------------------------------------------------------------------------------------

    @property
    def gone(self) -> str:
        """What is missing to run it, and the way out; "" if nothing is."""
        if self.sweep.made is None:
            return _SAVED
        return "" if self.sweep.made.model() is not None else _FREED

    @property
    def made(self) -> SweepInputs:
        """What the sweep was made of.

        Raises:
            ValueError: it was pickled.

        """
        if self.sweep.made is None:
            raise ValueError(self.gone)
        return self.sweep.made

    @property
    def row(self) -> RowSite:
        """Where the tensor is that is changed."""
        return self.made.rows[self.at[0]]

    @property
    def model(self) -> nn.Module:
        """The model of the sweep.

        Raises:
            ValueError: it is gone, or the sweep was pickled.

        """
        if (model := self.made.model()) is None:
            raise ValueError(self.gone)
        return model

    @property
    def index(self) -> Any:
        """Which values of the tensor are changed; an ellipsis for all."""
        if self.sweep.kind == "layer":
            return ...
        if self.sweep.kind == "head":
            return (..., slice(self.column * self.row.width, (self.column + 1) * self.row.width))
        return (*[slice(None)] * self.made.axis, self.column)

    @property
    def _edit_name(self) -> str:
        """The layer as `edit` is asked for it: an attention layer where a sweep changes heads."""
        label, call = self.row.label, self.row.call
        name = label if call is None else label.removesuffix(f"#{call}")
        return "" if name == "(root)" else name

    def _make_edit(self) -> _EditCall:
        made, row = self.made, self.row
        options: dict[str, Any] = {}
        inside = row.to == "heads"  # no capture sees what is there
        at = ... if self.sweep.kind in ("layer", "head") else self.index
        if self.sweep.kind == "head":
            options["heads"] = self.column
        elif row.way:
            keys = tuple(key for _, key in row.way)
            options["part"] = keys[0] if len(keys) == 1 else keys
        if row.call is not None:
            options["calls"] = row.call
        if made.source == "zero":
            return _EditCall("set", "0", at, options)
        if inside and made.inputs is not None:
            return _EditCall(
                "set", "kept[0]" + (".mean(0, keepdim=True)" if made.source == "mean" else ""), at, options
            )
        if made.source == "run":
            return _EditCall("swap", "seen", at, options)
        if made.inputs is not None and row.call is not None:  # of a capture, mean takes all calls together
            return _EditCall("set", "mean" + ("" if self.index is ... else index_text(self.index)[2:]), at, options)
        return _EditCall("mean", "None" if made.inputs is None else "seen", at, options)

    @property
    def lines(self) -> str:
        """The lines with `hookscope.edit` that make it, of a `model`, `inputs`, `kwargs`, and `source` if there is one.

        Raises:
            ValueError: the sweep was pickled.

        """
        made, row, step = self.made, self.row, self._make_edit()
        given = [repr(self._edit_name), step.value, *([] if step.at is ... else [index_text(step.at)])]
        if step.verb == "mean" and step.value == "None":
            given = [given[0], *(f"at={text}" for text in given[2:])]
        given += [f"{name}={value!r}" for name, value in step.options.items()]
        looks = made.inputs is not None and row.to != "heads"
        names = ["at"] * (step.at is not ...) + ["capture"] * looks + ["edit"]
        lines = ["import torch", f"from hookscope import {', '.join(names)}", ""]
        if made.inputs is not None and not looks:
            options = "".join(f", {name}={value!r}" for name, value in step.options.items())
            lines += [
                *_LOOK,
                "with torch.no_grad(), edit(model) as looking:",
                f"    looking.map({self._edit_name!r}, look{options})",
                f"    model({made.source_written})",
            ]
        elif made.inputs is not None:
            inputs = ", inputs=True" if row.to == "input" else ""
            lines += [
                f"with torch.no_grad(), capture(model, {row.layer!r}{inputs}) as seen:",
                f"    model({made.source_written})",
            ]
        if step.value.startswith("mean"):
            lines += [f"mean = {self._write_path()}.mean(0, keepdim=True)"]
        return "\n".join(
            [
                *lines,
                "with torch.no_grad(), edit(model) as e:",
                f"    e.{step.verb}({', '.join(given)})",
                f"    output = model({made.given.written()})",
            ]
        )

    def _write_path(self) -> str:
        """Write how one gets from a capture to the tensor of the call that is meant."""
        row, keys = self.row, self.row.way
        text = f"seen[{row.layer!r}].calls[{(row.call or 1) - 1}]."
        text += "output" if row.to == "output" else "kwargs" if isinstance(keys[0][1], str) else "args"
        return text + "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in keys)

    # -- run it -------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the model without the edit and with it, by `hookscope.edit`, and hold both against the sweep.

        Weights, buffers, modes and random numbers stay as they are.

        Raises:
            ValueError: the model is gone, or the sweep was pickled.
            NotEditedError: the edit did not come about; says why.

        """
        made, row, model, step = self.made, self.row, self.model, self._make_edit()
        seen: Any = None
        kept: list[Tensor] = []

        def look(tensor: Tensor) -> Tensor:
            kept.append(tensor)
            return tensor

        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            # Such as that a fused path is switched off: by how much the numbers are others is said below.
            warnings.filterwarnings("ignore", "hookscope: ")
            before = self._run_model(made.given)
            if made.inputs is not None and row.to == "heads":
                with edit(model) as looking:
                    looking.map(self._edit_name, look, **step.options)
                    self._run_model(made.inputs)
            elif made.inputs is not None:
                with capture(model, row.layer, inputs=row.to == "input") as seen:
                    self._run_model(made.inputs)
            value: Any = {"seen": seen, "0": 0, "None": None}.get(step.value)
            if kept:
                value = kept[0].mean(0, keepdim=True) if made.source == "mean" else kept[0]
            elif step.value.startswith("mean"):
                call = seen[row.layer].calls[(row.call or 1) - 1]
                held = call.output if row.to == "output" else {**dict(enumerate(call.args)), **call.kwargs}
                tensor: Tensor = get(held, tuple(key for _, key in row.way))
                value = tensor.mean(0, keepdim=True)[self.index]
            with edit(model) as edited:
                getattr(edited, step.verb)(self._edit_name, value, step.at, **step.options)
                after = self._run_model(made.given)
            baseline, changed = to_number(made.metric(before)), to_number(made.metric(after))
        return Outcome(before, after, baseline, changed, tuple(self._note_differences(baseline, changed)))

    def _run_model(self, inputs: Inputs) -> Any:
        with self._preserve_state(inputs):
            return inputs.run(self.model)

    @contextmanager
    def _preserve_state(self, inputs: Inputs) -> Iterator[None]:
        """Leave all as it is, and begin with the random numbers of the sweep."""
        model, state = self.model, self.made.state
        with preserve_rng_state(model, inputs.args, inputs.kwargs), preserve_model(model, attributes=True):
            if state is not None:
                torch.set_rng_state(state)
            yield

    def _note_differences(self, baseline: float, value: float) -> Iterator[str]:
        """Say where numbers of now are not those of the sweep."""
        found = self.sweep
        known = [abs(number) for number in (found.baseline, found.source or 0.0) if math.isfinite(number)]
        finite = found.values[found.values.isfinite()].abs()
        scale = max([*known, *([float(finite.max())] if len(finite) else []), 0.0])
        if (apart := _measure_gap(baseline, found.baseline, scale)) > _LIMIT:
            yield (
                f"With no change the model now gives {as_text(baseline)}, and gave {as_text(found.baseline)} in the "
                f"sweep, {_describe_gap(apart)}: its weights, its mode, its hooks or the inputs are others since."
            )
        if not self.was_run:
            yield "The sweep was interrupted before this cell: what stands here was run just now."
        elif (apart := _measure_gap(value, self.value, scale)) > _LIMIT:
            yield (
                f"Run just now, this edit gives {as_text(value)}, and in the sweep the cell has "
                f"{as_text(self.value)}, {_describe_gap(apart)}."
            )


def _measure_gap(one: float, other: float, scale: float) -> float:
    """Return by how much two numbers differ, as a share of a scale."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    apart = abs(one - other) / scale if scale else math.inf
    return apart if math.isfinite(apart) else math.inf


def _describe_gap(apart: float) -> str:
    return "and that is no rounding" if math.isinf(apart) else f"apart by {apart:.1g} of the largest value in the sweep"
