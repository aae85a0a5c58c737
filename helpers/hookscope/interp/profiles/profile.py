"""Run a model several times, with hooks and without, and return the costs of each layer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Never

import torch
from torch import Tensor, nn

from hookscope.interp.profiles.passes import LayerTotals, PassRunner
from hookscope.interp.profiles.result import LayerProfile, Profile, Time
from hookscope.interp.profiles.spans import CallSpan, CallSpans, bytes_of
from hookscope.layers import ModuleMap, Modules, find_fused, refuse_unhookable
from hookscope.layers.modules import kind_of
from hookscope.layers.offloaded import execution_devices, is_offloaded
from hookscope.model_inputs import check_inputs, check_kwargs
from hookscope.pictures.words import count_text
from hookscope.preserve import preserve_rng_state
from hookscope.pytree import find_tensors
from hookscope.wrong_inputs import explain_input_errors

__all__ = ["profile"]

_NAMED = 4  # layers in a note
_ENOUGH, _FEW, _USUAL = 5.0, 3, 10  # without repeats=: stop after 5 seconds, but run 3 to 10 passes


def profile(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = True,
    loss: Callable[[Any], Tensor] | None = None,
    repeats: int | None = None,
    warmup: int = 2,
    **_unknown: Never,
) -> Profile:
    """Measure time, FLOPs and memory of each layer on the CPU, in forward and in backward.

    Every layer that is called gets a row, with a total and its own part (`self`). Times are medians with quartiles
    over `repeats` passes. A pass without hooks runs before each, so you see how much time the hooks add. The model runs
    in its current mode, on copies of the inputs. Afterwards buffers, attributes, training flags, `.grad` and the random
    state are restored, and no hook is left. Limits: https://hookscope.github.io/hookscope/limits/profile.html

    Args:
        model: any module on the CPU that is not compiled.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model, as ``{"use_cache": False}``.
        backward: also run backward, if the output requires grad.
        loss: turns the output into a scalar; by default the sum of all its floating tensors that require grad.
        repeats: the number of measured passes; by default 10, or fewer (at least 3) if they take over 5 seconds.
        warmup: the number of passes before them, which are not measured.

    Raises:
        TypeError: an option is unknown or of the wrong type. Errors of the model are raised, too.
        ValueError: a number is too small; `model` is compiled or not on the CPU; `loss` does not return a scalar that
            requires grad; a parameter has a post-accumulate-grad hook, which can change it.
        RuntimeError: layers run in several threads.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        >>> costs = profile(net, torch.ones(16, 64), repeats=3)
        >>> costs["0"].flops, costs["0"].backward_flops, costs["2"].outputs, costs["0"].parameters
        (65536, 65536, 512, 8320)

    """
    kwargs = check_kwargs(profile, kwargs, _unknown)
    modules = Modules(model)
    check_inputs("profile", model, args, kwargs)
    hooked = [module for module in modules.names if not isinstance(module, torch.jit.ScriptModule)]
    refuse_unhookable(modules, set(hooked), "profile")
    _check(model, (args, kwargs), backward, loss, repeats, warmup)
    job = PassRunner(modules, hooked, args, kwargs, backward and torch.is_grad_enabled(), loss)
    fused = dict.fromkeys(f.name for f in find_fused(modules, hooked).values() if f.would_run())
    job.notes += [
        f"the hooks switch off the fused path of layer {name!r}; the times without hooks include it" for name in fused
    ]
    if is_offloaded(modules.names):
        job.notes.append(
            "accelerate loads the weights each time a layer runs, so loading is part of the layer's time. If backward "
            "needs these weights, they are part of its saved memory"
        )
    if len(hooked) < len(modules.names):
        job.notes.append("TorchScript modules take no hooks, so they count as part of the layer around them")
    explained = explain_input_errors(model, args, kwargs)
    with explained, job.before.preserve(), preserve_rng_state(model, args, kwargs), _restore_gradients(job):
        for _ in range(warmup):
            job.time_plain()
        began, pairs = time.perf_counter(), list[tuple[tuple[float, float], tuple[float, float, LayerTotals]]]()
        while len(pairs) < (repeats or _USUAL):
            pairs.append((job.time_plain(), job.time_hooked()))
            if repeats is None and len(pairs) >= _FEW and time.perf_counter() - began > _ENOUGH:
                break
        counted, uncounted = job.count_flops()
        saved = job.count_saved()
        late = [name for module, name in Modules(model).names.items() if module not in modules.names]
    if late:
        job.notes.append(
            f"layer {late[0]!r}{' and others' if late[1:] else ''} came into the model in a pass, so the costs count "
            "for the layer around it. Create it in __init__"
        )
    return _build_profile(modules, job, pairs, counted, uncounted, saved)


def _check(model: nn.Module, given: Any, backward: object, loss: object, repeats: object, warmup: object) -> None:
    if not isinstance(backward, bool):
        raise TypeError(f"backward={backward!r} is not a bool. Pass True or False")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={loss!r} is not callable. Pass a function: loss=lambda output: output.mean()")
    for name, number, least in (("repeats", _USUAL if repeats is None else repeats, 1), ("warmup", warmup, 0)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name}={number!r} is not an integer. Pass the number of passes")
        if number < least:
            raise ValueError(f"{name}={number} is too small. Pass {least} or more")
    devices = [("the model", tensor.device) for tensor in (*model.parameters(), *model.buffers())]
    if is_offloaded(model.modules()):
        devices = [(what, device) for what, device in devices if device.type != "meta"]
    devices += [("a layer that accelerate moves", device) for device in execution_devices(model.modules())]
    for what, device in (*devices, *(("an input", tensor.device) for tensor in find_tensors(given))):
        if device.type == "meta":
            raise ValueError(
                f"{what} is on the meta device, where tensors have no values, so nothing runs. Move it to the CPU first"
            )
        if device.type != "cpu":
            raise ValueError(
                f"{what} is on {device}. A GPU runs asynchronously, so hooks cannot measure its time. Profile a copy "
                "on the CPU, or use torch.profiler"
            )
    for name, parameter in model.named_parameters():
        if backward and getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"parameter {name!r} has a post-accumulate-grad hook, which can change it, as an optimizer step does. "
                "Each pass would then measure a different model. Remove the hook, or pass backward=False"
            )


@contextmanager
def _restore_gradients(job: PassRunner) -> Iterator[None]:
    try:
        yield
    finally:
        for leaf, grad in job.gradients:
            leaf.grad = grad


def _build_profile(
    modules: Modules,
    job: PassRunner,
    pairs: list[tuple[tuple[float, float], tuple[float, float, LayerTotals]]],
    counting: CallSpans,
    uncounted: ModuleMap[None] | None,
    saving: tuple[ModuleMap[int], CallSpans] | None,
) -> Profile:
    sums, counts = [timed[2] for _, timed in pairs], LayerTotals(counting)
    saved = None if saving is None else (saving[0], LayerTotals(saving[1]).calls)
    # A model can call different layers in each pass, and compiled code can call layers without their hooks.
    calls = ModuleMap[list[CallSpan]]((module, []) for each in (counts, *sums) for module in each.calls)
    for span in counting.calls:
        calls[span.module].append(span)

    def seconds(what: str, module: nn.Module) -> Time:
        return Time(tuple(getattr(each, what).get(module, 0) / 1e9 for each in sums if module in each.calls))

    def flops(counts: ModuleMap[int], module: nn.Module, known: bool = True) -> int | None:
        found = counts.get(module, 0)
        # 0 beside an operation that was left out would be read as "it computes nothing".
        return None if uncounted is None or not known or (not found and module in uncounted) else found

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
            flops=flops(counts.forward, module),
            flops_self=flops(counts.forward_self, module),
            backward_flops=flops(counts.backward, module, back),
            backward_flops_self=flops(counts.backward_self, module, back),
            parameters=sum(tensor.nbytes for tensor in {*module.parameters(), *module.buffers()}),
            outputs=sum(bytes_of(tensor) for span in ours for tensor in find_tensors(span.outputs)),
            saved=None if saved is None or saved[1].get(module, 0) != len(ours) else saved[0][module],
            gradients=counts.gradients.get(module, 0) if back else None,
        )
    times: dict[str, Time | None] = {
        "forward": Time(tuple(timed[0] for _, timed in pairs)),
        "plain forward": Time(tuple(plain[0] for plain, _ in pairs)),
        "backward": Time(tuple(timed[1] for _, timed in pairs)) if job.backward else None,
        "plain backward": Time(tuple(plain[1] for plain, _ in pairs)) if job.backward else None,
        "outside": Time(tuple(each.outside / 1e9 for each in sums)) if job.backward else None,
    }
    passes = [each.calls for each in (counts, *sums)] + ([] if saved is None else [saved[1]])
    notes = (*job.notes, *_note_varying_calls(modules, list(calls), passes))
    return Profile(type(modules.model).__name__, layers, times, tuple(dict.fromkeys(notes)))


def _note_varying_calls(modules: Modules, layers: list[nn.Module], passes: list[ModuleMap[int]]) -> Iterator[str]:
    """Yield notes about layers whose number of calls differs between passes."""
    found = [module for module in layers if len({calls.get(module, 0) for calls in passes}) > 1]
    if not found:
        return
    often = [calls.get(module, 0) for module in found for calls in passes]
    names = ", ".join(repr(modules.names[module]) for module in found[:_NAMED])
    yield (
        f"{count_text(len(found), 'layer')} ({names}{', …' if len(found) > _NAMED else ''}) ran {min(often)} to "
        f"{max(often)} times in a pass. Times come from the passes with a call, all other values from one pass"
    )
    if "torch._dynamo" in sys.modules:
        yield (
            "code compiled by torch.compile can run layers without their hooks; their costs then count for the layer "
            'around them. To avoid that, profile under torch.compiler.set_stance("force_eager")'
        )
