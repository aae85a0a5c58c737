"""Run a model once, and sort the findings of the pass by what to mend first."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import keystr

from hookscope.captures.call import is_never_called, why_uncalled
from hookscope.captures.unregistered import unregistered_modules
from hookscope.censuses import HookEntry, census
from hookscope.diagnoses.causes import CAUSES, Finding, as_code
from hookscope.diagnoses.watched_pass import HookRun, ModuleCall, WatchedPass, find_ways_around
from hookscope.layers import Modules, find_fused, is_write_to_hooked, pick
from hookscope.layers.modules import check_model, collect_submodules, kind_of
from hookscope.model_inputs import check_inputs, check_kwargs
from hookscope.pictures import Result
from hookscope.preserve import preserve_model
from hookscope.pytree import find_paths, find_tensors

__all__ = ["Diagnosis", "diagnose"]

_SIGNATURES = {
    "forward_pre": "module, args",
    "forward": "module, args, output",
    "full_backward_pre": "module, grad_output",
}
_CALLED = ("forward_pre", "forward", "full_backward_pre", "full_backward", "backward (legacy)")
_PARALLEL = DataParallel, DistributedDataParallel
_BACKWARD = (*_CALLED[2:], "tensor", "post_accumulate_grad")


class Diagnosis(Result):
    """What `diagnose` has found about the hooks of a layer, the first thing to mend first.

    Attributes:
        layer: the name of the layer, `""` for the root.
        findings: what was found, sorted as in `diagnoses.CAUSES`.

    """

    def __init__(self, layer: str, caption: str, findings: list[Finding], notes: tuple[str, ...] = ()) -> None:
        self.layer, self._caption, self.notes = layer, caption, notes
        order = list(CAUSES)
        findings = findings or [
            Finding.of("silent", "the layer was called; hooks on its parameters are not watched", layer)
        ]
        self.findings = tuple(sorted(findings, key=lambda finding: order.index(finding.cause)))

    @property
    def cause(self) -> str:
        """The first finding: one of `diagnoses.CAUSES`."""
        return self.findings[0].cause

    @property
    def caption(self) -> str:
        """The layer, its calls and its hooks."""
        return self._caption

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each finding."""
        return [{"finding": each.sentence, "evidence": each.evidence, "write": each.write} for each in self.findings]


def diagnose(
    model: nn.Module, layer: str | nn.Module, *args: Any, kwargs: Mapping[str, Any] | None = None, **_unknown: Never
) -> Diagnosis:
    """Find out why the hooks on a layer print nothing, or print the wrong values.

    Register your hook, and pass the model, the layer and the inputs. The model runs forward and backward in its present
    mode, and your hooks run too, but what they print is not shown. Afterwards the model, its gradients and the random
    numbers are as before. Limits: https://hookscope.github.io/hookscope/limits/diagnose.html

    Args:
        model: the model that you run.
        layer: the name of a layer, or the module on which you registered the hook.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model.

    Raises:
        LayerNotFoundError: the model has no layer of that name.
        TypeError, ValueError: an argument is wrong, or the model runs on several devices or processes.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
        >>> handle = net[0].register_forward_hook(lambda module, args, output: None)
        >>> found = diagnose(net, "0", torch.ones(1, 2))
        >>> found.findings[0].sentence
        'A later step overwrites the output after your hook has seen it.'
        >>> found.findings[0].evidence, found.findings[0].write
        ("by '1' (ReLU)", 'kept.append(output.detach().clone())')

    """
    check_model(model)
    kwargs = check_kwargs(diagnose, kwargs, _unknown)
    if not isinstance(layer, (str, nn.Module)):
        raise TypeError(f"layer is of type {type(layer).__name__}. Pass the name of one layer, or its module")
    modules = Modules(model)
    for module in modules.names:
        if isinstance(module, _PARALLEL) or any(base.__name__.startswith("FSDP") for base in type(module).__mro__):
            raise ValueError(
                f"{kind_of(module)} runs the model on several devices or processes, which diagnose cannot watch. Pass "
                "the model that it wraps, such as model.module"
            )
    if isinstance(layer, nn.Module) and layer not in modules.names:
        return _diagnose_stranger(modules, layer)
    wrapped = None if isinstance(model, ScriptModule) else model._modules.get("_orig_mod")
    inside = Modules(wrapped) if wrapped is not None and isinstance(layer, str) else modules
    found = pick(inside, layer)
    if len(found) > 1:
        raise ValueError(f"{layer!r} matches {len(found)} layers. Pass one of them, such as {next(iter(found))!r}")
    ((name, target),) = found.items()
    hooks = [entry for entry in census(target, include_global=False) if entry.layer == "" and not entry.by_torch]
    if isinstance(target, ScriptModule):
        return Diagnosis(name, _caption(modules, name, target, hooks), [Finding.of("scripted", kind_of(target), name)])
    if around := [each for each in modules.compiled if target in collect_submodules([each])]:
        evidence = f"{kind_of(around[0])} is around the layer; the layer has {_count(hooks)}"
        return Diagnosis(name, _caption(modules, name, target, hooks), [Finding.of("compiled", evidence, name)])
    check_inputs("diagnose", model, args, kwargs)
    runs = [HookRun(entry) for entry in hooks if entry.kind in _CALLED and not entry.tensor]
    seen = WatchedPass(modules, target, runs).run(args, kwargs)
    findings = list(_examine(seen, name, hooks, args, kwargs))
    calls = sum(call.module is target for call in seen.calls if not call.backward)
    notes = tuple(unregistered_modules(modules)) if not calls else ()
    return Diagnosis(name, _caption(modules, name, target, hooks, calls), findings, notes)


