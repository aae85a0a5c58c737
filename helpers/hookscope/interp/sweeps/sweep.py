"""Run a sweep: change one site at a time, and measure the effect on a number."""

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

_CHECK_ALL = 12  # up to so many cells, a batch would save nothing
_MAX_BYTES = 1 << 30  # without a limit of the user


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
    """Change one position, head or channel of one layer at a time, and measure the effect on a number.

    Each cell is the metric of a run in which a part of one layer's output was replaced: by its value in a run on
    `source` (activation patching), by zeros, or by a mean (ablation). Many cells share a pass, as samples of a batch.
    `sweep` also runs some of them alone, with plain hooks. If the results differ, it runs every cell alone, and
    `Sweep.notes` gives the reason. Nothing stays on the model. Limits:
    https://hookscope.github.io/hookscope/limits/sweep.html

    Args:
        model: the model; it runs without gradients, in its current mode, `train()` or `eval()`.
        *args: positional arguments for the model. Axis 0 counts samples; all samples are changed together.
        layers: the rows: names, globs, types or modules, one or a list. `"relu#2"` is the second call of a layer.
        source: other inputs, as a tensor, a tuple (replaces `args`) or a dict (replaces `kwargs`); `"zero"`;
            `"mean"`, over the samples of the inputs; or `("mean", others)`, over the samples of other inputs.
        metric: gets the model's output and returns a real number or a tensor with one element.
        kwargs: keyword arguments for the model, such as ``{"attention_mask": mask}``.
        options: a `SweepOptions`, with `part`, `axis`, `tokens` and `max_bytes`.
        **columns: `positions=`, `heads=` or `channels=`; without one of these, each layer is changed as a whole.

    Returns:
        A `Sweep`: `values` (layers, columns), the `baseline`, a table and a heat map.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())
        >>> _ = nn.init.ones_(net[0].weight)
        >>> sweep(net, torch.ones(1, 3), layers="0", source="zero", channels=[0, 1], metric=lambda y: y[0, 0]).values
        tensor([[0., 3.]], dtype=torch.float64)

    """
    options = check_options(options, columns)
    names = ColumnNumbers.__annotations__
    inputs = Inputs(args, check_kwargs(sweep, kwargs, [name for name in columns if name not in names], names))
    modules = Modules(model)
    header = check_columns(columns.get("positions"), columns.get("heads"), columns.get("channels"), options.axis)
    sites = find_sites(modules, layers, header, options.part)
    tokens = _check_tokens(options.tokens, header)
    refuse_unhookable(modules, {site.module for site in sites}, "sweep")
    held = () if is_offloaded(modules.names) else modules.tensors
    if any(tensor.is_meta for tensor in (*held, *find_tensors((inputs.args, inputs.kwargs)))):
        raise ValueError(
            "tensors on the meta device have no values, so a metric cannot be computed. Load the weights first"
        )
    kind, others = _check_source(source, inputs)
    if isinstance(metric, type) or not callable(metric):
        kind = f"the class {metric.__name__}" if isinstance(metric, type) else f"of type {type(metric).__name__}"
        raise TypeError(f"metric is {kind}. Pass a function of the model's output, such as lambda output: output[0, 5]")
    positions = header.kind == "position" and header.axis is None
    by_sample = "positions=" if positions else "the mean" if kind == "mean" else ""
    rng_state = torch.get_rng_state()
    # Outside inference mode, whose tensors have no version counter.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        preserve_rng_state(model, inputs.args, inputs.kwargs),
        _preserve_state(modules, inputs) as before,
    ):
        with preserve_rng_state(model, inputs.args, inputs.kwargs), before.preserve():
            baseline = Baseline(modules, inputs, sites, before, options.max_bytes, by_sample)
        variants = _make_variants(baseline, header, tokens)
        value = to_number(metric(baseline.output))
        new, source_value, change = _make_patches(kind, others, baseline, metric)
        most = baseline.limit_variants(options.max_bytes or _MAX_BYTES)
        scale = max((abs(number) for number in (value, source_value or 0.0) if math.isfinite(number)), default=0.0)
        with progress_bar("sweep", len(variants), "cell", options.progress) as advance:
            runner = CellRunner(baseline, header, new, metric, value, scale, advance)
            runner.notes += [*dict.fromkeys(site.note for site in sites if site.note), *baseline.notes]
            if by_sample:
                counts = [as_many(baseline.tensors[site], inputs.samples, f"layer {site.label!r}") for site in sites]
                runner.notes += [*baseline.order, *dict.fromkeys(filter(None, counts))]
            try:
                check = _count_checks(len(variants)) if options.check is None else options.check
                runner.run(variants, check, most)
            except KeyboardInterrupt:
                missing = len(variants) - len(runner.numbers)
                runner.notes.append(f"interrupted: {missing} of {len(variants)} cells were not run, and are NaN")
    cells = [[runner.numbers.get((row, column)) for column in range(len(header.numbers))] for row in range(len(sites))]
    table = [[math.nan if number is None else number for number in row] for row in cells]
    values = torch.tensor(table, dtype=torch.float64, device="cpu")
    undone = torch.tensor([[number is None for number in row] for row in cells], device="cpu")
    if bool((values == value).all()):
        runner.notes.append(
            "no change had an effect on the metric. Check that it depends on these layers" + _name_hooked_layers(sites)
        )
    return Sweep(
        values, value, source_value, tuple(site.label for site in sites), header.numbers, header.kind, change,
        type(model).__name__, tuple(runner.batches), runner.checked, runner.largest, tuple(runner.notes),
        tuple(tokens[number] for number in header.numbers) if tokens else (),
        SweepInputs(
            tuple(
                RowSite(site.label, site.name, site.to, site.call, baseline.ways[site], site.width)
                for site in sites
            ),
            header.axis or 1, kind, others, metric,
            weakref.ref(model), inputs, rng_state if baseline.random else None,
        ),
        undone if bool(undone.any()) else None,
        runner.idle,
    )  # fmt: skip


