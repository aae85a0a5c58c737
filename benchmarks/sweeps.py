"""Which tool sweeps over layers and positions right, on which model, and what the same sweep costs with each."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hookscope as scope
from benchmarks.edit_costs import LAYERS, TOKENS, gpt2, in_turn
from benchmarks.edits import CannotError, by_name, count, envoy_of
from benchmarks.sweep_cases import CASES, SweepCase
from hookscope.pytree import tree_map
from tests.shared.sweep_helpers import get_outputs, sweep_by_hand

__all__ = ["SWEEPERS", "TIMED", "table", "timed", "times", "verdict"]

Sweeper = Callable[[SweepCase, nn.Module], Tensor]
TIMED = "time, 18 layers × 12 positions of a GPT-2"
_ROWS = 36  # variants in a batch: what a GPT-2 of 6 layers takes for a block


def hookscope(case: SweepCase, model: nn.Module) -> Tensor:
    """`hookscope.sweep`."""
    options = scope.SweepOptions(axis=case.axis, part=case.part, progress=False)
    return scope.sweep(
        model,
        case.inputs,
        layers=case.layers,
        source=case.others,
        metric=case.metric,
        positions=case.numbers,
        options=options,
    ).values


def plain_hooks(case: SweepCase, model: nn.Module) -> Tensor:
    """A hook for each cell in a loop, which writes to a clone."""
    new = get_outputs(model, lambda: model(case.others), case.layers)
    indices = [case.index(number) for number in case.numbers]
    return sweep_by_hand(model, lambda: model(case.inputs), case.layers, new, indices, case.metric)


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _with_first(output: Any, tensor: Tensor) -> Any:
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


class _Trace:
    """The lines of baukit's `Trace` that keep and edit an output; it is not on PyPI."""

    output: Any

    def __init__(self, module: nn.Module, layer: str, edit_output: Callable[[Any], Any] | None = None) -> None:
        def retain_hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            self.output = tree_map(lambda tensor: tensor.clone().detach(), output)  # clone=True, detach=True
            return output if edit_output is None else edit_output(output)

        self.registered_hook = dict(module.named_modules())[layer].register_forward_hook(retain_hook)

    def __enter__(self) -> _Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.registered_hook.remove()


def baukit(case: SweepCase, model: nn.Module) -> Tensor:
    """A `Trace` with `clone=True` for each layer of the source, one with `edit_output` for each cell."""
    with torch.no_grad():
        with contextlib.ExitStack() as traces:
            kept = {layer: traces.enter_context(_Trace(model, layer)) for layer in case.layers}
            model(case.others)
        new = {layer: _first(trace.output) for layer, trace in kept.items()}
        values = []
        for layer, number in case.cells:

            def patch(output: Any, layer: str = layer, index: Any = case.index(number)) -> Any:  # noqa: B008
                _first(output)[index] = new[layer][index]  # to what came, as baukit's notebooks do
                return output

            with _Trace(model, layer, edit_output=patch):
                values.append(float(case.metric(model(case.inputs))))
    return case.table(values)


def _in_order(case: SweepCase, model: nn.Module) -> list[str]:
    """The layers in the order in which they return, as nnsight wants to be asked."""
    model = copy.deepcopy(model)
    found: list[str] = []
    for layer in case.layers:
        model.get_submodule(layer).register_forward_hook(lambda *_, layer=layer: found.append(layer))
    with torch.no_grad():
        model(case.inputs)
    return [*found, *(layer for layer in case.layers if layer not in found)]


def _nnsight_source(case: SweepCase, traced: Any, layers: list[str]) -> dict[str, Tensor]:
    import nnsight as package

    with torch.no_grad(), traced.trace(case.others):
        new = package.save({})
        for layer in layers:
            new[layer] = _first(envoy_of(traced, layer).output).clone()
    return dict(new)


def nnsight(case: SweepCase, model: nn.Module) -> Tensor:
    """A trace for each cell, which sets `envoy.output`."""
    from nnsight import NNsight

    traced = NNsight(model)
    new = _nnsight_source(case, traced, _in_order(case, model))
    values = []
    for layer, number in case.cells:
        envoy, index = envoy_of(traced, layer), case.index(number)
        with torch.no_grad(), traced.trace(case.inputs):
            patched = _first(envoy.output).clone()
            patched[index] = new[layer][index]
            envoy.output = _with_first(envoy.output, patched)
            output = traced.output.save()
        values.append(float(case.metric(output)))
    return case.table(values)