def _caption(modules: Modules, name: str, layer: nn.Module, hooks: list[HookEntry], calls: int | None = None) -> str:
    ran = "" if calls is None else f", called {calls} time{'' if calls == 1 else 's'}"
    where = f"layer {name!r}" if name else "the root"
    return f"{kind_of(modules.model)}: {where} ({kind_of(layer)}), {_count(hooks)}{ran}"


def _count(hooks: list[Any]) -> str:
    return f"{len(hooks) or 'no'} hook{'' if len(hooks) == 1 else 's'}"


def _diagnose_stranger(modules: Modules, layer: nn.Module) -> Diagnosis:
    """Diagnose a module that is not in the model."""
    same = [name for module, name in modules.names.items() if type(module) is type(layer)]
    alike = [name for name in same if _alike(modules.model.get_submodule(name), layer, torch.Tensor.size)]
    near = alike or (same if len(same) == 1 else [])
    hooks = [entry for entry in census(layer, include_global=False) if not entry.by_torch]
    there = "the model has no layer of this class"
    if same:
        which = repr(near[0]) if near else f"one of {', '.join(map(repr, same[:4]))}"
        there = f"the model calls a different one, {which}"
    evidence = f"{_count(hooks)} on this {kind_of(layer)}, but {there}"
    found = Finding.of("not_in_model", evidence, "", other=as_code(near[0] if near else "layer"))
    return Diagnosis("", f"{kind_of(modules.model)}: a {kind_of(layer)} from elsewhere, {_count(hooks)}", [found])


def _alike(one: nn.Module, other: nn.Module, of: Any) -> bool:
    pairs = list(one.parameters()), list(other.parameters())
    return len(pairs[0]) == len(pairs[1]) and all(of(a) == of(b) for a, b in zip(*pairs, strict=True))


