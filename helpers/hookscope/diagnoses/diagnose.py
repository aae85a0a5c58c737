"""Run a model once, and sort the findings of the pass by what to mend first."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._pytree import keystr

from hookscope.captures.call import is_never_called, why_uncalled
from hookscope.captures.unregistered import unregistered_modules
from hookscope.censuses import HookEntry, census
from hookscope.diagnoses.causes import CAUSES, Finding, as_code
from hookscope.diagnoses.watched_pass import HookRun, ModuleCall, WatchedPass
from hookscope.layers import Modules, is_write_to_hooked, pick
from hookscope.layers.modules import check_model, collect_submodules, kind_of
from hookscope.model_inputs import check_inputs, check_kwargs
from hookscope.pictures import Result
from hookscope.pictures.words import count_text
from hookscope.preserve import preserve_model
from hookscope.pytree import find_paths, find_tensors

__all__ = ["Diagnosis", "diagnose"]

# Kind of a hook that torch calls with the layer -> its arguments, and the value to keep.
_HOOKS = {
    "forward_pre": ("module, args", "args[0]"),
    "forward": ("module, args, output", "output"),
    "full_backward_pre": ("module, grad_output", "grad_output[0]"),
    "full_backward": ("module, grad_input, grad_output", "grad_output[0]"),
    "backward (legacy)": ("module, grad_input, grad_output", "grad_output[0]"),
}
_BACKWARD = (*list(_HOOKS)[2:], "tensor", "post_accumulate_grad")
_PARALLEL = DataParallel, DistributedDataParallel


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
        TypeError, ValueError: an argument is wrong, or the model is TorchScript, or runs on several devices.

    Example:
        >>> import torch
        >>> from torch import nn
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
    wrapped = None if isinstance(model, torch.jit.ScriptModule) else model._modules.get("_orig_mod")
    found = pick(Modules(wrapped) if wrapped is not None and isinstance(layer, str) else modules, layer)
    if len(found) > 1:
        raise ValueError(f"{layer!r} matches {len(found)} layers. Pass one of them, such as {next(iter(found))!r}")
    ((name, target),) = found.items()
    if isinstance(target, torch.jit.ScriptModule):
        raise ValueError(
            f"{kind_of(target)} is TorchScript, which runs only some hooks. Pass the model that you gave to torch.jit"
        )
    hooks = [entry for entry in census(target, include_global=False) if entry.layer == "" and not entry.by_torch]
    caption = f"{kind_of(model)}: {f'layer {name!r}' if name else 'the root'} ({kind_of(target)}), {_count(hooks)}"
    if around := [each for each in modules.compiled if target in collect_submodules([each])]:
        evidence = f"{kind_of(around[0])} is around the layer; the layer has {_count(hooks)}"
        return Diagnosis(name, caption, [Finding.of("compiled", evidence, name)])
    check_inputs("diagnose", model, args, kwargs)
    runs = [HookRun(entry) for entry in hooks if entry.kind in _HOOKS]
    seen = WatchedPass(modules, target, runs).run(args, kwargs)
    calls = [call for call in seen.calls if call.module is target and not call.backward]
    findings = [*_examine_hooks(seen, name, hooks), *_examine_errors(seen, name, calls)]
    if any(call.returned for call in calls) and (seen.error is None or seen.in_backward):
        findings += _examine_calls(seen, name, calls, hooks, (args, kwargs))
    notes: tuple[str, ...] = ()
    if not calls and seen.error is None:
        findings.append(_explain_uncalled(seen, name, args, kwargs))
        notes = tuple(unregistered_modules(modules))
    return Diagnosis(name, f"{caption}, called {count_text(len(calls), 'time')}", findings, notes)


def _count(hooks: list[Any]) -> str:
    return f"{len(hooks) or 'no'} hook{'' if len(hooks) == 1 else 's'}"


def _diagnose_stranger(modules: Modules, layer: nn.Module) -> Diagnosis:
    """Diagnose a module that is not in the model."""
    same = {name: module for module, name in modules.names.items() if type(module) is type(layer)}
    near = [name for name, module in same.items() if _is_copy(module, layer)] or list(same)
    hooks = [entry for entry in census(layer, include_global=False) if not entry.by_torch]
    there = "the model has no layer of this class"
    if near:
        there = f"the model calls {'a different one' if len(near) == 1 else 'others'}, {', '.join(map(repr, near[:4]))}"
    evidence = f"{_count(hooks)} on this {kind_of(layer)}, but {there}"
    other = as_code(near[0]) if len(near) == 1 else "model.get_submodule(name)"
    found = Finding.of("not_in_model", evidence, "", other=other)
    return Diagnosis("", f"{kind_of(modules.model)}: a {kind_of(layer)} from elsewhere, {_count(hooks)}", [found])


def _is_copy(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules are of one class, with equal parameters."""
    pairs = list(zip(one.parameters(), other.parameters(), strict=False))
    return type(one) is type(other) and bool(pairs) and all(_is_equal(a, b) for a, b in pairs)