def nnsight_batch(case: SweepCase, model: nn.Module) -> Tensor:
    """Many variants as the rows of one batch in one trace, as an expert would."""
    from nnsight import NNsight

    traced = NNsight(model)
    order, size, width = _in_order(case, model), len(case.inputs), len(case.numbers)
    new = _nnsight_source(case, traced, order)
    found: dict[str, list[float]] = {}
    together = max(1, _ROWS // width)
    for begin in range(0, len(order), together):
        layers = order[begin : begin + together]
        inputs = case.inputs.repeat(len(layers) * width, *[1] * (case.inputs.dim() - 1))
        with torch.no_grad(), traced.trace(inputs):
            row = 0
            for layer in layers:
                envoy = envoy_of(traced, layer)
                patched = _first(envoy.output).clone()
                for number in case.numbers:
                    place = (slice(row, row + size), *case.index(number)[1:])
                    patched[place] = new[layer][case.index(number)]
                    row += size
                envoy.output = _with_first(envoy.output, patched)
            output = traced.output.save()
        values = [float(case.number(scores)) for scores in case.scores(output).split(size)]  # type: ignore[no-untyped-call]
        for each, layer in enumerate(layers):
            found[layer] = values[each * width : (each + 1) * width]
    return case.table([value for layer in case.layers for value in found[layer]])


def tdhook(case: SweepCase, model: nn.Module) -> Tensor:
    """`capture` in a `HookSession` for the source, `replace` in one for each cell."""
    from tdhook.session import HookSession
    from tdhook.targets import Target

    slots = _tuples(case, model)  # it wants to be told

    def target(layer: str, numbers: tuple[int, ...]) -> Any:
        return Target(layer, "activation", case.axis, numbers, output_path=(0,) if layer in slots else ())

    with torch.no_grad():
        with HookSession(model) as session:
            kept = {layer: session.capture(target(layer, tuple(case.numbers))) for layer in case.layers}
            model(case.others)
        values = []
        for layer, number in case.cells:
            with HookSession(model) as session:
                value = kept[layer].values[0].narrow(case.axis, case.numbers.index(number), 1)
                session.replace(target(layer, (number,)), value)
                values.append(float(case.metric(model(case.inputs))))
    return case.table(values)


def _tuples(case: SweepCase, model: nn.Module) -> set[str]:
    """Which layers return a tuple."""
    model, found = copy.deepcopy(model), set()

    def look(layer: str) -> Callable[..., None]:
        return lambda module, args, output: found.add(layer) if isinstance(output, tuple) else None

    for layer in case.layers:
        model.get_submodule(layer).register_forward_hook(look(layer))
    with torch.no_grad():
        model(case.inputs)
    return found


def pyvene(case: SweepCase, model: nn.Module) -> Tensor:
    """A function as the `intervention` on `"layer.output"`, which gets what it returned in both runs."""
    from pyvene import IntervenableModel
    from transformers import PretrainedConfig

    if not hasattr(model, "config"):  # it asks every model for them
        model.config, model.device = PretrainedConfig(), case.inputs.device  # type: ignore[assignment]
    base, source = by_name(model, (case.inputs,)), by_name(model, (case.others,))

    values = []
    with torch.no_grad():
        for layer, number in case.cells:

            def swapped(base: Tensor, source: Tensor, index: Any = case.index(number)) -> Tensor:  # noqa: B008
                base = base.clone()
                base[index] = source[index]
                return base

            config = {"component": f"{layer}.output", "intervention": swapped}
            wrapped = IntervenableModel(config, model=model)
            output = wrapped(base, [source], use_cache=None)[1]
            values.append(float(case.metric(output)))
    return case.table(values)


def torchlens(case: SweepCase, model: nn.Module) -> Tensor:
    """`tl.when(tl.module(layer), function)`, bound to the model, which records nothing; for a part, in a trace."""
    import torchlens as tl

    alone = tl.options.CaptureOptions(capture_container_structure=True, unwrap_when_done=True)
    new: dict[str, Tensor] = {}

    def ask(inputs: Tensor, layer: str, function: Callable[[Tensor], Tensor]) -> Any:
        def hook(activation: Tensor, *, hook: Any) -> Tensor:
            return function(activation.clone())

        if case.part is None:
            return tl.when(tl.module(layer), hook).bind(model)(inputs)
        site = tl.module(layer) & tl.output_at(case.part)  # a binding takes no part
        return tl.trace(model, inputs, intervene=tl.when(site, hook), capture=alone).reconstruct_output()

    def patched(activation: Tensor, layer: str, number: int) -> Tensor:
        activation[case.index(number)] = new[layer][case.index(number)]
        return activation

    def kept(activation: Tensor, layer: str) -> Tensor:
        return new.setdefault(layer, activation)

    with torch.no_grad():
        for layer in case.layers:
            ask(case.others, layer, partial(kept, layer=layer))
        return case.table(
            [
                float(case.metric(ask(case.inputs, layer, partial(patched, layer=layer, number=number))))
                for layer, number in case.cells
            ]
        )


SWEEPERS: dict[str, Sweeper] = {
    "plain hooks in a loop": plain_hooks,
    "baukit's way, in a loop": baukit,
    "nnsight, in a loop": nnsight,
    "nnsight, a batch": nnsight_batch,
    "tdhook, in a loop": tdhook,
    "pyvene, in a loop": pyvene,
    "torchlens": torchlens,
    "**hookscope**": hookscope,
}


def verdict(sweeper: Sweeper, case: SweepCase) -> tuple[str, str]:
    """Judge one tool on one case: right, refused, not applied, wrong, raises or cannot; and what it said."""
    model = case.made()
    try:
        with _quiet():
            found = sweeper(case, model)
    except CannotError as error:
        return "cannot", str(error)
    except Exception as error:
        return ("refused" if case.refused else "raises"), f"{type(error).__name__}: {error}"
    if not case.refused and _same(found, case.truth()):
        return "right", ""
    untouched = found[-1] if case.refused else found  # the last layer is the one that is never called
    return ("not applied" if _same(untouched, torch.full_like(untouched, case.baseline())) else "wrong"), ""


def _same(found: Tensor, wanted: Tensor) -> bool:
    """Whether values are the same, but for 1e-5 of their scale."""
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= 1e-5 * wanted.abs().max()).all())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def timed(width: int, layers: Sequence[str] = LAYERS) -> SweepCase:
    """The sweep that is timed: layers of a GPT-2 of 6 blocks at 12 positions."""
    ids = torch.randint(0, 1000, (2, 1, TOKENS), generator=torch.Generator().manual_seed(3))
    return SweepCase(
        lambda: gpt2(width), ids[0], ids[1], list(layers), range(TOKENS), lambda output: output.logits[:, -1]
    )