def _examine(
    seen: WatchedPass, name: str, hooks: list[HookEntry], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield all findings of a pass, in any order."""
    own = [call for call in seen.calls if call.module is seen.layer and not call.backward]
    raised = [call for call in seen.raised if not call.backward]
    for run in (run for run in seen.hooks if run.error is not None):
        signature = _SIGNATURES.get(run.entry.kind, "module, grad_input, grad_output")
        signature += ", kwargs" if "with_kwargs" in run.entry.options else ""
        signature = signature.replace("output, kwargs", "kwargs, output")
        yield Finding.of("hook_raised", f"{_named(run.entry)}: {_words(run.error)}", name, other=signature)
    if seen.error is not None and all(run.error is not seen.error for run in seen.hooks):
        first = next((call for call in raised if call.error is seen.error), None)
        where = f"in {_layer(first)}" if first else "outside of any layer"
        cause = "view_written" if is_write_to_hooked(seen.error) else "raised"
        yield Finding.of(cause, f"{where}: {_words(seen.error)}", name)
    if seen.backward_error is not None and all(run.error is not seen.backward_error for run in seen.hooks):
        yield Finding.of("raised", f"in the backward pass: {_words(seen.backward_error)}", name)
    if seen.error is None and raised and not any(call.returned for call in own):
        evidence = f"{_layer(raised[0])}: {_words(raised[0].error)}"
        yield Finding.of("swallowed", evidence, name, other=as_code(raised[0].name or "", "self"))
    yield from _examine_hooks(seen, name, hooks)
    if not own and seen.error is None:
        yield from _explain_uncalled(seen, name, args, kwargs)
    if any(call.returned for call in own) and seen.error is None:
        yield from _examine_calls(seen, name, own, hooks, args)
    working = [run for run in seen.hooks if run.fired]
    if working:
        fired = ", ".join(f"{_named(run.entry)} fired {_times(run.fired)}" for run in working)
        yield Finding.of("fires", fired, name)


def _examine_hooks(seen: WatchedPass, name: str, hooks: list[HookEntry]) -> Iterator[Finding]:
    """Yield what the lists of hooks show."""
    if not [entry for entry in hooks if entry.kind in _CALLED or entry.tensor]:
        other = [entry for entry in census(seen.modules.model, include_global=False) if not entry.by_torch]
        there = f"the model has {_count(other)} elsewhere" + (f", such as on {other[0].where!r}" if other else "")
        yield Finding.of("no_hook", f"it has only {_named(hooks[0])}" if hooks else there, name)
    for (shown, kind, _), count in Counter((_named(entry), entry.kind, entry.tensor) for entry in hooks).items():
        if count > 1:
            yield Finding.of("registered_again", f"{shown} is registered {_times(count)}, as {kind} hook", name)
    for entry, variable, value in _late_names(seen, name, hooks):
        yield Finding.of("late_name", f"{_named(entry)} reads {variable}, which is {value!r}", name)
    has_raised = seen.error is not None or any(run.error is not None for run in seen.hooks)
    if seen.kept and not has_raised and any(run.fired and run.entry.kind == "forward" for run in seen.hooks):
        yield Finding.of("keeps_graph", "it requires grad, and nothing of the pass is needed now", name)
    if seen.new_hooks:
        yield Finding.of(
            "registered_again", f"{_count(seen.new_hooks)} more after this pass: forward registers it", name
        )
    for entry in (entry for entry in hooks if entry.kind == "backward (legacy)"):
        yield Finding.of("legacy", _named(entry), name)
    for run in seen.hooks:
        is_pre = run.entry.kind == "forward_pre"
        value = "args[0]" if is_pre else "output"
        if run.returned:
            words = {"other": _SIGNATURES[run.entry.kind], "other_value": value}
            yield Finding.of("replaced", f"{_named(run.entry)} returned a {run.returned}", name, **words)
        if run.wrote:
            yield Finding.of("wrote", _named(run.entry), name, other="grad" if "backward" in run.entry.kind else value)
        if run.no_grad_input:
            yield Finding.of("no_grad_input", f"{_named(run.entry)} got no tensor in grad_input", name)
        if is_pre and len(seen.hooks) == 1:
            yield Finding.of("pre_hook", _named(run.entry), name)
    by_torch = [entry for entry in census(seen.layer, include_global=False) if entry.by_torch and not entry.layer]
    if by_torch:
        yield Finding.of("torch_hooks", "; ".join(map(_named, by_torch)), name)
    if everywhere := [entry for entry in census() if not entry.by_torch]:
        yield Finding.of("global_hooks", "; ".join(map(_named, everywhere)), name)
    if "forward" in vars(seen.layer):
        yield Finding.of("forward_replaced", str(census(seen.layer).notes[0]), name)


def _late_names(seen: WatchedPass, name: str, hooks: list[HookEntry]) -> Iterator[tuple[HookEntry, str, str]]:
    """Yield the hooks that read the name of another layer from a variable, and this name."""
    others = set(seen.modules.names.values()) - {*seen.modules.names_of(seen.layer), ""}
    for entry in hooks:
        hook = getattr(seen.layer, entry._attribute, {}).get(entry._id)
        if not entry.tensor and inspect.isfunction(hook):
            read = inspect.getclosurevars(hook)
            for variable, value in {**read.globals, **read.nonlocals}.items():
                if isinstance(value, str) and value in others:
                    yield entry, variable, value


def _explain_uncalled(
    seen: WatchedPass, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield why the layer was not called."""
    modules, layer = seen.modules, seen.layer
    called = {call.module: call.name for call in seen.calls}
    parents = [name[: at.start()] for at in re.finditer(r"\.", name)][::-1]
    around = next((parent for parent in parents if modules.find(parent) in called), "")
    if is_never_called(layer):
        why = why_uncalled(layer).partition(": ")[2]
        yield Finding.of("never_called", why, name, other=_instead(layer, name))
        return
    if (block := find_fused(modules, [layer]).get(layer)) is not None and block.would_run():
        yield Finding.of("fused", f"{block.name!r} is in eval() and gradients are off", name)
        return
    ran, used = find_ways_around(modules, layer, args, kwargs)
    for function, place, owner in ran[:1]:
        cause = "call_overridden" if function == "__call__" else "forward_called"
        yield Finding.of(cause, f"{_times(len(ran))}, in {place}", name, other=_relative(modules, name, owner))
    if ran:
        return
    inside = [called[each] for each in collect_submodules([layer]) if each in called]
    if inside:
        yield Finding.of("children_called", f"{len(inside)} modules in it were called, such as {inside[0]!r}", name)
        return
    weights = set(map(id, layer.parameters()))
    for function, place, owner in used:
        # A layer that was called uses a weight that it shares with this one.
        if owner not in called or not weights & set(map(id, owner.parameters(recurse=False))):
            write = _relative(modules, name, owner)
            yield Finding.of("weight_used", f"{function} gets the weight, in {place}", name, other=write)
            return
    with preserve_model(modules.model):
        modules.model.train(not layer.training)
        other = WatchedPass(modules, layer, []).run(args, kwargs, backward=False)
    if any(call.module is layer and call.returned for call in other.calls):
        modes = ("train", "eval") if layer.training else ("eval", "train")
        yield Finding.of("other_mode", f"the model is in {modes[0]}() now, not in {modes[1]}()", name, other=modes[1])
        return
    for module, there in called.items():
        if there and type(module) is type(layer) and weights and _alike(module, layer, _values):
            yield Finding.of("copy_called", f"{there!r} was called, and has equal weights", name, other=as_code(there))
            return
    beside = [repr(call.name) for call in seen.calls if call.parent == around and call.name is not None]
    ran_there = f"calls {', '.join(dict.fromkeys(beside[:4]))}" if beside else "calls no layer"
    instead = as_code(around)
    yield Finding.of(
        "not_reached", f"{repr(around) if around else 'the model'} {ran_there} in this pass", name, other=instead
    )


def _examine_calls(
    seen: WatchedPass, name: str, own: list[ModuleCall], hooks: list[HookEntry], args: tuple[Any, ...]
) -> Iterator[Finding]:
    """Yield what happens to the output of a layer that was called."""
    if seen.overwritten:
        yield Finding.of("overwritten", seen.overwritten, name)
    again = sum(call.module is seen.layer for call in seen.calls if call.backward)
    if again:
        yield Finding.of("checkpoint", f"{_times(len(own))} forward and {_times(again)} in backward", name)
    if len(own) > 1:
        names = seen.modules.names_of(seen.layer)
        shared = f", under the names {', '.join(map(repr, names))}" if len(names) > 1 else ""
        yield Finding.of("called_often", _times(len(own)) + shared, name)
    silent = [run for run in seen.hooks if run.entry.kind in _BACKWARD and not run.fired]
    if not silent and not any(entry.kind in _BACKWARD and entry.tensor for entry in hooks):
        return
    if not any(tensor.requires_grad for tensor in find_tensors(seen.outputs)):
        yield _explain_no_grad(seen, name, own[-1], args)
    elif not seen.reached:
        yield _explain_cut(seen, name)
    elif silent:
        paths = [(path, tensor) for path, tensor in find_paths(seen.outputs[-1]) if tensor.requires_grad]
        inner = next((path for path, _ in paths if len(path) > 1 or not isinstance(seen.outputs[-1], tuple)), ())
        kind = type(seen.outputs[-1]).__name__
        if inner:
            evidence = f"it is a {kind}, and {_named(silent[0].entry)} did not fire for output{keystr(inner)}"
            yield Finding.of("nested_output", evidence, name, other=keystr(inner))
        else:
            yield Finding.of("silent", f"{_named(silent[0].entry)} did not fire", name)


def _explain_no_grad(seen: WatchedPass, name: str, call: ModuleCall, args: tuple[Any, ...]) -> Finding:
    """Return why the output of a layer does not require grad."""
    if not call.grad_mode:
        first = next(each for each in seen.calls if not each.grad_mode)
        if first.parent is None:
            write = "with torch.enable_grad():\n    model(x).sum().backward()"
            return Finding.of("no_grad", "they are off where you call diagnose", name, other=write)
        there = f"in forward of {seen.modules.find(first.parent).__class__.__name__}, at {first.name!r}"
        return Finding.of(
            "no_grad", there, name, other=f"x = {as_code(first.name or '', 'self')}(x)  # not in no_grad()"
        )
    parameters = list(seen.layer.parameters())
    given = next(iter(find_tensors(args)), None)
    who = "x" if given is not None and given.is_floating_point() else as_code(name)
    evidence = f"0 of its {len(parameters)} parameters and 0 of its {len(call.requires_grad)} inputs require grad"
    return Finding.of("frozen", evidence, name, other=who)


def _explain_cut(seen: WatchedPass, name: str) -> Finding:
    """Return why no gradient reaches an output that requires grad."""
    known = frozenset[int]().union(*(call.addresses for call in seen.calls[: seen.end])) - seen.addresses
    later = [
        call
        for call in seen.calls[seen.end :]
        if call.requires_grad and not any(call.requires_grad) and not call.addresses <= known
    ]
    same = [call for call in later if call.addresses & seen.addresses]
    for call in same or later:
        return Finding.of("detached", f"the input of {_layer(call)} does not require grad", name)
    if not seen.goal:
        return Finding.of("detached", "the result of the model does not require grad", name)
    return Finding.of("unused", "backward from the result does not reach it", name)


def _instead(layer: nn.Module, name: str) -> str:
    """Write what to hook instead of a module that torch never calls."""
    if isinstance(layer, (nn.ParameterList, nn.ParameterDict)):
        return f"handle = {as_code(name)}[key].register_hook(hook)"
    if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):
        return f"for step in {as_code(name)}.children():\n    step.register_forward_hook(hook)"
    return f"handle = {as_code(name.rpartition('.')[0])}.register_forward_hook(hook)"


def _relative(modules: Modules, name: str, owner: nn.Module | None) -> str:
    """Write the name of a layer as the code of another module would."""
    prefix = modules.names.get(owner, "") if owner is not None else ""
    return as_code(name[len(prefix) :].lstrip("."), "self") if name.startswith(prefix) else as_code(name)


def _values(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.detach().sum().item()


def _named(entry: HookEntry) -> str:
    return f"{entry.callable} ({entry.location})"


def _layer(call: ModuleCall) -> str:
    return f"{call.name!r} ({kind_of(call.module)})" if call.name else f"the {kind_of(call.module)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _words(error: BaseException | None) -> str:
    text = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {text}"
