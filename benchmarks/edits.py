"""Which tool makes the awkward edits of `tests/shared/awkward_edits`, and which leaves them undone without a word."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import operator
import warnings
from collections.abc import Callable
from inspect import signature
from types import SimpleNamespace
from typing import Any

from torch import nn

from hookscope.interp.edits.nested_values import get, put
from tests.shared.awkward_edits import CASES, EditCase

__all__ = ["EDITORS", "CannotError", "by_name", "count", "envoy_of", "table", "verdict"]

Editor = Callable[[EditCase, nn.Module], Any]


class CannotError(Exception):
    """The tool has no way to ask for this edit."""


def hookscope(case: EditCase, model: nn.Module) -> Any:
    """`hookscope.edit`."""
    return case.edited(model)


def _new(case: EditCase, value: Any) -> Any:
    if case.part is None and isinstance(value, tuple):
        return (case.whole(value[0]), *value[1:])
    path = case.part if isinstance(case.part, tuple) else () if case.part is None else (case.part,)
    return put(value, path, case.whole(get(value, path)))


def plain_hooks(case: EditCase, model: nn.Module) -> Any:
    """Hooks of torch, as one writes them at first."""
    layer = model.get_submodule(case.layer)
    calls = 0

    def counted() -> bool:
        nonlocal calls
        calls += 1
        return case.calls is None or calls in case.calls

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return _new(case, output) if counted() else None

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if isinstance(case.part, str):
            return args, _new(case, kwargs)
        return (case.whole(args[0]), *args[1:]), kwargs

    def backward(module: nn.Module, grad_output: Any) -> Any:
        return (case.whole(grad_output[0].clone()),)

    if case.to == "grad":
        handle = layer.register_full_backward_pre_hook(backward)
    elif case.to == "input":
        handle = layer.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = layer.register_forward_hook(after)
    try:
        return case.run(model)
    finally:
        handle.remove()


def baukit(case: EditCase, model: nn.Module) -> Any:
    """`Trace(model, layer, edit_output=...)` of baukit, which is not on PyPI: the lines of its nethook.py that edit."""
    if case.to != "output":
        raise CannotError("edit_output edits outputs")
    layer = dict(model.named_modules())[case.layer]
    calls = 0

    def retain_hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        return _new(case, output) if case.calls is None or calls in case.calls else output

    handle = layer.register_forward_hook(retain_hook)
    try:
        return case.run(model)
    finally:
        handle.remove()


class _Through(nn.Module):
    """Runs each call of a model through a tool; all else is the model's.

    Args:
        model: the model.
        ask: called with what is to be called, positional and keyword arguments; gives what that returned, edited.
        generates: whether it can ask for the model's `generate`, too.

    """

    def __init__(self, model: nn.Module, ask: Callable[..., Any], generates: bool = False) -> None:
        super().__init__()
        self.__dict__.update(original=model, ask=ask, generates=generates)
        for other in ("compiled", "traced"):
            if other in model.__dict__:
                self.__dict__[other] = _Through(model.__dict__[other], ask)

    def __getattr__(self, name: str) -> Any:
        original = self.__dict__["original"]
        if name != "generate":
            return getattr(original, name)
        if not self.__dict__["generates"]:
            raise CannotError("it has no generate() for a model without a tokenizer")
        return lambda *args, **kwargs: self.__dict__["ask"](original.generate, args, kwargs)

    def __getitem__(self, index: int) -> Any:
        return self.__dict__["original"][index]

    def parameters(self, recurse: bool = True) -> Any:
        return self.__dict__["original"].parameters(recurse)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["ask"](self.__dict__["original"], args, kwargs)


def nnsight(case: EditCase, model: nn.Module) -> Any:
    """`envoy.output = ...` in a trace of nnsight."""
    from nnsight import NNsight

    if case.to != "output" or case.calls is not None:
        raise CannotError("written here for outputs and first calls")

    def ask(called: nn.Module, args: Any, kwargs: Any) -> Any:
        traced = NNsight(called)
        envoy = envoy_of(traced, case.layer)
        with traced.trace(*args, **kwargs):
            envoy.output = _new(case, envoy.output)
            output = traced.output.save()
        return output  # noqa: RET504 (nnsight runs the lines of the block elsewhere, and saves what has a name there)

    # A copy, for its wrapper stays on the model by design, and that is no edit left behind.
    return case.run(_Through(copy.deepcopy(model), ask))


def envoy_of(traced: Any, layer: str) -> Any:
    """Return what stands for a layer in a model that nnsight has wrapped."""
    for part in layer.split("."):
        traced = traced[int(part)] if part.isdigit() else getattr(traced, part)
    return traced


def tdhook(case: EditCase, model: nn.Module) -> Any:
    """`SteeringVectors` of tdhook for a whole output; a live replacement in its `HookSession` for all else."""
    from tdhook.latent.steering_vectors import SteeringVectors
    from tdhook.session import HookSession
    from tdhook.targets import Target

    if case.to == "output" and case.part is None and case.calls is None:

        def steer(module_key: str, output: Any) -> Any:
            return _new(case, output)

        with SteeringVectors([case.layer], steer).prepare(model):
            return case.run(model)
    path = () if case.part is None else case.part if isinstance(case.part, tuple) else (case.part,)
    direction = {"output": "fwd", "input": "fwd_pre", "grad": "bwd_pre"}[case.to]
    if case.to == "input" and case.part is not None:
        direction, path = "fwd_pre_kwargs", (1, *path)
    calls = tuple(sorted(call - 1 for call in case.calls)) if case.calls else None
    kind = "gradient" if case.to == "grad" else "activation"
    target = Target(case.layer, kind, -1, tuple(range(_features(case))), output_path=path, occurrences=calls)
    with HookSession(model) as session:
        live = session.capture(target, direction=direction, detach=False)
        session.replace(target, live, direction=direction, transform=case.whole)
        return case.run(model)


def _features(case: EditCase) -> int:
    """How many features the edited tensor has: tdhook wants them listed."""
    found = []

    def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        value = output if case.to != "input" else args[0] if case.part is None else kwargs
        path = () if case.part is None else case.part if isinstance(case.part, tuple) else (case.part,)
        found.append(get(value, path).shape[-1])

    model = case.made()
    model.get_submodule(case.layer).register_forward_hook(look, with_kwargs=True)
    case.run(model)
    return int(found[0])


def pyvene(case: EditCase, model: nn.Module) -> Any:
    """A function as the `intervention` on `"layer.output"` or `"layer.input"` of an `IntervenableModel` of pyvene."""
    from pyvene import IntervenableModel
    from transformers import PretrainedConfig

    if case.to == "grad" or case.part is not None or case.calls is not None:
        raise CannotError("it edits one tensor of outputs and inputs, in all calls")

    def edited(base: Any, source: Any) -> Any:
        return case.whole(base)

    def ask(called: Any, args: Any, kwargs: Any) -> Any:
        owner = called if isinstance(called, nn.Module) else called.__self__
        if not hasattr(owner, "config"):  # it asks every model for one
            owner.config = PretrainedConfig()
        wrapped = IntervenableModel({"component": f"{case.layer}.{case.to}", "intervention": edited}, model=owner)
        owner.requires_grad_(True)  # which it has switched off
        if called is not owner:
            return wrapped.generate({"input_ids": args[0]}, intervene_on_prompt=True, **kwargs)[1]
        return wrapped({**by_name(owner, args), **kwargs}, use_cache=None)[1]

    # A copy, for it changes `requires_grad` of all parameters by design.
    return case.run(_Through(copy.deepcopy(model), ask, generates=True))


def by_name(model: nn.Module, args: Any) -> dict[str, Any]:
    """Name positional arguments, as pyvene takes only named ones."""
    names = [
        each.name for each in signature(model.forward).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    return dict(zip(names or ["x"], args, strict=False))


def torchlens(case: EditCase, model: nn.Module) -> Any:
    """`tl.trace(model, ..., intervene=tl.when(tl.module(layer), function))` of torchlens."""
    import torchlens as tl

    if case.to != "output":
        raise CannotError("written here for outputs")

    def edited(activation: Any, *, hook: Any) -> Any:
        return case.whole(activation)

    def ask(called: Any, args: Any, kwargs: Any) -> Any:
        where = [f"{case.layer}:{call}" for call in sorted(case.calls)] if case.calls else [case.layer]
        site = functools.reduce(operator.or_, map(tl.module, where))
        if case.part is not None:
            site &= tl.output_at(case.part)
        whole = tl.options.CaptureOptions(capture_container_structure=True, unwrap_when_done=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Capture-time intervention selector")  # a warning is said, too
            log = tl.trace(called, list(args), kwargs, intervene=tl.when(site, edited), capture=whole)
        try:
            return log.reconstruct_output()
        except tl.errors.PayloadUnavailableError:  # a ModelOutput: its tensors are there, and logits are the first
            return SimpleNamespace(logits=log[log.output_layers[0]].out)

    return case.run(_Through(model, ask))


EDITORS: dict[str, Editor] = {
    "plain hooks": plain_hooks,
    "baukit's way": baukit,
    "nnsight": nnsight,
    "tdhook": tdhook,
    "pyvene": pyvene,
    "torchlens": torchlens,
    "**hookscope**": hookscope,
}


def verdict(editor: Editor, case: EditCase) -> tuple[str, str]:
    """Judge one tool on one case: right, refused, not applied, wrong, raises, left behind or cannot; what it said."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found, said = case.judge(lambda model: editor(case, model))
    return ("cannot" if said.startswith("CannotError") else found), said


def count(found: dict[str, str], *names: str) -> int:
    """Count the cases with one of these verdicts."""
    return sum(each in names for each in found.values())


def table() -> list[dict[str, object]]:
    """Count the verdicts of every tool."""
    rows: list[dict[str, object]] = []
    for label, editor in EDITORS.items():
        found = {name: verdict(editor, case)[0] for name, case in CASES.items()}
        rows.append(
            {
                "tool": label,
                "right, or refused": count(found, "right", "refused"),
                "not applied": count(found, "not applied"),
                "wrong": count(found, "wrong"),
                "raises": count(found, "raises"),
                "left behind": count(found, "left behind"),
                "cannot": count(found, "cannot"),
                "not right on": ", ".join(name for name, each in found.items() if each not in ("right", "refused")),
            }
        )
        print(rows[-1], flush=True)
    return rows
