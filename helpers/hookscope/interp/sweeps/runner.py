"""Run the variants of a sweep: in batches where that is right, else each alone, with plain hooks."""

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
from hookscope.interp.sweeps.outputs import BatchMismatchError, BatchOutput, measure_gap, to_number
from hookscope.interp.sweeps.passes import Patch, register_patches
from hookscope.interp.sweeps.replays import replaying
from hookscope.interp.sweeps.sites import Columns, Site
from hookscope.preserve import preserve_rng_state

__all__ = ["CellRunner", "Variant"]

_FEW, _MANY = 16, 64  # variants in a batch: fewer leave the processor waiting, more gain nothing


@dataclass(eq=False, slots=True)
class Variant:
    """One cell of a sweep.

    Attributes:
        place: where something is changed.
        number: the position, head or channel there.
        index: where that is in the tensor.
        cell: row and column in the table of values.

    """

    place: Site
    number: int
    index: tuple[Any, ...]
    cell: tuple[int, int]


class CellRunner:
    """How the cells of a sweep are computed, and what is to be said about that.

    Args:
        study: what is known of the model.
        columns: what is changed of each layer.
        new: what takes the place of the tensor at each place.
        metric: makes a number of what the model returns.
        baseline: that number with nothing changed.
        scale: what differences of that number are measured against, at least.
        advance: is told of every number of cells done.

    Attributes:
        notes: what there is to know.
        checked: how many cells of a batch were compared with plain hooks.
        largest: the largest difference found, as a share of the scale.
        batches: how many cells there were in each batch.
        skipped: whether layers before the change were left out.
        numbers: those of the cells that have been computed, of a batch all at once.
        idle: how many cells were not run, since what they put there is there already, bit for bit.

    """

    def __init__(
        self,
        study: Baseline,
        columns: Columns,
        new: dict[Site, Tensor],
        metric: Callable[[Any], Any],
        baseline: float,
        scale: float,
        advance: Callable[[int], None],
    ) -> None:
        self._study, self._columns, self._new, self._metric = study, columns, new, metric
        self._baseline, self._scale, self._advance = baseline, scale, advance
        self.notes: list[str] = []
        self.idle = 0
        self._start(())

    def _start(self, idle: Collection[Variant]) -> None:
        self.checked, self.largest, self.skipped = 0, 0.0, False
        self.batches: list[int] = []
        self.numbers: dict[tuple[int, int], float] = {variant.cell: self._baseline for variant in idle}
        self._advance(len(idle))

    def run(self, variants: Sequence[Variant], check: int, room: int) -> None:
        """Compute all cells.

        Args:
            variants: the cells.
            check: how many of them are compared with plain hooks at least.
            room: how many may be in one batch, so that memory suffices.

        """
        study = self._study
        if study.alone:
            self.notes.append(f"{study.alone}, so each cell was run alone, with plain hooks")
        elif len(variants) > check and room > 2:
            idle = self._find_noops(variants)
            if idle and (other := self._check_noops({variant.place for variant in idle})):
                self.notes.append(f"to put in what is there already {other}: so such cells were run like all others")
                idle = set()
            self.idle = len(idle)
            variants = [variant for variant in variants if variant not in idle]
            self._start(idle)
            if len(variants) > check and self._try_batches(variants, idle, check, room):
                return
        for variant in variants:
            self.numbers[variant.cell] = self.run_alone(variant)[0]
            self._advance(1)

    def _try_batches(self, variants: Sequence[Variant], idle: Collection[Variant], check: int, room: int) -> bool:
        """Compute all cells in batches, if that gives what plain hooks give; say why if not."""
        study = self._study
        ordered = sorted(variants, key=lambda variant: study.times[variant.place])
        gap = (len(ordered) - 1) / max(check - 1, 1)
        chosen = {ordered[round(number * gap)] for number in range(check)}
        can_skip = any(study.replays.before(time) for time in study.times.values())
        if why := study.find_mixing():
            self.notes.append(f"in a batch, {why}: so this was not done")
        for skip in () if why else (True, False) if can_skip else (False,):
            try:
                self._run_batches(ordered, chosen, room, skip)
            except BatchMismatchError as error:
                how = "in a batch without the layers before the change" if skip else "in a batch"
                self.notes.append(f"{how}, {error}: so this was not done")
                self._advance(-1)
                self._start(idle)
            else:
                return True
        each = f"each of the {len(variants)} cells that were run" if idle else "each cell"
        self.notes.append(f"{each} was run alone, with plain hooks")
        return False

    def _find_noops(self, variants: Sequence[Variant]) -> set[Variant]:
        """Find the cells that put in what is there already: where prompts begin alike, that is most of them."""
        idle: set[Variant] = set()
        for place, group in groupby(variants, lambda variant: variant.place):
            same = _compare_bits(self._new[place], self._study.tensors[place])
            if same is not None and bool(same.any()):
                idle.update(variant for variant in group if bool(same[variant.index].all()))
        return idle

    def _check_noops(self, places: Collection[Site]) -> str:
        """Say what is other where copies of what is there already are put in at some places; "" if nothing is.

        A copy takes its place, so whoever writes to it later writes to nothing else, such as what it was a view of.
        """
        study = self._study
        output = self._run_model([Patch(place, Tensor.clone) for place in places])
        number = to_number(self._metric(output))
        if self._measure_gap(number, self._baseline) > study.tolerance:
            return f"gave {number:.6g}, and no change {self._baseline:.6g}"
        gap = measure_gap(output, study.output)
        return f"gave another output than no change, by {gap:.2g} of its largest value" * (gap > study.tolerance)

    # -- one alone ----------------------------------------------------------------------------------------------

    def run_alone(self, variant: Variant) -> tuple[float, Any]:
        """Run one variant by itself, with one hook; return its number and the model's output."""
        place, index = variant.place, variant.index
        new = self._new[place]

        def change(tensor: Tensor) -> Tensor:
            changed = tensor.clone()
            changed[index] = new[index]
            return changed

        patch = Patch(place, change)
        output = self._run_model([patch])
        patch.check_calls(self._study.modules, f"with {self._columns.name(variant.number)} changed")
        return to_number(self._metric(output)), output

    def _run_model(self, patches: Sequence[Patch]) -> Any:
        """Run the model once with plain hooks, and return its output."""
        study = self._study
        model = study.modules.model
        with ExitStack() as stack:
            if study.random:
                stack.enter_context(preserve_rng_state(model, study.inputs.args, study.inputs.kwargs))
            if study.writes:
                stack.enter_context(study.before.preserve())
            with register_patches(patches):
                return study.inputs.run(model)

    # -- many in a batch ----------------------------------------------------------------------------------------

    def _run_batches(self, variants: list[Variant], chosen: set[Variant], room: int, skip: bool) -> None:
        for batch in self._divide(variants, room):
            try:
                shares = self._run_batch(batch, skip)
                numbers = [shares.compute_metric(self._metric, number) for number in range(len(batch))]
            except BatchMismatchError:
                raise
            except Exception as error:
                raise BatchMismatchError(f"{len(batch)} variants raised {summarize_error(error)}") from error
            finite = [abs(number) for number in numbers if math.isfinite(number)]
            self._scale = max([self._scale, *finite])
            for number, variant in enumerate(batch):
                if variant in chosen:
                    self._compare(variant, numbers[number], shares.select(number))
            self.numbers.update(zip((variant.cell for variant in batch), numbers, strict=True))
            self.batches.append(len(batch))
            self._advance(len(batch))
            del shares  # what a batch returned goes before the next one runs

    def _divide(self, variants: list[Variant], room: int) -> list[list[Variant]]:
        """Divide cells into batches: layers that follow each other together, while there are few variants."""
        groups: list[list[Variant]] = []
        places: dict[Site, list[Variant]] = {}
        for variant in variants:
            places.setdefault(variant.place, []).append(variant)
        for same in places.values():
            if groups and len(groups[-1]) < _FEW and len(groups[-1]) + len(same) <= _MANY:
                groups[-1] += same
            else:
                groups.append([*same])
        batches = []
        for group in groups:
            parts = math.ceil(len(group) / min(room, _MANY))
            ends = [len(group) * part // parts for part in range(parts + 1)]
            batches += [group[begin:end] for begin, end in pairwise(ends)]
        return batches

    def _run_batch(self, batch: list[Variant], skip: bool) -> BatchOutput:
        """Run some variants as one batch, from the first layer on that one of them changes."""
        study, count = self._study, len(batch)
        time = min(study.times[variant.place] for variant in batch)
        forwards = study.replays.forwards(time, count) if skip else {}
        self.skipped = self.skipped or bool(forwards)
        places: dict[Site, list[tuple[int, Variant]]] = {}
        for row, variant in enumerate(batch):
            places.setdefault(variant.place, []).append((row, variant))
        patches = [Patch(place, partial(self._patch_rows, place, rows, count)) for place, rows in places.items()]
        with ExitStack() as stack:
            if study.writes:
                stack.enter_context(study.before.preserve())
            stack.enter_context(replaying(forwards))
            stack.enter_context(register_patches(patches))
            output = study.inputs.run(study.modules.model, count)
        for patch in patches:
            if patch.done != 1:
                raise BatchMismatchError(f"layer {patch.place.label!r} was called {patch.done} times")
        return BatchOutput(output, study.whole, count)

    def _patch_rows(self, place: Site, rows: list[tuple[int, Variant]], count: int, tensor: Tensor) -> Tensor:
        new = self._new[place]
        if tensor.shape != (count * len(new), *new.shape[1:]):
            raise BatchMismatchError(f"layer {place.label!r} has shape {tuple(tensor.shape)} in a batch of {count}")
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
        apart = self._measure_gap(number, plain)
        where = f"layer {variant.place.label!r}, {self._columns.name(variant.number)}"
        limit = self._study.tolerance
        if apart > limit:
            raise BatchMismatchError(f"{where} gave {number:.6g}, and with plain hooks {plain:.6g}")
        if (gap := measure_gap(output, alone)) > limit:
            raise BatchMismatchError(
                f"{where} gave another output than with plain hooks, by {gap:.2g} of its largest value"
            )
        self.checked += 1
        self.largest = max(self.largest, apart, gap)

    def _measure_gap(self, number: float, plain: float) -> float:
        """Return by how much two numbers differ, as a share of the scale."""
        if number == plain or (math.isnan(number) and math.isnan(plain)):
            return 0.0
        scale = max(self._scale, abs(plain))
        apart = abs(number - plain) / scale if math.isfinite(scale) and scale else math.inf
        return apart if math.isfinite(apart) else math.inf


def _compare_bits(one: Tensor, other: Tensor) -> Tensor | None:
    """Return where two tensors have the same bits, so that 0 is not -0; None where torch cannot look at them."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size())
    if bits is None or one.dtype != other.dtype or one.shape != other.shape:
        return None
    try:
        return one.view(bits) == other.view(bits)
    except (RuntimeError, NotImplementedError):  # a kind of tensor without
        return None
