"""Run the variants of a sweep in batches and check some of them, or run each alone with a plain hook."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from hookscope.interp.sweeps.baseline import Baseline, summarize_error
from hookscope.interp.sweeps.outputs import BatchMismatchError, BatchOutput, measure_gap, relative_gap, to_number
from hookscope.interp.sweeps.passes import Patch, register_patches
from hookscope.interp.sweeps.sites import Columns, Site
from hookscope.preserve import preserve_rng_state

__all__ = ["CellRunner", "Variant"]

_FEW, _MANY = 16, 64  # variants in a batch: fewer leave the processor waiting, more gain nothing


@dataclass(eq=False, slots=True)
class Variant:
    """The change of one cell.

    Attributes:
        site: the tensor that is changed.
        number: the position, head or channel.
        index: its index in the tensor.
        cell: row and column in the table of values.

    """

    site: Site
    number: int
    index: tuple[Any, ...]
    cell: tuple[int, int]


class CellRunner:
    """Computes the cells of a sweep.

    Args:
        baseline: the first passes of the model.
        columns: the positions, heads or channels.
        new: the replacement of the tensor at each site.
        metric: turns the model's output into a number.
        value: that number without a change.
        scale: differences of that number are measured relative to this, or to something larger.
        advance: called with the number of cells that were finished.

    Attributes:
        notes: notes about the run.
        checked: the number of cells of a batch that were compared with plain hooks.
        largest: the largest difference in these, as a share of the scale.
        batches: the number of cells in each batch.
        numbers: the metric of each finished cell.
        idle: the number of cells that were not run, because their patch equals the original value.

    """

    def __init__(
        self,
        baseline: Baseline,
        columns: Columns,
        new: dict[Site, Tensor],
        metric: Callable[[Any], Any],
        value: float,
        scale: float,
        advance: Callable[[int], None],
    ) -> None:
        self._baseline, self._columns, self._new, self._metric = baseline, columns, new, metric
        self._value, self._scale, self._advance = value, scale, advance
        self.notes: list[str] = []
        self.idle = 0
        self._reset(())

    def _reset(self, noops: Collection[Variant]) -> None:
        self.checked, self.largest = 0, 0.0
        self.batches: list[int] = []
        self.numbers: dict[tuple[int, int], float] = {variant.cell: self._value for variant in noops}
        self._advance(len(noops))

    def run(self, variants: Sequence[Variant], check: int, most: int) -> None:
        """Compute all cells.

        Args:
            variants: the cells.
            check: the number of cells to compare with plain hooks.
            most: the number of variants in a batch that memory allows.

        """
        baseline = self._baseline
        if baseline.alone:
            self.notes.append(f"{baseline.alone}, so each cell was run alone, with plain hooks")
        elif len(variants) > check and most > 2:
            noops = self._find_noops(variants)
            if noops and (effect := self._check_noops({variant.site for variant in noops})):
                self.notes.append(f"patching with an identical value {effect}, so cells that change nothing were run")
                noops = set()
            self.idle = len(noops)
            variants = [variant for variant in variants if variant not in noops]
            self._reset(noops)
            if len(variants) > check and self._try_batches(variants, noops, check, most):
                return
        for variant in variants:
            self.numbers[variant.cell] = self.run_alone(variant)[0]
            self._advance(1)

    def _try_batches(self, variants: Sequence[Variant], noops: Collection[Variant], check: int, most: int) -> bool:
        """Compute all cells in batches and compare some with plain hooks; add a note if that fails."""
        gap = (len(variants) - 1) / max(check - 1, 1)
        chosen = {variants[round(number * gap)] for number in range(check)}
        why = self._baseline.find_mixing()
        if not why:
            try:
                self._run_batches(variants, chosen, most)
            except BatchMismatchError as error:
                why = str(error)
                self._advance(-1)
                self._reset(noops)
            else:
                return True
        each = f"each of the {len(variants)} cells that change something" if noops else "each cell"
        self.notes += [f"cells cannot share a batch: {why}", f"{each} was run alone, with plain hooks"]
        return False

    def _find_noops(self, variants: Sequence[Variant]) -> set[Variant]:
        """Find the cells whose patch equals the original value: most of them, if two prompts begin alike."""
        noops: set[Variant] = set()
        for site, group in groupby(variants, lambda variant: variant.site):
            same = _compare_bits(self._new[site], self._baseline.tensors[site])
            if same is not None and bool(same.any()):
                noops.update(variant for variant in group if bool(same[variant.index].all()))
        return noops

    def _check_noops(self, sites: Collection[Site]) -> str:
        """Put a copy of the same values at each site, and describe the effect; "" if there is none.

        If a layer returned a view, and the model writes to it later, the write no longer reaches the viewed tensor.
        """
        baseline = self._baseline
        output = self._run_model([Patch(site, Tensor.clone) for site in sites])
        number = to_number(self._metric(output))
        if self._measure_gap(number, self._value) > baseline.tolerance:
            return f"changed the metric from {self._value:.6g} to {number:.6g}"
        gap = measure_gap(output, baseline.output)
        return f"changed the output by {gap:.2g} of its largest value" * (gap > baseline.tolerance)

    # -- one alone ----------------------------------------------------------------------------------------------

    def run_alone(self, variant: Variant) -> tuple[float, Any]:
        """Run one variant with one plain hook; return its number and the model's output."""
        site, index = variant.site, variant.index
        new = self._new[site]

        def change(tensor: Tensor) -> Tensor:
            changed = tensor.clone()
            changed[index] = new[index]
            return changed

        patch = Patch(site, change)
        output = self._run_model([patch])
        patch.check_calls(self._baseline.modules, f"with {self._columns.name(variant.number)} changed")
        return to_number(self._metric(output)), output

    def _run_model(self, patches: Sequence[Patch]) -> Any:
        """Run the model once with plain hooks, and return its output."""
        baseline = self._baseline
        model = baseline.modules.model
        with ExitStack() as stack:
            if baseline.random:
                stack.enter_context(preserve_rng_state(model, baseline.inputs.args, baseline.inputs.kwargs))
            if baseline.writes:
                stack.enter_context(baseline.before.preserve())
            with register_patches(patches):
                return baseline.inputs.run(model)

    # -- many in a batch ----------------------------------------------------------------------------------------

    def _run_batches(self, variants: Sequence[Variant], chosen: set[Variant], most: int) -> None:
        for batch in _divide(variants, most):
            try:
                outputs = self._run_batch(batch)
                numbers = [to_number(self._metric(outputs.select(number))) for number in range(len(batch))]
            except BatchMismatchError:
                raise
            except Exception as error:
                raise BatchMismatchError(f"{len(batch)} variants raised {summarize_error(error)}") from error
            finite = [abs(number) for number in numbers if math.isfinite(number)]
            self._scale = max([self._scale, *finite])
            for number, variant in enumerate(batch):
                if variant in chosen:
                    self._compare(variant, numbers[number], outputs.select(number))
            self.numbers.update(zip((variant.cell for variant in batch), numbers, strict=True))
            self.batches.append(len(batch))
            self._advance(len(batch))
            del outputs  # free this batch's output before the next batch runs

    def _run_batch(self, batch: list[Variant]) -> BatchOutput:
        """Run some variants as one batch."""
        baseline, count = self._baseline, len(batch)
        rows: dict[Site, list[tuple[int, Variant]]] = {}
        for row, variant in enumerate(batch):
            rows.setdefault(variant.site, []).append((row, variant))
        patches = [Patch(site, partial(self._patch_rows, site, each, count)) for site, each in rows.items()]
        with ExitStack() as stack:
            if baseline.writes:
                stack.enter_context(baseline.before.preserve())
            stack.enter_context(register_patches(patches))
            output = baseline.inputs.run(baseline.modules.model, count)
        for patch in patches:
            if patch.done != 1:
                raise BatchMismatchError(f"layer {patch.site.label!r} was called {patch.done} times in a batch")
        return BatchOutput(output, baseline.output, count)

    def _patch_rows(self, site: Site, rows: list[tuple[int, Variant]], count: int, tensor: Tensor) -> Tensor:
        new = self._new[site]
        if tensor.shape != (count * len(new), *new.shape[1:]):
            raise BatchMismatchError(f"layer {site.label!r} has shape {tuple(tensor.shape)} in a batch of {count}")
        changed = tensor.clone()
        for row, variant in rows:
            changed[row * len(new) : (row + 1) * len(new)][variant.index] = new[variant.index]
        return changed

    def _compare(self, variant: Variant, number: float, output: Any) -> None:
        """Compare one cell with plain hooks.

        Raises:
            BatchMismatchError: they differ.

        """
        plain, alone = self.run_alone(variant)
        difference = self._measure_gap(number, plain)
        where = f"layer {variant.site.label!r}, {self._columns.name(variant.number)}"
        limit = self._baseline.tolerance
        if difference > limit:
            raise BatchMismatchError(f"{where} gave {number:.6g}, and {plain:.6g} with plain hooks")
        if (gap := measure_gap(output, alone)) > limit:
            raise BatchMismatchError(
                f"{where} gave a different output than with plain hooks, by {gap:.2g} of its largest value"
            )
        self.checked += 1
        self.largest = max(self.largest, difference, gap)

    def _measure_gap(self, number: float, plain: float) -> float:
        return relative_gap(number, plain, max(self._scale, abs(plain)))


def _divide(variants: Sequence[Variant], most: int) -> list[list[Variant]]:
    """Divide cells into batches; rows with few cells share a batch with the next row."""
    groups: list[list[Variant]] = []
    for _, group in groupby(variants, lambda variant: variant.site):
        row = list(group)
        if groups and len(groups[-1]) < _FEW and len(groups[-1]) + len(row) <= _MANY:
            groups[-1] += row
        else:
            groups.append(row)
    batches = []
    for row in groups:
        parts = math.ceil(len(row) / min(most, _MANY))
        ends = [len(row) * part // parts for part in range(parts + 1)]
        batches += [row[begin:end] for begin, end in pairwise(ends)]
    return batches


def _compare_bits(one: Tensor, other: Tensor) -> Tensor | None:
    """Return where two tensors have the same bits, so that 0 differs from -0; None if torch cannot compare them."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size())
    if bits is None or one.dtype != other.dtype or one.shape != other.shape:
        return None
    try:
        return one.view(bits) == other.view(bits)
    except (RuntimeError, NotImplementedError):  # a tensor subclass without views
        return None
