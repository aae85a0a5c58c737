"""Which tool shows the attention maps of which model, which shows none without a word, and what it costs."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hookscope as scope
from benchmarks.attention_cases import CASES, AttentionCase
from benchmarks.edit_costs import gpt2, in_turn
from benchmarks.edits import CannotError, count, envoy_of

__all__ = ["LOOKERS", "SIZES", "table", "times", "verdict"]

Looker = Callable[[AttentionCase, nn.Module], tuple[list[Tensor], str]]
"""Gives the maps, in the order of the calls, and what the tool says besides."""
SIZES = {"768 wide": (768, 12, 12, 128), "128 wide": (128, 4, 6, 64)}
"""Width, heads, layers and tokens of the GPT-2 that are timed."""
_NAMED = re.compile(r"(^|\.)(self_)?(attn|attention)$")
_REASON = re.compile(r"attention|attn|softmax|eager")


def hookscope(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """`hookscope.attention`."""
    found = scope.attention(model, *case.args, kwargs=case.kwargs)
    return [each.weights for each in found.values()], " ".join(found.notes)


def transformers(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """`output_attentions=True`, after `set_attn_implementation("eager")`, as its documentation says."""
    if not hasattr(model, "set_attn_implementation"):
        raise CannotError("it knows its own models")
    model.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.no_grad():
        return list(model(*case.args, **case.kwargs, output_attentions=True).attentions), ""


def _attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that a reader of `print(model)` takes for attention, or the model, where there are none."""
    names = {name: module for name, module in model.named_modules() if _NAMED.search(name)}
    return names or {"": model}