def _is_equal(one: Tensor, other: Tensor) -> bool:
    readable = not (is_lazy(one) or is_lazy(other) or one.is_meta or one.device != other.device)
    return readable and one.shape == other.shape and one.equal(other)


def _find_twins(seen: WatchedPass) -> list[nn.Module]:
    """List the modules outside the model that this layer is a copy of, or that are copies of it."""
    alike = [each for each in gc.get_objects() if type(each) is type(seen.layer) and each not in seen.modules.names]
    return [each for each in alike if "_parameters" in vars(each) and _is_copy(each, seen.layer)]


def _count_users(layer: nn.Module, entry: HookEntry) -> int:
    """Count the references to the object that a hook writes into; 0 for a function, which a deep copy shares."""
    hook = getattr(layer, entry._attribute).get(entry._id)
    return 0 if hook is None or inspect.isfunction(hook) else sys.getrefcount(getattr(hook, "__self__", hook))


def _examine_hooks(seen: WatchedPass, name: str, hooks: list[HookEntry]) -> Iterator[Finding]:
    """Yield what the hooks of the layer did, and how they were registered."""
    found, layer = partial(Finding.of, layer=name), seen.layer
    if not [entry for entry in hooks if entry.kind in _HOOKS or entry.tensor]:
        other = [entry for entry in census(seen.modules.model, include_global=False) if not entry.by_torch]
        there = f"the model has {_count(other)} elsewhere" + (f", such as on {other[0].where!r}" if other else "")
        if any(not each.by_torch for twin in _find_twins(seen) for each in census(twin, include_global=False)):
            there = f"a {kind_of(layer)} with equal weights that is not in this model has one: is the model a copy?"
        yield found("no_hook", f"it has only {_named(hooks[0])}" if hooks else there)
    for (shown, kind, _), count in Counter((_named(entry), entry.kind, entry.tensor) for entry in hooks).items():
        if count > 1:
            yield found("registered_again", f"{shown} is registered {_times(count)}, as {kind} hook")
    for run in seen.hooks:
        kind, named = run.entry.kind, _named(run.entry)
        arguments, value = _HOOKS[kind]
        if "with_kwargs" in run.entry.options:
            arguments = arguments.replace("args", "args, kwargs")
        elif seen.keywords and (kind == "forward_pre" or (kind == "forward" and isinstance(run.error, IndexError))):
            evidence = f"its inputs are {', '.join(f'{each}=' for each in seen.keywords)}"
            yield found("keyword_inputs", evidence, other=f"register_{kind}_hook")
        if run.error is not None:
            where = f"{run.entry.callable} ({run.place or run.entry.location})"
            write = "" if run.place else f"def hook({arguments}):"
            if run.place and kind == "forward" and seen.outputs and isinstance(seen.outputs[-1], tuple):
                where, write = f"the layer returns a tuple; {where}", "output = output[0]  # at the top of your hook"
            yield found("hook_raised", f"{where}: {_words(run.error)}", other=write)
        if run.returned:
            yield found("replaced", f"{named} returned a {run.returned}", other=arguments, value=value)
        if run.wrote:
            yield found("wrote", named, other=value)
        if run.no_grad_input:
            evidence, write = f"{named} got no tensor in grad_input", "x.requires_grad_()"
            if not any(call.inputs for call in seen.calls if call.module is layer):
                evidence += ", and integers have no gradient"
                write = "def hook(module, grad_input, grad_output):\n    kept.append(grad_output[0].clone())"
            yield found("no_grad_input", evidence, other=write)
        if kind == "backward (legacy)":
            yield found("legacy", named)
        if kind == "forward_pre" and len(seen.hooks) == 1:
            yield found("pre_hook", named)
        if any(_count_users(each, run.entry) > _count_users(layer, run.entry) for each in _find_twins(seen)):
            yield found("copied", f"{named} is also on a {kind_of(layer)} that is not in this model")
        yield from (found("late_name", each) for each in _find_late_names(seen.modules, layer, run.entry))
    if fired := [run for run in seen.hooks if run.fired and run.error is None]:
        write = "model(x)  # after you have registered the hook"
        if any(run.entry.kind in _BACKWARD for run in fired):
            write = "model(x).sum().backward()  # not under torch.no_grad()"
        evidence = ", ".join(f"{_named(run.entry)} fired {_times(run.fired)}" for run in fired)
        yield found("fires", evidence, other=write)


