"""Take what a sweep is asked for, check it before the first pass, and run it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.captures.options import check_bytes
from hookscope.interp.edits.batch_first import as_many
from hookscope.interp.edits.parts import Part
from hookscope.interp.sweeps.outputs import number_of
from hookscope.interp.sweeps.passes import Inputs
from hookscope.interp.sweeps.places import Columns, Place, columns_from, places_from
from hookscope.interp.sweeps.result import Made, Row, Sweep
from hookscope.interp.sweeps.runs import Runs, Variant
from hookscope.interp.sweeps.study import Study, tensors_at
from hookscope.layers import Modules, Which, refuse_unhookable
from hookscope.layers.offloaded import is_offloaded
from hookscope.pictures.tokens import checked_tokens
from hookscope.pictures.words import counted
from hookscope.preserve import ModelState, preserve_model, preserve_rng_state
from hookscope.progress import check_progress, progress_bar
from hookscope.pytree import find_tensors

__all__ = ["sweep"]

_DOZEN = 12
_ROOM = 1 << 30  # bytes, where nothing is said
_INPUTS = "a tensor, a tuple of positional arguments, or a dict of keyword arguments"

_Given = Tensor | tuple[Any, ...] | Mapping[str, Any]


def sweep(
    model: nn.Module,
    inputs: _Given,
    layers: Which | Iterable[Which],
    source: _Given | str,
    *,
    metric: Callable[[Any], Any],
    positions: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    channels: int | Iterable[int] | None = None,
    axis: int | None = None,
    part: Part | Mapping[Which, Part] | None = None,
    tokens: Iterable[str] | None = None,
    check: int | None = None,
    max_bytes: int | None = None,
    progress: bool = True,
) -> Sweep:
    """Change one place at a time, every layer and position (or head, or channel), and see what a number does.

    Each cell is one run on `inputs` in which what one layer returns is replaced at one position by what the layer
    returns there in a run on `source` (activation patching), by zeros, or by a mean (ablation). Nothing else is
    changed, and nothing stays on the model: hooks, buffers, what its modules have in plain attributes, and random
    numbers are as before, also after an interrupt. Lazy layers alone are made, as by any first pass.

    That would be one pass for each cell. Many cells share a pass as samples of one batch, and layers that have returned
    before the change are left out: they return again what they returned. What comes after the change runs for each
    cell: with a large vocabulary, the head of a language model is most of the work. A cell that puts in what is
    there already, bit for bit, as where two prompts begin alike, is not run: its number is that with no change, if
    one pass in which all their layers have copies of what is there gives that. Whether all this is right for this
    model is not assumed. Before the cells, three variants share one pass that is watched: Python must not read a value
    that the change reaches, as an early exit does, and no tensor that it reaches may be made of all samples together,
    such as a maximum of the batch. Then some cells of every sweep are run alone, too, with one plain hook, and number
    and output compared. Where they differ by more than 1e-5 of their scale (in half precision: by 4 eps), where samples
    are not independent, where what the model returns has no tensors to divide among them, where a pass draws random
    numbers or changes buffers, each cell is run alone, and `Sweep.notes` say so. Each begins with the buffers and
    attributes that the model had; one that gives something else every time all the same is refused. What is not seen:
    code that looks at how many samples there are, or keeps something for later layers, in such a way that all cells
    compared are right and another is not; a larger `check` makes that less
    likely. Once transformers' own hooks are on, for good, from the first pass that is asked for `hidden_states`, a
    metric of these sees them before the change: plain hooks come after those, too.

    Passes run under `torch.no_grad()`, in the modes (`eval()`, `train()`) in which the model is. Meanwhile no other
    thread may run it.

    Args:
        model: the model.
        inputs: what it is run on: a tensor, a tuple of positional arguments, or a dict of keyword arguments. Samples
            lie along the first axis; all of them are changed together. Each pass gets copies; an object without any
            attributes is not copied, nor what Python cannot copy.
        layers: names, globs, types or modules as `find_layers` takes them, one or a list; the rows, in this order. A
            layer that is called several times is asked for by call: `"relu#2"`.
        source: where the patches come from: other inputs of the same shape; `"zero"`; `"mean"`, the mean over the
            samples of `inputs`; or `("mean", others)`, the mean over the samples of others.
        metric: gets what the model returns for `inputs`, with one place changed, and returns a real number, or a tensor
            with one element.
        positions: which positions: axis 1 of (batch, positions, features). Layers that say that they take tokens before
            samples are refused.
        heads: which heads of attention layers, in what goes into their output projection, as `edit` takes them.
        channels: which channels: axis 1 of (batch, channels) or (batch, channels, height, width). Without any of the
            three, each layer is changed as a whole.
        axis: along which axis positions or channels count, where it is another one.
        part: which tensor, where layers return several: an index, key or attribute, or a path; where they are unlike,
            a dict from layers to these, such as ``{"transformer.h.*.attn": 0}``, of which the last that names a layer
            counts.
        tokens: with `positions`, a string for each token of one sample; they label the columns.
        check: how many cells of the batches are compared with plain hooks; a sweep of no more cells is run so at all.
            Without it, all are run so if they are no more than a dozen; else two of a hundred are compared, and four at
            least.
        max_bytes: how much memory the tensors of a pass may take, together with those that the sweep keeps. Without it,
            these may be 1 GiB where cells share a pass. It is forecast from what a pass was measured to take at its
            peak, so two passes are made in any case; where one cannot be measured, as with flex attention, a note says
            so. Not counted are what the metric makes, and the pass over more samples for a mean.
        progress: show a progress bar if tqdm is installed and it takes more than a second.

    Returns:
        A `Sweep`: `values` (layers, columns), the `baseline`, a table and a heat map. After a Ctrl-C it has what was
        done until then, NaN elsewhere, and says so.

    Raises:
        LayerNotFoundError: no such layer; names the nearest.
        NotEditedError: a layer was not called, or several times; says why, and names the calls.
        IndexError: a layer has no such position, head or channel; names the axis.
        TypeError: an option of the wrong type; or the metric returned no number.
        ValueError: options contradict each other; there are not as many tokens as positions; the metric returned
            several numbers; the source has another shape; a layer returned several tensors; tokens come before
            samples; there are no values, as on the meta device.
        MemoryError: one run alone takes more than `max_bytes`.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> for layer in net[0], net[2]:
        ...     _ = nn.init.ones_(layer.weight)
        >>> found = sweep(net, torch.ones(1, 3), ["0", "1"], "zero", channels=[0, 1], metric=lambda y: y[0, 0])
        >>> found.values
        tensor([[3., 3.],
                [3., 3.]], dtype=torch.float64)
        >>> found
        Sequential: 2 layers × 2 channels, each set to zero, one at a time
        the metric is 6 with no change
        layer  0  1
        -----  -  -
        0      3  3
        1      3  3
        largest change: -3, to 3 (0, channel 0)
        4 cells, each run alone, with plain hooks

    """
    modules = Modules(model)
    columns = columns_from(positions, heads, channels, axis)
    places = places_from(modules, layers, columns, part)
    named = _named(tokens, columns)
    refuse_unhookable(modules, {place.module for place in places}, "sweep")
    run = Inputs.of(inputs, "inputs")
    held = () if is_offloaded(modules.names) else modules.tensors
    if any(tensor.is_meta for tensor in (*held, *find_tensors((run.args, run.kwargs)))):
        raise ValueError(
            "tensors on the meta device have no values, so no metric could be told; load the weights first"
        )
    patching = _source(source)
    if not callable(metric):
        raise TypeError(f"metric is a function of what the model returns, not {type(metric).__name__}")
    if check is not None and (not isinstance(check, int) or isinstance(check, bool) or check < 1):
        raise ValueError(f"check={check!r}: give how many cells are compared with plain hooks, at least 1")
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes, 1)
    check_progress(progress)
    by_place = columns.kind == "position" and columns.axis is None
    by_sample = "positions=" if by_place else "the mean" if patching[0] == "mean" else ""
    state = torch.get_rng_state()
    # Not in inference mode, where torch does not count who writes to a tensor.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        preserve_rng_state(model, run.args, run.kwargs),
        _put_back(modules, run) as before,
    ):
        with preserve_rng_state(model, run.args, run.kwargs), before.preserve():
            study = Study(modules, run, places, before, max_bytes, by_sample)
        cells = []
        for row, place in enumerate(places):
            shape = study.tensors[place].shape
            for column, number in enumerate(columns.numbers):
                cells.append(Variant(place, number, place.index(shape, columns, number), (row, column)))
            if named and len(named) != (size := shape[columns.axis or 1]):
                given, needed = counted(len(named), "string"), counted(size, "position")
                raise ValueError(f"tokens has {given}, but layer {place.label!r} has {needed}")
        baseline = number_of(metric(study.output))
        new, sourced, said = _new(patching, study, places, metric)
        room = study.variants(max_bytes or _ROOM, study.replays.bytes)
        scale = max((abs(number) for number in (baseline, sourced or 0.0) if math.isfinite(number)), default=0.0)
        with progress_bar("sweep", len(cells), "cell", progress) as advance:
            runs = Runs(study, columns, new, metric, baseline, scale, advance)
            runs.notes += [*dict.fromkeys(place.note for place in places if place.note), *study.notes]
            if by_sample:
                square = [as_many(study.tensors[place], run.samples, f"layer {place.label!r}") for place in places]
                runs.notes += [*study.order, *dict.fromkeys(filter(None, square))]
            try:
                runs.all(cells, _usual(len(cells)) if check is None else check, room)
            except KeyboardInterrupt:
                undone = len(cells) - len(runs.numbers)
                runs.notes.append(f"interrupted: {undone} of {len(cells)} cells were not run, and are NaN")
    table = [[(row, column) for column in range(len(columns.numbers))] for row in range(len(places))]
    computed = [[runs.numbers.get(cell, math.nan) for cell in row] for row in table]
    values = torch.tensor(computed, dtype=torch.float64, device="cpu")
    left_out = torch.tensor([[cell not in runs.numbers for cell in row] for row in table], device="cpu")
    if bool((values == baseline).all()):
        depends = "no change made any difference to the metric: does it depend on these layers?"
        runs.notes.append(depends + _seen_before(places))
    return Sweep(
        values, baseline, sourced, tuple(place.label for place in places), columns.numbers, columns.kind, said,
        type(model).__name__, tuple(runs.batches), runs.skipped, runs.checked, runs.largest, tuple(runs.notes),
        tuple(named[number] for number in columns.numbers) if named else (),
        Made(
            tuple(
                Row(place.label, place.name, place.to, place.call, study.ways[place], place.width)
                for place in places
            ),
            columns.axis or 1, patching[0], patching[1], bool(run.kwargs), metric, study.random, study.writes,
            weakref.ref(model), run, state if study.random else None,
        ),
        left_out if bool(left_out.any()) else None,
        runs.idle,
    )  # fmt: skip


@contextmanager
def _put_back(modules: Modules, inputs: Inputs) -> Iterator[ModelState]:
    """Make lazy layers, and put all else back in the end."""
    model = modules.model
    if any(map(is_lazy, modules.tensors)):
        # Made first: the study would take the random numbers that this draws for those of every pass.
        with preserve_rng_state(model, inputs.args, inputs.kwargs), preserve_model(model, attributes=True):
            inputs.run(model)
    before = ModelState(model, attributes=True)
    with before.preserve():
        yield before


def _seen_before(places: Sequence[Place]) -> str:
    """Name the layers that have hooks of others, which may keep what a metric reads: "" without any."""
    hooked = [place.label for place in places if place.to == "output" and place.module._forward_hooks]
    if not hooked:
        return ""
    others = f" and {counted(len(hooked) - 1, 'other')}" if hooked[1:] else ""
    return (
        f" {hooked[0]!r}{others} had forward hooks before the sweep, such as transformers puts on for hidden_states; "
        "what these keep is from before the change"
    )


def _usual(cells: int) -> int:
    """Return how many cells are compared where nobody says: all where a batch would save nothing."""
    return cells if cells <= _DOZEN else max(4, cells // 50)


def _named(tokens: Any, columns: Columns) -> tuple[str, ...]:
    """Check tokens; without any, there are none."""
    if tokens is None:
        return ()
    if columns.kind != "position":
        raise ValueError("tokens= goes with positions=, which it names")
    named = checked_tokens(tokens)
    if wrong := [number for number in columns.numbers if not -len(named) <= number < len(named)]:
        raise ValueError(
            f"tokens has {len(named)} strings, and none for position {wrong[0]}: give one for each token of a sample"
        )
    return named


def _source(source: Any) -> tuple[str, Inputs | None]:
    """Check where patches come from: another run, zeros, or a mean, over other samples if there are any."""
    if isinstance(source, str) or (isinstance(source, tuple) and source and isinstance(source[0], str)):
        if source in ("zero", "mean"):
            return source, None
        if isinstance(source, tuple) and len(source) == 2 and source[0] == "mean":
            return "mean", Inputs.of(source[1], "the second item of source=('mean', …)")
        raise ValueError(f"source={source!r}: give inputs of a run, 'zero', 'mean', or ('mean', inputs)")
    try:
        return "run", Inputs.of(source, "source")
    except TypeError:
        raise TypeError(
            f"source is {_INPUTS}, or 'zero', 'mean', ('mean', inputs), not {type(source).__name__}"
        ) from None


def _new(
    patching: tuple[str, Inputs | None], study: Study, places: list[Place], metric: Callable[[Any], Any]
) -> tuple[dict[Place, Tensor], float | None, str]:
    """Return what takes the place of each tensor, the metric of the source, and what happens, in words."""
    kind, inputs = patching
    model = study.modules.model
    if kind == "zero":
        return {place: torch.zeros_like(tensor) for place, tensor in study.tensors.items()}, None, "set to zero"
    other, output = study.tensors, study.output
    if inputs is not None:
        with preserve_rng_state(model, inputs.args, inputs.kwargs), study.before.preserve():
            other, _, output = tensors_at(study.modules, inputs, places, "in the run on source")
    if kind == "run":
        for place, tensor in study.tensors.items():
            if other[place].shape != tensor.shape:
                raise ValueError(
                    f"layer {place.label!r} has shape {tuple(other[place].shape)} in the run on source, and "
                    f"{tuple(tensor.shape)} in that on inputs: give a source of the same shape as inputs"
                )
        return other, number_of(metric(output)), "patched from the source"
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