def plain_hooks(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """A hook that keeps the second thing an attention layer returns; a pre-hook asks `MultiheadAttention` for it."""
    found: list[Tensor] = []

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, tuple) and isinstance(output[1], Tensor):
            found.append(output[1].clone())

    handles = []
    for module in _attentions(model).values():
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
        handles.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            model(*case.args, **case.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found, ""


def baukit(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """What a `Trace` retains of each attention layer; its lines, for it is not on PyPI."""
    found: list[Tensor] = []

    def retain_hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, tuple) and isinstance(output[1], Tensor):
            found.append(output[1].clone())

    handles = [module.register_forward_hook(retain_hook) for module in _attentions(model).values()]
    try:
        with torch.no_grad():
            model(*case.args, **case.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found, ""


def nnsight(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """`.source` of each attention layer: what `attention_interface` returned second, or what a softmax did."""
    import nnsight as package

    traced = package.NNsight(model)
    operations = []
    for name, module in _attentions(model).items():
        source = (envoy_of(traced, name) if name else traced).source
        if isinstance(module, nn.MultiheadAttention):  # its softmax is in the function that it calls
            operations.append((source.F_multi_head_attention_forward_1, True))
        elif names := [each for each in source.names if "softmax" in each or each.startswith("attention_interface")]:
            operations.append((getattr(source, names[-1]), False))
        else:
            raise CannotError("no operation of the layer returns weights")
    with traced.trace(*case.args, **case.kwargs):  # with gradients: without, torch takes a path that has no softmax
        found = package.save([])
        for operation, inside in operations:
            if inside:
                found.append(operation.source.softmax_0.output)
            else:
                found.append(operation.output)
    maps = [each[1] if isinstance(each, tuple) else each for each in found]
    heads = [getattr(module, "num_heads", None) for module in _attentions(model).values()]
    return [
        each.detach().unflatten(0, (-1, count)) if each.dim() == 3 and count else each.detach()
        for each, count in zip(maps, heads, strict=True)
        if each is not None
    ], ""


def tdhook(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """`capture` in a `HookSession` of the second thing that each attention layer returns."""
    from tdhook.session import HookSession
    from tdhook.targets import Target

    keys = tuple(range(next(each for each in (*case.args, *case.kwargs.values())).shape[1]))
    with torch.no_grad(), HookSession(model) as session:
        kept = [session.capture(Target(name, "activation", -1, keys, output_path=(1,))) for name in _attentions(model)]
        model(*case.args, **case.kwargs)
    return [value for each in kept for value in each.values], ""


def pyvene(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """None of its components are attention weights."""
    raise CannotError("its components are outputs, values, queries and keys")


def torchlens(case: AttentionCase, model: nn.Module) -> tuple[list[Tensor], str]:
    """The facet `pattern` of each module in a trace with `reconstruction_ready=True`."""
    import torchlens as tl

    alone = tl.options.CaptureOptions(unwrap_when_done=True)
    with torch.no_grad():
        log = tl.trace(model, list(case.args), case.kwargs, reconstruction_ready=True, capture=alone)
    found, said = [], ""
    for name in _attentions(model):
        try:
            pattern = log.modules[name or "self"].facets["pattern"]
            value = pattern if isinstance(pattern, Tensor) else pattern.value
            found.append(value[:])  # which raises where there is only a stand-in
        except (KeyError, RuntimeError) as error:  # it says why
            said += f" {error}"
    return found, said


LOOKERS: dict[str, Looker] = {
    "transformers' own": transformers,
    "plain hooks": plain_hooks,
    "baukit's way": baukit,
    "nnsight": nnsight,
    "tdhook": tdhook,
    "pyvene": pyvene,
    "torchlens": torchlens,
    "**hookscope**": hookscope,
}


def verdict(looker: Looker, case: AttentionCase) -> tuple[str, str]:
    """Judge one tool on one case: right, says so, not seen, wrong, raises or cannot; and what it said."""
    model = case.made()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                found, said = looker(case, model)
            except CannotError as error:
                return "cannot", str(error)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                return ("says so" if _REASON.search(said) else "raises"), said
    said += " ".join(str(each.message) for each in warned)
    if case.same(found):
        return "right", said
    if len(found) < len(case.truth()) and _REASON.search(said):
        return "says so", said
    return ("wrong" if found else "not seen"), said


def times(size: str, eager: bool, rounds: int) -> dict[str, str]:
    """Time every tool on a GPT-2, in turns with the pass alone: ratios to it; "" where it shows no right map."""
    width, heads, layers, tokens = SIZES[size]
    words = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    case = AttentionCase(lambda: gpt2(width, heads, layers), (), {"input_ids": words})
    model = case.made()
    if eager:
        model.set_attn_implementation("eager")  # type: ignore[operator]

    def plain() -> None:
        with torch.no_grad():
            model(words)

    passes: dict[str, Callable[[], object]] = {}
    for label, looker in LOOKERS.items():
        run = partial(looker, case, copy.deepcopy(model))  # of its own, for some wrap what they are given for good
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if case.same(run()[0]):
                passes[label] = run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, *ratios = in_turn(rounds, plain, *passes.values())
    return dict.fromkeys(LOOKERS, "") | {label: f"{ratio:.2f} ×" for label, ratio in zip(passes, ratios, strict=True)}


def table(rounds: int) -> list[dict[str, object]]:
    """Count the verdicts of every tool, and time the tools."""
    took = {
        f"time, GPT-2 {size}, {'eager' if eager else 'sdpa'}": times(size, eager, rounds)
        for size in SIZES
        for eager in (False, True)
    }
    rows: list[dict[str, object]] = []
    for label, looker in LOOKERS.items():
        found = {name: verdict(looker, case)[0] for name, case in CASES.items()}
        rows.append(
            {
                "tool": label,
                "right": count(found, "right"),
                "says so": count(found, "says so"),
                "not seen": count(found, "not seen"),
                "wrong": count(found, "wrong"),
                "raises": count(found, "raises"),
                "cannot": count(found, "cannot"),
                **{head: cells[label] for head, cells in took.items()},
                "not right on": ", ".join(name for name, each in found.items() if each != "right"),
            }
        )
        print(rows[-1], flush=True)
    return rows