@contextmanager
def _preserve_state(modules: Modules, inputs: Inputs) -> Iterator[ModelState]:
    """Initialize lazy layers, and restore the model's state at the end of the block."""
    model = modules.model
    if any(map(is_lazy, modules.tensors)):
        # Before the baseline, which would take these random numbers for those of every pass.
        with preserve_rng_state(model, inputs.args, inputs.kwargs), preserve_model(model, attributes=True):
            inputs.run(model)
    before = ModelState(model, attributes=True)
    with before.preserve():
        yield before


def _name_hooked_layers(sites: Sequence[Site]) -> str:
    """Name the layers with forward hooks of others, because a metric can read their values; "" without any."""
    hooked = [site.label for site in sites if site.to == "output" and site.module._forward_hooks]
    if not hooked:
        return ""
    others = f" and {count_text(len(hooked) - 1, 'other')}" if hooked[1:] else ""
    return (
        f". {hooked[0]!r}{others} had forward hooks before the sweep, as transformers registers for hidden_states. "
        "They run first, so they keep the value before the change"
    )


def _count_checks(cells: int) -> int:
    """Return the default number of cells to compare."""
    return cells if cells <= _CHECK_ALL else max(4, cells // 50)


def _check_tokens(tokens: Any, columns: Columns) -> tuple[str, ...]:
    """Return the tokens, checked; () without any."""
    if tokens is None:
        return ()
    if columns.kind != "position":
        raise ValueError("tokens= labels positions, and positions= is not given. Pass both, or leave tokens= out")
    checked = check_tokens(tokens)
    if wrong := [number for number in columns.numbers if not -len(checked) <= number < len(checked)]:
        raise ValueError(
            f"tokens has {len(checked)} strings, and none for position {wrong[0]}. Pass one for each token of a sample"
        )
    return checked


def _check_source(source: Any, inputs: Inputs) -> tuple[str, Inputs | None]:
    """Return the kind of the source, and its inputs if it has any."""
    if isinstance(source, str) or (isinstance(source, tuple) and source and isinstance(source[0], str)):
        if source in ("zero", "mean"):
            return source, None
        if isinstance(source, tuple) and len(source) == 2 and source[0] == "mean":
            return "mean", inputs.replace(source[1], "the second item of source=('mean', …)")
        raise ValueError(
            f"source={source!r} is not a source. Pass other inputs for the model, 'zero', 'mean', or ('mean', inputs)"
        )
    return "run", inputs.replace(source, "source", "'zero', 'mean', ('mean', inputs), ")


def _make_variants(baseline: Baseline, columns: Columns, tokens: tuple[str, ...]) -> list[Variant]:
    variants = []
    for row, site in enumerate(baseline.sites):
        shape = baseline.tensors[site].shape
        for column, number in enumerate(columns.numbers):
            variants.append(Variant(site, number, site.make_index(shape, columns, number), (row, column)))
        if tokens and len(tokens) != (size := shape[columns.axis or 1]):
            given, needed = count_text(len(tokens), "string"), count_text(size, "position")
            raise ValueError(f"tokens has {given}, but layer {site.label!r} has {needed}. Pass one string for each")
    return variants


def _make_patches(
    kind: str, inputs: Inputs | None, baseline: Baseline, metric: Callable[[Any], Any]
) -> tuple[dict[Site, Tensor], float | None, str]:
    """Return the replacement of each tensor, the metric of the source, and the change in words."""
    model = baseline.modules.model
    if kind == "zero":
        return {site: torch.zeros_like(tensor) for site, tensor in baseline.tensors.items()}, None, "set to zero"
    other, output = baseline.tensors, baseline.output
    if inputs is not None:
        with preserve_rng_state(model, inputs.args, inputs.kwargs), baseline.before.preserve():
            other, _, output = collect_tensors(baseline.modules, inputs, baseline.sites, "in the run on source")
    if kind == "run":
        for site, tensor in baseline.tensors.items():
            if other[site].shape != tensor.shape:
                raise ValueError(
                    f"layer {site.label!r} has shape {tuple(other[site].shape)} in the run on source, but "
                    f"{tuple(tensor.shape)} in the run on the inputs. Pass a source of the same shape as the inputs"
                )
        return other, to_number(metric(output)), "patched from the source"
    rows = (inputs or baseline.inputs).samples
    means = {site: _take_mean(site, other[site], tensor, rows) for site, tensor in baseline.tensors.items()}
    return means, None, "set to its mean over samples"


def _take_mean(site: Site, samples: Tensor, tensor: Tensor, rows: int) -> Tensor:
    """Return the mean over samples, in the shape of the tensor that it replaces."""
    if not tensor.is_floating_point() or not tensor.dim() or samples.shape[1:] != tensor.shape[1:]:
        raise ValueError(
            f"layer {site.label!r}: the mean over samples of shape {tuple(samples.shape)} and dtype {samples.dtype} "
            f"cannot replace a tensor of shape {tuple(tensor.shape)}. Pass other inputs of the same shape, or 'zero'"
        )
    if rows and len(samples) != rows:
        raise ValueError(
            f"layer {site.label!r} has shape {tuple(samples.shape)}, but the model got {rows} samples, so its first "
            "axis does not count samples and 'mean' has no meaning. Choose another layer, or pass source='zero'"
        )
    if len(samples) < 2:
        raise ValueError(
            "the mean over one sample is the sample itself, so it changes nothing. Pass source=('mean', others) with "
            "several samples, or 'zero'"
        )
    return samples.mean(0, keepdim=True).expand_as(tensor).clone()
