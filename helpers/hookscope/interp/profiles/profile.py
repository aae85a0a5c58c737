"""Run a model several times, with hooks and without, and return what each layer costs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.interp.profiles.passes import Job, Sums
from hookscope.interp.profiles.result import LayerProfile, Profile, Time
from hookscope.interp.profiles.spans import Span, Spans
from hookscope.layers import Modules, fused_around, refuse_unhookable
from hookscope.layers.modules import kind_of
from hookscope.layers.offloaded import execution_devices, is_offloaded
from hookscope.pictures.words import counted
from hookscope.preserve import preserve_rng_state
from hookscope.pytree import find_tensors

__all__ = ["profile"]

_NAMED = 4  # layers in a note
_ENOUGH, _FEW, _USUAL = 5.0, 3, 10  # unless told how many: no more passes after so many seconds, but a few at least


def profile(
    model: nn.Module,
    *inputs: Any,
    backward: bool = True,
    loss: Callable[[Any], Tensor] | None = None,
    repeats: int | None = None,
    warmup: int = 2,
    **kwargs: Any,
) -> Profile:
    """Measure what each layer of a model costs on the CPU: time, FLOPs and memory, forward and backward.

    Every layer that is called gets a row, containers, too, with a total and a part of its own (`self`). Times are
    medians with quartiles over `repeats` passes, after `warmup` passes that do not count; a pass without hooks runs
    before each, so that what the hooks add is measured, and said. It is most where there are many small layers, and
    lies in the `self` of the layers around. FLOPs are the multiplications and additions of matrix products,
    convolutions, attention and recurrent layers, counted as `torch.utils.flop_counter` does; nothing else counts. If
    an operation is likely to have such products in it, and there is no formula for it, a note names it.

    Backward is timed node by node, and a node counts for the layer in whose forward the operation was, in-place
    operations, too; what the engine does between nodes counts for none. Recomputation by `torch.utils.checkpoint` is
    time of backward.

    The model runs as it is, in `train()` or `eval()`, on copies of the inputs. Afterwards buffers, attributes, training
    flags, `.grad` and random numbers are what they were, and no hook is left. What a pass keeps elsewhere, such as a
    cache that is given, it keeps. Two more passes count FLOPs and memory.

    Not seen: fused paths of `nn.TransformerEncoderLayer`, which hooks switch off (a note says so, the time without
    hooks has them); what is inside a TorchScript module, which counts as one with the layer around; a layer of which
    `.forward()` is called, which counts as part of the one that calls it. A compiled model is refused: it has no
    layers any more when it runs. Where not all passes call the same layers, each has the times of the passes that
    called it, and a note says so; so in a part that is compiled, where hooks do not always run.

    Args:
        model: any module on the CPU.
        *inputs: what it is called with.
        backward: run backward, too, where the output requires grad.
        loss: makes a scalar of the output; by default the sum of all floating tensors in it that require grad.
        repeats: passes that are measured, at least 1; by default 10, or fewer, but not fewer than 3, where they take
            longer than 5 seconds in all.
        warmup: passes before them.
        **kwargs: keyword arguments that it is called with.

    Returns:
        A `Profile`: a mapping from layer names to `LayerProfile`, which shows itself as bars and a table.

    Raises:
        TypeError: `model` is not a module, or an option is of the wrong type; and what the model raises.
        ValueError: a number is too small; `model` is compiled or not on the CPU; `loss` does not return a scalar that
            requires grad; a parameter has a hook that runs after its gradient has come, and may change it.
        RuntimeError: layers run in several threads.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        >>> costs = profile(net, torch.ones(16, 64), repeats=3)
        >>> costs[""].flops == 2 * 16 * (64 * 32 + 32 * 8), costs["0"].flops, costs["0"].backward_flops
        (True, 65536, 65536)
        >>> costs["2"].outputs, costs["0"].parameters
        (512, 8320)
        >>> costs[""].forward.median >= costs["0"].forward.median > 0
        True

    """
    modules = Modules(model)
    hooked = [module for module in modules.names if not isinstance(module, torch.jit.ScriptModule)]
    refuse_unhookable(modules, set(hooked), "profile")
    _check(model, (inputs, kwargs), backward, loss, repeats, warmup)
    job = Job(modules, hooked, inputs, kwargs, backward and torch.is_grad_enabled(), loss)
    fused = dict.fromkeys(f.name for f in fused_around(modules, hooked).values() if f.would_run())
    job.notes += [
        f"hooks switch off the fused path of layer {name!r}, not so in the times without hooks" for name in fused
    ]
    if is_offloaded(modules.names):
        job.notes.append(
            "accelerate loads weights each time a layer runs: that is part of the layer's time, and if backward needs "
            "these weights, they are part of what the layer saves"
        )
    if len(hooked) < len(modules.names):
        job.notes.append("modules of TorchScript count as part of the layer around them")
    with job.before.preserve(), preserve_rng_state(model, inputs, kwargs), _gradients_put_back(job):
        for _ in range(warmup):
            job.plain()
        began, pairs = time.perf_counter(), list[tuple[tuple[float, float], tuple[float, float, Sums]]]()
        while len(pairs) < (repeats or _USUAL):
            pairs.append((job.plain(), job.timed()))
            if repeats is None and len(pairs) >= _FEW and time.perf_counter() - began > _ENOUGH:
                break
        counted, flops = job.counted()
        saved = job.saved()
    return _result(modules, job, pairs, counted, flops, saved)


def _check(model: nn.Module, given: Any, backward: object, loss: object, repeats: object, warmup: object) -> None:
    if not isinstance(backward, bool):
        raise TypeError(f"backward={backward!r}: give True or False")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={loss!r}: give a function of the output that returns a scalar")
    for name, number, least in (("repeats", _USUAL if repeats is None else repeats, 1), ("warmup", warmup, 0)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name}={number!r}: give a whole number of passes")
        if number < least:
            raise ValueError(f"{name}={number}: give a number of passes from {least}")
    devices = [("the model", tensor.device) for tensor in (*model.parameters(), *model.buffers())]
    if is_offloaded(model.modules()):
        devices = [(what, device) for what, device in devices if device.type != "meta"]
    devices += [("what accelerate runs", device) for device in execution_devices(model.modules())]
    for what, device in (*devices, *(("an input", tensor.device) for tensor in find_tensors(given))):
        if device.type == "meta":
            raise ValueError(
                f"{what} is on meta, where tensors have no values, so nothing runs: move it to the CPU first"
            )
        if device.type != "cpu":
            raise ValueError(
                f"{what} is on {device}; a GPU works on while Python goes on, so hooks cannot time it: profile a copy "
                "on the CPU, or use torch.profiler"
            )
    for name, parameter in model.named_parameters():
        if backward and getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"parameter {name!r} has a hook that runs after its gradient has come, and may change it, as an "
                "optimizer's step does; remove it, or write backward=False"
            )


@contextmanager
def _gradients_put_back(job: Job) -> Iterator[None]:
    try:
        yield
    finally:
        for leaf, grad in job.gradients:
            leaf.grad = grad


def _result(
    modules: Modules,
    job: Job,
    pairs: list[tuple[tuple[float, float], tuple[float, float, Sums]]],
    counting: Spans,
    could_count: bool,
    saving: tuple[dict[nn.Module, int], Spans] | None,
) -> Profile:
    sums, counts = [timed[2] for _, timed in pairs], Sums(counting)
    saved = None if saving is None else (saving[0], Sums(saving[1]).calls)
    # A model may call other layers in each pass, and code that torch.compile has made calls some without their hooks.
    calls: dict[nn.Module, list[Span]] = {module: [] for each in (counts, *sums) for module in each.calls}
    for span in counting.calls:
        calls[span.module].append(span)

    def seconds(what: str, module: nn.Module) -> Time:
        return Time(tuple(getattr(each, what).get(module, 0) / 1e9 for each in sums if module in each.calls))

    def number(counts: dict[nn.Module, int], module: nn.Module, known: bool) -> int | None:
        return counts.get(module, 0) if known else None

    layers: dict[str, LayerProfile] = {}
    for module, ours in calls.items():
        back, name = job.backward, modules.names[module]
        layers[name] = LayerProfile(
            name=name,
            type=kind_of(module),
            calls=len(ours),
            forward=seconds("forward", module),
            forward_self=seconds("forward_self", module),
            backward=seconds("backward", module) if back else None,
            backward_self=seconds("backward_self", module) if back else None,
            flops=number(counts.forward, module, could_count),
            flops_self=number(counts.forward_self, module, could_count),
            backward_flops=number(counts.backward, module, back and could_count),
            backward_flops_self=number(counts.backward_self, module, back and could_count),
            parameters=sum(tensor.nbytes for tensor in {*module.parameters(), *module.buffers()}),
            outputs=sum(tensor.nbytes for span in ours for tensor in find_tensors(span.outputs)),
            saved=None if saved is None or saved[1][module] != len(ours) else saved[0][module],
            gradients=number(counts.gradients, module, back),
        )
    times: dict[str, Time | None] = {
        "forward": Time(tuple(timed[0] for _, timed in pairs)),
        "plain forward": Time(tuple(plain[0] for plain, _ in pairs)),
        "backward": Time(tuple(timed[1] for _, timed in pairs)) if job.backward else None,
        "plain backward": Time(tuple(plain[1] for plain, _ in pairs)) if job.backward else None,
        "outside": Time(tuple(each.outside / 1e9 for each in sums)) if job.backward else None,
    }
    passes = [each.calls for each in (counts, *sums)] + ([] if saved is None else [saved[1]])
    notes = (*job.notes, *_varying(modules, list(calls), passes))
    return Profile(type(modules.model).__name__, layers, times, tuple(dict.fromkeys(notes)))


def _varying(modules: Modules, layers: list[nn.Module], passes: list[Counter[nn.Module]]) -> Iterator[str]:
    """Say which layers were not called alike in all passes."""
    found = [module for module in layers if len({calls[module] for calls in passes}) > 1]
    if not found:
        return
    often = [calls[module] for module in found for calls in passes]
    names = ", ".join(repr(modules.names[module]) for module in found[:_NAMED])
    yield (
        f"{counted(len(found), 'layer')} ({names}{', …' if len(found) > _NAMED else ''}), called {min(often)} to "
        f"{max(often)} times in a pass: times are those of the passes with a call, the other numbers those of one pass"
    )
    if "torch._dynamo" in sys.modules:
        yield (
            "code that torch.compile has made runs layers without their hooks, and what they cost counts for the layer "
            'around them; if that is the reason here, profile under torch.compiler.set_stance("force_eager")'
        )
