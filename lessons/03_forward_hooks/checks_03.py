"""Exercises of chapter 03: change an output and leave the old one alone, keep without returning, tuples and dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING, format_numbers
from hookscope_course.practice.exercise_kinds import WatchedCall, hook_that, runs_model
from hookscope_course.practice.probe_models import Applies


def at_most(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x.clamp(max=limit)


check_q1 = hook_that(changes=at_most, settings=[(5,), (4,), (-0.5,), (0.3,), (4,)])


@runs_model()
def check_q2(keep_all: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    twice = nn.Linear(1, 1, bias=False)
    nn.init.constant_(twice.weight, 2.0)
    layers = {"twice": twice, "plus_one": Applies(lambda x: x + 1), "tenfold": Applies(lambda x: 10 * x)}
    others = {"first": nn.Linear(3, 2), "act": nn.Tanh(), "last": nn.Linear(2, 4), "halved": Applies(lambda x: x / 2)}
    # A layer that writes into what the one before it returned, and a child with children of its own.
    blocks = {"first": nn.Linear(3, 4), "relu": nn.ReLU(inplace=True), "block": nn.Sequential(nn.Linear(4, 2))}
    return (
        _wrong_record(keep_all, layers, torch.tensor([[3.0]]))
        or _wrong_record(keep_all, others, torch.randn(5, 3, dtype=torch.float64))
        or _wrong_record(keep_all, blocks, torch.randn(5, 3))
    )


def _wrong_record(
    keep_all: Callable[[nn.Module, torch.Tensor], object], layers: dict[str, nn.Module], x: torch.Tensor
) -> Wrong | None:
    model, expected, value = nn.Sequential(OrderedDict(layers)).to(x.dtype), dict[str, torch.Tensor](), x
    for name, layer in layers.items():
        value = layer(value)
        expected[name] = value.detach().clone()
    last, output = name, value.detach().requires_grad_()
    call = WatchedCall(model, lambda: keep_all(model, x))
    kept = call.result
    if not isinstance(kept, dict):
        return Wrong(f"your function returned {kept!r}; it should return the dictionary `kept`")
    if not kept:
        return Wrong("`kept` is empty: you had no hook on the model while it ran")
    if list(kept) == [last]:
        if not torch.equal(call.outputs[0], expected[last]):  # both bugs are there: tell none of them
            return Wrong(f"`kept` has only one name, {last!r}, and your hooks change the output of the model")
        return Wrong(
            f"`kept` has only one name, {last!r}, the last one; each hook should use the name of its own layer"
        )
    if set(kept) != set(expected):
        return Wrong(
            f"`kept` has the names {', '.join(map(repr, kept))}; it should have {', '.join(map(repr, expected))}"
        )
    for name, value in expected.items():
        if not isinstance(kept[name], torch.Tensor):
            return Wrong(f"under {name!r} you kept {kept[name]!r}; it should be a tensor")
        if torch.equal(kept[name], value.relu()) and not torch.equal(kept[name], value):
            return Wrong(
                f"the negative values of {name!r} are gone: you kept the layer's own tensor, and the next layer, "
                "an in-place ReLU, has overwritten them with 0. Keep `output.detach().clone()`"
            )
        if kept[name].shape != value.shape or not torch.equal(kept[name], value):
            found, returned = format_numbers(kept[name], 3), format_numbers(value, 3)
            return Wrong(f"under {name!r} you kept {found}, but the layer returned {returned}")
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("the tensors that you kept still have their graph; keep `output.detach().clone()`")
    return call.find_traces("the kept tensors are right", output)


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q3(halve: Callable[..., object]) -> Wrong | None:
    more = torch.rand(2, 1, 3, dtype=torch.float64, requires_grad=True) + 1
    for x in (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), more):
        if wrong := _wrong_halves(halve, x):
            return wrong
    return None


def _wrong_halves(halve: Callable[..., object], x: torch.Tensor) -> Wrong | None:
    cases: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
        ("tensor", lambda x: 2 * x),
        ("tuple", lambda x: (2 * x, 4 * x)),
        ("dict", lambda x: {"low": 2 * x, "high": 4 * x}),
        ("tuple", lambda x: (2 * x,)),
        ("tuple", lambda x: (2 * x, 4 * x, 6 * x)),
        ("dict", lambda x: {"mean": 2 * x}),
    ]
    for what, function in cases:
        module, kept = Applies(function), list[Any]()

        def keep(module: nn.Module, args: object, output: Any, kept: list[Any] = kept) -> None:
            kept.append((output, dict(output) if isinstance(output, dict) else {}))

        module.register_forward_hook(keep)
        module.register_forward_hook(halve)
        try:
            answer, raw = module(x), function(x)
        except (TypeError, AttributeError) as error:
            if what == "tensor" or what not in str(error):
                raise
            return Wrong(f"halve each tensor in the {what}; your hook raised {type(error).__name__}: {error}")
        found, before = kept[0]
        if any(found.get(name) is not tensor for name, tensor in before.items()):
            return Wrong("you put other tensors into the dict that an earlier hook had kept; create a new dict")
        if type(answer) is not type(raw):
            loop = isinstance(raw, torch.Tensor) and isinstance(answer, tuple | list)
            why = ": a loop over a tensor goes along its first axis" if loop else ""
            got = answer.__class__.__name__
            return Wrong(f"with your hook the call returned a {got}; it should return a {what}{why}")
        if isinstance(raw, dict) and set(answer) != set(raw):
            return Wrong(f"your dict has the names {', '.join(map(str, answer))}; it should have {', '.join(raw)}")
        if isinstance(raw, tuple) and len(answer) != len(raw):
            return Wrong(f"the length of your {what} is {len(answer)}; it should be {len(raw)}")
        names = list(raw) if isinstance(raw, dict) else range(len(raw))
        pairs = [(answer, raw)] if isinstance(raw, torch.Tensor) else [(answer[name], raw[name]) for name in names]
        for ours, theirs in pairs:
            if not isinstance(ours, torch.Tensor):
                return Wrong(f"your {what} holds a {ours.__class__.__name__}; it should hold a tensor there")
            if ours.shape != theirs.shape:
                return Wrong(
                    f"a tensor of shape {tuple(theirs.shape)} became one of shape {tuple(ours.shape)}; "
                    "the shape should stay the same"
                )
            if torch.equal(ours, theirs):
                where = "" if isinstance(raw, torch.Tensor) else f" in the {what}"
                return Wrong(f"with your hook, {format_numbers(theirs)}{where} did not change")
            if not torch.equal(ours, theirs / 2):
                return Wrong(
                    f"{format_numbers(theirs)} became {format_numbers(ours)}; it should be {format_numbers(theirs / 2)}"
                )
            if ours.dtype != theirs.dtype or ours.requires_grad != theirs.requires_grad:
                return Wrong("the values are right, but a tensor has a different dtype or no gradient")
    return None