def times(case: SweepCase, rounds: int) -> dict[str, str]:
    """Time every tool on the same sweep, in turns: seconds of the plain loop, ratios to it; "" where not right."""
    model = case.made()
    known = plain_hooks(case, model)
    passes: dict[str, Callable[[], object]] = {}
    for label, sweeper in SWEEPERS.items():
        run = partial(sweeper, case, copy.deepcopy(model))  # of its own, for some wrap what they are given for good
        with contextlib.suppress(Exception), _quiet():
            if _same(run(), known):
                passes[label] = run
    with _quiet():
        seconds, *ratios = in_turn(rounds, *passes.values())
    found = [f"{seconds:.2f} s", *(f"{ratio:.2f} ×" for ratio in ratios)]
    return dict.fromkeys(SWEEPERS, "") | dict(zip(passes, found, strict=True))


def table(rounds: int) -> list[dict[str, object]]:
    """Count the verdicts of every tool, and time the tools."""
    took = times(timed(128), rounds)
    rows: list[dict[str, object]] = []
    for label, sweeper in SWEEPERS.items():
        found = {name: verdict(sweeper, case)[0] for name, case in CASES.items()}
        rows.append(
            {
                "tool": label,
                "right, or refused": count(found, "right", "refused"),
                "not applied": count(found, "not applied"),
                "wrong": count(found, "wrong"),
                "raises": count(found, "raises"),
                "cannot": count(found, "cannot"),
                TIMED: took[label],
                "not right on": ", ".join(name for name, each in found.items() if each not in ("right", "refused")),
            }
        )
        print(rows[-1], flush=True)
    return rows