def _find_late_names(modules: Modules, layer: nn.Module, entry: HookEntry) -> Iterator[str]:
    """Yield the variables in which a hook reads the name of another layer."""
    hook = getattr(layer, entry._attribute).get(entry._id)
    if inspect.isfunction(hook):
        others = set(modules.names.values()) - {*modules.names_of(layer), ""}
        read = inspect.getclosurevars(hook)
        for variable, value in {**read.globals, **read.nonlocals}.items():
            if isinstance(value, str) and value in others:
                yield f"{_named(entry)} reads {variable}, which is {value!r}"


def _examine_errors(seen: WatchedPass, name: str, own: list[ModuleCall]) -> Iterator[Finding]:
    """Yield the exceptions that the hooks have not raised."""
    error, of_hooks = seen.error, [run.error for run in seen.hooks]
    raised = [call for call in seen.calls if call.error is not None and call.error not in of_hooks]
    if error is not None and error not in of_hooks:
        inside = [call for call in raised if call.error is error]
        where = "in the backward pass" if seen.in_backward else f"in {inside[-1]}" if inside else "outside of any layer"
        cause, layers = "raised", [name]
        if is_write_to_hooked(error):
            full = [each for each in census(seen.modules.model, include_global=False) if "full_backward" in each.kind]
            cause, layers = "view_written", list(dict.fromkeys(each.layer for each in full if each.layer)) or layers
            where = f"the hook is on {', '.join(map(repr, layers))}, and the write is {where}"
        yield Finding.of(cause, f"{where}: {_words(error)}", name, other=as_code(layers[0]))
    elif error is None and raised and not any(call.returned for call in own):
        evidence = f"{raised[-1]}: {_words(raised[-1].error)}"
        yield Finding.of("swallowed", evidence, name, other=as_code(raised[-1].name or "", "self"))


def _explain_uncalled(seen: WatchedPass, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finding:
    """Return why the layer was not called."""
    found, modules, layer = partial(Finding.of, layer=name), seen.modules, seen.layer
    called = {call.module: call.name for call in seen.calls}
    if is_never_called(layer):
        write = f"handle = {as_code(name.rpartition('.')[0])}.register_forward_hook(hook)"
        if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):
            write = f"for step in {as_code(name)}.children():\n    step.register_forward_hook(hook)"
        return found("never_called", why_uncalled(layer).partition(": ")[2], other=write)
    parents = [name[: at.start()] for at in re.finditer(r"\.", name)][::-1]
    around = next((parent for parent in parents if modules.find(parent) in called), "")
    in_self = as_code(name[len(around) :].lstrip("."), "self")
    weights = set(map(id, layer.parameters()))
    ways = WatchedPass(modules, layer, []).run(args, kwargs, backward=False, around=True).ways_around
    for _, call in [way for way in ways if way[0] == "forward()"]:
        if "__call__" in vars(type(layer)):
            return found("forward_called", f"in __call__ of {kind_of(layer)}", other="super().__call__")
        return found("forward_called", f"in forward of {call}", other=in_self)
    inside = [called[each] for each in collect_submodules([layer]) if each in called]
    if inside:
        return found("children_called", f"{count_text(len(inside), 'module')} in it ran, such as {inside[0]!r}")
    for function, call in ways:
        # A layer that was called can use a weight that it shares with this one.
        if not weights & set(map(id, call.module.parameters(recurse=False))):
            return found("weight_used", f"{function} gets the weight, in forward of {call}", other=in_self)
    with preserve_model(modules.model):
        modules.model.train(not layer.training)
        other = WatchedPass(modules, layer, []).run(args, kwargs, backward=False)
    if any(call.module is layer and call.returned for call in other.calls):
        now, then = ("train", "eval") if layer.training else ("eval", "train")
        return found("other_mode", f"the model is in {now}() now, not in {then}()", other=then)
    if twins := [there for module, there in called.items() if there and _is_copy(module, layer)]:
        return found("copy_called", f"{twins[0]!r} was called, and has equal weights", other=as_code(twins[0]))
    beside = [call.name for call in seen.calls if call.parent and call.parent.name == around and call.name]
    ran = f"calls {', '.join(map(repr, dict.fromkeys(beside[:4])))}" if beside else "calls no layer"
    return found("not_reached", f"{repr(around) if around else 'the model'} {ran} in this pass", other=as_code(around))


