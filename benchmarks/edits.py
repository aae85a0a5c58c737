"""Which tool makes the awkward edits of `tests/shared/edits.py`, and which leaves them undone without a word."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

from torch import nn

from hookscope.edits.parts import get, put
from tests.shared.edits import CASES, EditCase

__all__ = ["EDITORS", "table"]

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


class _Traced(nn.Module):
    """Runs each call of a model in a trace of nnsight; all else is the model's."""

    def __init__(self, case: EditCase, model: nn.Module) -> None:
        super().__init__()
        from nnsight import NNsight

        self.__dict__.update(case=case, original=model, traced=NNsight(model))

    def __getattr__(self, name: str) -> Any:
        if name == "generate":
            raise CannotError("NNsight has no generate(); its LanguageModel wants a tokenizer")
        return getattr(self.__dict__["original"], name)

    def __getitem__(self, index: int) -> Any:
        return self.__dict__["original"][index]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        case, traced = self.__dict__["case"], self.__dict__["traced"]
        envoy = traced
        for part in case.layer.split("."):
            envoy = envoy[int(part)] if part.isdigit() else getattr(envoy, part)
        with traced.trace(*args, **kwargs):
            envoy.output = _new(case, envoy.output)
            output = traced.output.save()
        return output  # noqa: RET504 (nnsight runs the lines of the block elsewhere, and saves what has a name there)


def nnsight(case: EditCase, model: nn.Module) -> Any:
    """`envoy.output = ...` in a trace of nnsight."""
    if case.to != "output" or case.calls is not None:
        raise CannotError("written here for outputs and first calls")
    # A copy, for its wrapper stays on the model by design, and that is no edit left behind.
    return case.run(_Traced(case, copy.deepcopy(model)))


EDITORS: dict[str, Editor] = {
    "plain hooks": plain_hooks,
    "baukit's way": baukit,
    "nnsight": nnsight,
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
