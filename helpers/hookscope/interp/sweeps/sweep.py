"""Take what a sweep is header for, check it before the first pass, and run it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.interp.edits.batch_first import as_many
from hookscope.interp.sweeps.baseline import Baseline, collect_tensors
from hookscope.interp.sweeps.options import ColumnNumbers, SweepOptions, check_options
from hookscope.interp.sweeps.outputs import to_number
from hookscope.interp.sweeps.passes import Inputs, Source
from hookscope.interp.sweeps.result import RowSite, Sweep, SweepInputs
from hookscope.interp.sweeps.runner import CellRunner, Variant
from hookscope.interp.sweeps.sites import Columns, Site, check_columns, find_sites
from hookscope.layers import Modules, Which, refuse_unhookable
from hookscope.layers.offloaded import is_offloaded
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text
from hookscope.preserve import ModelState, preserve_model, preserve_rng_state
from hookscope.progress import progress_bar
from hookscope.pytree import find_tensors

__all__ = ["sweep"]

_CHECK_ALL = 12
_MAX_BYTES = 1 << 30  # bytes, where nothing is said


def sweep(
    model: nn.Module,
    *args: Any,
    layers: Which | Iterable[Which],
    source: Source | str | tuple[str, Source],
    metric: Callable[[Any], Any],
    kwargs: Mapping[str, Any] | None = None,
    options: SweepOptions | None = None,
    **columns: Unpack[ColumnNumbers],
) -> Sweep:
    """Change one place at a time, in every layer and position (or head, or channel), and see what a number does.

    Each cell is the metric of a run in which one place of what one layer returns was replaced: by what the layer
    returns there in a run on `source` (activation patching), by zeros, or by a mean (ablation). Many cells share a
    pass, as samples of one batch. `sweep` runs some of them alone, too, with plain hooks. If the numbers differ, it
    runs every cell alone, and `Sweep.notes` say why. Nothing stays on the model. Limits: docs/limits/sweep.md.

    Args:
        model: the model; it runs without gradients, in `train()` or `eval()` as it is.
        *args: its positional arguments. Samples lie along the first axis; all of them are changed together.
        layers: the rows: names, globs, types or modules, one or a list. `"relu#2"` is the second call of a layer.
        source: other inputs, as a tensor, a tuple in place of `args` or a dict in place of `kwargs`; `"zero"`;
            `"mean"`, over the samples of the inputs; or `("mean", others)`, over the samples of other inputs.
        metric: gets what the model returns, and returns a real number or a tensor with one element.
        kwargs: keyword arguments of the model, as ``{"attention_mask": mask}``.
        options: a `SweepOptions`; `part`, `axis`, `tokens` and `max_bytes` are in it.
        **columns: `positions=`, `heads=` or `channels=`; without one of these, each layer is changed as a whole.

    Returns:
        A `Sweep`: `values` (layers, columns), the `baseline`, a table and a heat map.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())
        >>> _ = nn.init.ones_(net[0].weight)
        >>> sweep(net, torch.ones(1, 3), layers="0", source="zero", channels=[0, 1], metric=lambda y: y[0, 0]).values
        tensor([[0., 3.]], dtype=torch.float64)

    """
    options = check_options(options, columns)
    names = ColumnNumbers.__annotations__
    run = Inputs(args, check_kwargs(sweep, kwargs, [name for name in columns if name not in names], names))
    modules = Modules(model)
    header = check_columns(columns.get("positions"), columns.get("heads"), columns.get("channels"), options.axis)
    places = find_sites(modules, layers, header, options.part)
    named = _check_tokens(options.tokens, header)
    refuse_unhookable(modules, {place.module for place in places}, "sweep")
    held = () if is_offloaded(modules.names) else modules.tensors
    if any(tensor.is_meta for tensor in (*held, *find_tensors((run.args, run.kwargs)))):
        raise ValueError(
            "tensors on the meta device have no values, so no metric could be told; load the weights first"
        )
    patching = _check_source(source, run)
    if not callable(metric):
        raise TypeError(f"metric is a function of what the model returns, not {type(metric).__name__}")
    by_place = header.kind == "position" and header.axis is None
    by_sample = "positions=" if by_place else "the mean" if patching[0] == "mean" else ""
    state = torch.get_rng_state()
    # Not in inference mode, where torch does not count who writes to a tensor.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        preserve_rng_state(model, run.args, run.kwargs),
        _preserve_state(modules, run) as before,
    ):
        with preserve_rng_state(model, run.args, run.kwargs), before.preserve():
            study = Baseline(modules, run, places, before, options.max_bytes, by_sample)
        cells = []
        for row, place in enumerate(places):
            shape = study.tensors[place].shape
            for column, number in enumerate(header.numbers):
                cells.append(Variant(place, number, place.make_index(shape, header, number), (row, column)))
            if named and len(named) != (size := shape[header.axis or 1]):
                given, needed = count_text(len(named), "string"), count_text(size, "position")
                raise ValueError(f"tokens has {given}, but layer {place.label!r} has {needed}")
        baseline = to_number(metric(study.output))
        new, sourced, said = _make_patches(patching, study, places, metric)
        room = study.limit_variants(options.max_bytes or _MAX_BYTES, study.replays.bytes)
        scale = max((abs(number) for number in (baseline, sourced or 0.0) if math.isfinite(number)), default=0.0)
        with progress_bar("sweep", len(cells), "cell", options.progress) as advance:
            runs = CellRunner(study, header, new, metric, baseline, scale, advance)
            runs.notes += [*dict.fromkeys(place.note for place in places if place.note), *study.notes]
            if by_sample:
                square = [as_many(study.tensors[place], run.samples, f"layer {place.label!r}") for place in places]
                runs.notes += [*study.order, *dict.fromkeys(filter(None, square))]
            try:
                runs.run(cells, _count_checks(len(cells)) if options.check is None else options.check, room)
            except KeyboardInterrupt:
                undone = len(cells) - len(runs.numbers)
                runs.notes.append(f"interrupted: {undone} of {len(cells)} cells were not run, and are NaN")
    table = [[(row, column) for column in range(len(header.numbers))] for row in range(len(places))]
    computed = [[runs.numbers.get(cell, math.nan) for cell in row] for row in table]
    values = torch.tensor(computed, dtype=torch.float64, device="cpu")
    left_out = torch.tensor([[cell not in runs.numbers for cell in row] for row in table], device="cpu")
    if bool((values == baseline).all()):
        depends = "no change made any difference to the metric: does it depend on these layers?"
        runs.notes.append(depends + _name_hooked_layers(places))
    return Sweep(
        values, baseline, sourced, tuple(place.label for place in places), header.numbers, header.kind, said,
        type(model).__name__, tuple(runs.batches), runs.skipped, runs.checked, runs.largest, tuple(runs.notes),
        tuple(named[number] for number in header.numbers) if named else (),
        SweepInputs(
            tuple(
                RowSite(place.label, place.name, place.to, place.call, study.ways[place], place.width)
                for place in places
            ),
            header.axis or 1, patching[0], patching[1], metric, study.random, study.writes,
            weakref.ref(model), run, state if study.random else None,
        ),
        left_out if bool(left_out.any()) else None,
        runs.idle,
    )  # fmt: skip


@contextmanager
def _preserve_state(modules: Modules, inputs: Inputs) -> Iterator[ModelState]:
    """Make lazy layers, and put all else back in the end."""
    model = modules.model
    if any(map(is_lazy, modules.tensors)):
        # SweepInputs first: the study would take the random numbers that this draws for those of every pass.
        with preserve_rng_state(model, inputs.args, inputs.kwargs), preserve_model(model, attributes=True):
            inputs.run(model)
    before = ModelState(model, attributes=True)
    with before.preserve():
        yield before


def _name_hooked_layers(places: Sequence[Site]) -> str:
    """Name the layers that have hooks of others, which may keep what a metric reads: "" without any."""
    hooked = [place.label for place in places if place.to == "output" and place.module._forward_hooks]
    if not hooked:
        return ""
    others = f" and {count_text(len(hooked) - 1, 'other')}" if hooked[1:] else ""
    return (
        f" {hooked[0]!r}{others} had forward hooks before the sweep, such as transformers puts on for hidden_states; "
        "what these keep is from before the change"
    )


def _count_checks(cells: int) -> int:
    """Return how many cells are compared where nobody says: all where a batch would save nothing."""
    return cells if cells <= _CHECK_ALL else max(4, cells // 50)


def _check_tokens(tokens: Any, columns: Columns) -> tuple[str, ...]:
    """Check tokens; without any, there are none."""
    if tokens is None:
        return ()
    if columns.kind != "position":
        raise ValueError("tokens= goes with positions=, which it names")
    named = check_tokens(tokens)
    if wrong := [number for number in columns.numbers if not -len(named) <= number < len(named)]:
        raise ValueError(
            f"tokens has {len(named)} strings, and none for position {wrong[0]}: give one for each token of a sample"
        )
    return named


def _check_source(source: Any, run: Inputs) -> tuple[str, Inputs | None]:
    """Check where patches come from: another run, zeros, or a mean, over other samples if there are any."""
    if isinstance(source, str) or (isinstance(source, tuple) and source and isinstance(source[0], str)):
        if source in ("zero", "mean"):
            return source, None
        if isinstance(source, tuple) and len(source) == 2 and source[0] == "mean":
            return "mean", run.replace(source[1], "the second item of source=('mean', …)")
        raise ValueError(f"source={source!r}: give inputs of a run, 'zero', 'mean', or ('mean', inputs)")
    return "run", run.replace(source, "source", "'zero', 'mean', ('mean', inputs), ")


def _make_patches(
    patching: tuple[str, Inputs | None], study: Baseline, places: list[Site], metric: Callable[[Any], Any]
) -> tuple[dict[Site, Tensor], float | None, str]:
    """Return what takes the place of each tensor, the metric of the source, and what happens, in words."""
    kind, inputs = patching
    model = study.modules.model
    if kind == "zero":
        return {place: torch.zeros_like(tensor) for place, tensor in study.tensors.items()}, None, "set to zero"
    other, output = study.tensors, study.output
    if inputs is not None:
        with preserve_rng_state(model, inputs.args, inputs.kwargs), study.before.preserve():
            other, _, output = collect_tensors(study.modules, inputs, places, "in the run on source")
    if kind == "run":
        for place, tensor in study.tensors.items():
            if other[place].shape != tensor.shape:
                raise ValueError(
                    f"layer {place.label!r} has shape {tuple(other[place].shape)} in the run on source, and "
                    f"{tuple(tensor.shape)} in that on inputs: give a source of the same shape as inputs"
                )
        return other, to_number(metric(output)), "patched from the source"
    means = {}
    for place, tensor in study.tensors.items():
        samples = other[place]
        if not tensor.is_floating_point() or not tensor.dim() or samples.shape[1:] != tensor.shape[1:]:
            raise ValueError(
                f"layer {place.label!r}: no mean over samples of shape {tuple(samples.shape)} and dtype "
                f"{samples.dtype} can take the place of shape {tuple(tensor.shape)}"
            )
        if (rows := (inputs or study.inputs).samples) and len(samples) != rows:
            raise ValueError(
                f"layer {place.label!r} has shape {tuple(samples.shape)}, and {rows} samples went in: its first axis "
                "is not that of samples, over which 'mean' takes the mean"
            )
        if len(samples) < 2:
            raise ValueError(
                "the mean over one sample is that sample, and changes nothing: give source=('mean', others) with "
                "several samples, or 'zero'"
            )
        means[place] = samples.mean(0, keepdim=True).expand_as(tensor).clone()
    return means, None, "set to its mean over samples"