def _examine_calls(
    seen: WatchedPass, name: str, own: list[ModuleCall], hooks: list[HookEntry], given: Any
) -> Iterator[Finding]:
    """Yield what happens to the output of a layer that was called."""
    found, fired = partial(Finding.of, layer=name), max([run.fired for run in seen.hooks], default=0)
    if seen.overwritten:
        yield found("overwritten", seen.overwritten)
    hooked = any(run.fired and run.entry.kind == "forward" for run in seen.hooks)
    if seen.kept and hooked and not any(run.error for run in seen.hooks):
        yield found("keeps_graph", "it requires grad, and nothing of the pass is needed now")
    again = sum(call.module is seen.layer for call in seen.calls if call.backward)
    if again and fired > len(own):
        yield found("checkpoint", f"{_times(len(own))} forward and {_times(again)} in backward")
    if len(own) > 1:
        names = seen.modules.names_of(seen.layer)
        shared = f", under the names {', '.join(map(repr, names))}" if len(names) > 1 else ""
        yield found("called_often", _times(len(own)) + shared)
    silent = [run for run in seen.hooks if run.entry.kind in _BACKWARD and not run.fired]
    if seen.error is not None or not (silent or any(entry.kind in _BACKWARD and entry.tensor for entry in hooks)):
        return
    if not any(tensor.requires_grad for tensor in find_tensors(seen.outputs)):
        yield _explain_no_grad(seen, name, own[-1], given)
    elif not seen.reached:
        evidence = "backward from the result does not reach it"
        cut = [
            call
            for call in seen.calls[seen.end :]
            if call.inputs and not any(call.inputs.values()) and call.inputs.keys() & seen.addresses
        ]
        if cut:
            evidence = f"the input of {cut[0]} does not require grad"
        elif not seen.has_goal:
            evidence = "the result of the model does not require grad"
        yield found("detached", evidence)
    elif silent:
        output, named = seen.outputs[-1], _named(silent[0].entry)
        paths = [path for path, tensor in find_paths(output) if tensor.requires_grad]
        inner = next((keystr(path) for path in paths if len(path) > 1 or not isinstance(output, tuple)), "")
        if inner:
            kind = type(output).__name__
            yield found("nested_output", f"it is a {kind}, and {named} did not fire for output{inner}", other=inner)
        else:
            yield found("silent", f"{named} did not fire")


def _explain_no_grad(seen: WatchedPass, name: str, call: ModuleCall, given: Any) -> Finding:
    """Return why the output of a layer does not require grad."""
    if not call.grad_mode:
        first = next(each for each in seen.calls if not each.grad_mode)
        where, write = "where you call diagnose", "with torch.enable_grad():\n    model(x).sum().backward()"
        if first.parent is not None:
            where = f"in forward of {first.parent}, at {first.name!r}"
            write = f"x = {as_code(first.name or '', 'self')}(x)  # not in no_grad()"
        return Finding.of("no_grad", f"they are off {where}", name, other=write)
    inputs, count = find_tensors(given), len(list(seen.layer.parameters()))
    other = "x" if inputs and inputs[0].is_floating_point() else as_code(name)
    evidence = f"0 of its {count_text(count, 'parameter')} and 0 of its {count_text(len(call.inputs), 'input')}"
    return Finding.of("frozen", f"{evidence} require grad", name, other=other)


def _named(entry: HookEntry) -> str:
    return f"{entry.callable} ({entry.location})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _words(error: BaseException | None) -> str:
    text = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {text}"
