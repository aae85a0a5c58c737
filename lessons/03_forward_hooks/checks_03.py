"""Exercises of chapter 03: change an output and leave the old one alone, keep without returning, tuples and dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookscope import census
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    ERROR_HIDDEN,
    BreakingLayer,
    hides_errors,
    record_registrations,
)


class _AppliesFunction(nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _numbers(tensor: torch.Tensor) -> str:
    return str([round(value, 2) if value % 1 else int(value) for value in tensor.detach().flatten().tolist()])


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q1(at_most: Callable[[float], Any]) -> Wrong | None:
    hooks = {limit: at_most(limit) for limit in (5, 4)}
    for limit, hook in hooks.items():
        if not callable(hook):
            return Wrong(f"`at_most({limit})` returned {hook!r}; it should return the hook function")
        double, x = _AppliesFunction(lambda x: 2 * x), torch.tensor([1.0, 3.0])
        kept: list[torch.Tensor] = []
        double.register_forward_hook(lambda module, args, output: kept.append(output))  # noqa: B023
        double.register_forward_hook(hook)
        answer, expected = double(x), torch.tensor([2.0, float(limit)])
        if not torch.equal(kept[0], 2 * x):
            return Wrong(
                f"you changed the output in place: an earlier hook had kept [2, 6] and now holds {_numbers(kept[0])}"
            )
        if answer is kept[0]:
            return Wrong("your hook did not return a new output, so it stayed [2, 6]")
        if not isinstance(answer, torch.Tensor):
            return Wrong(f"with your hook the call returns {answer!r}, not a tensor")
        if answer.shape != expected.shape or not torch.equal(answer, expected):
            return Wrong(f"with `at_most({limit})` [2, 6] became {_numbers(answer)}, not [2, {limit}]")
    return _wrong_limit(at_most(-0.5), -0.5) or _wrong_limit(at_most(0.3), 0.3)


def _wrong_limit(hook: Any, limit: float) -> Wrong | None:
    """Try a hook on other sizes and another dtype, and see whether gradients still go through it."""
    double = _AppliesFunction(lambda x: 2 * x)
    double.register_forward_hook(hook)
    far = torch.tensor([float("inf"), 1e9, -1e9, -float("inf")])
    if not torch.equal(answer := double(far), (2 * far).clamp(max=limit)):
        return Wrong(f"with `at_most({limit})`, {(2 * far).tolist()} became {answer.tolist()}")
    for shape, dtype in (((3, 4), torch.float64), ((2, 1, 5), torch.float32)):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        expected = (2 * x).clamp(max=limit)
        answer = double(x)
        if not isinstance(answer, torch.Tensor) or answer.shape != expected.shape or answer.dtype != dtype:
            return Wrong(f"an output of shape {shape} and dtype {dtype} should keep both; it became {answer!r}")
        if not torch.allclose(answer, expected):  # a subtraction may round
            return Wrong(f"with `at_most({limit})`, {_numbers(2 * x)} became {_numbers(answer)}")
        if not answer.requires_grad:
            return Wrong("the numbers are right, but the output has lost its gradient; clamp it without `detach()`")
        (gradient,) = torch.autograd.grad(answer.sum(), x)
        if not torch.equal(gradient, 2.0 * (2 * x <= limit)):
            return Wrong("the values are right, but the gradients that flow back through your hook are not")
    return None


def check_q2(keep_all: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    twice = nn.Linear(1, 1, bias=False)
    nn.init.constant_(twice.weight, 2.0)
    layers = {
        "twice": twice,
        "plus_one": _AppliesFunction(lambda x: x + 1),
        "tenfold": _AppliesFunction(lambda x: 10 * x),
    }
    model, x = nn.Sequential(OrderedDict(layers)), torch.tensor([[3.0]])
    if wrong := _wrong_record(keep_all, model, x):
        return wrong
    others = {
        "first": nn.Linear(3, 2),
        "act": nn.Tanh(),
        "last": nn.Linear(2, 4),
        "halved": _AppliesFunction(lambda x: x / 2),
    }
    model = nn.Sequential(OrderedDict(others)).double()
    if wrong := _wrong_record(keep_all, model, torch.randn(5, 3, dtype=torch.float64)):
        return wrong
    # A layer that writes into what the one before it returned, and a child with children of its own.
    others = {"first": nn.Linear(3, 4), "relu": nn.ReLU(inplace=True), "block": nn.Sequential(nn.Linear(4, 2))}
    if wrong := _wrong_record(keep_all, nn.Sequential(OrderedDict(others)), torch.randn(5, 3)):
        return wrong
    breaking = nn.Sequential(BreakingLayer())
    return Wrong(ERROR_HIDDEN) if hides_errors(lambda: keep_all(breaking, x)) else None


def _wrong_record(
    keep_all: Callable[[nn.Module, torch.Tensor], object], model: nn.Sequential, x: torch.Tensor
) -> Wrong | None:
    last, expected, value = [*dict(model.named_children())][-1], dict[str, torch.Tensor](), x
    for name, layer in model.named_children():
        value = layer(value)
        expected[name] = value.detach().clone()
    for layer in model.children():
        layer.register_forward_hook(lambda module, args, output: None)  # somebody else's
    results: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, args, output: results.append(output))
    with record_registrations() as registered:
        kept = keep_all(model, x)
    if not results:
        return Wrong("your function never called `model(x)`")
    if not isinstance(kept, dict):
        return Wrong(f"your function returned {kept!r}; it should return the dictionary `kept`")
    if not kept:
        return Wrong("`kept` is empty: you had no hook on the model while it ran")
    if list(kept) == [last]:
        if not torch.equal(results[0], expected[last]):  # both bugs are there: tell none of them
            return Wrong(f"`kept` has only one name, {last!r}, and your hooks change what the model returns")
        return Wrong(
            f"`kept` has only one name, {last!r}, the last one; each hook should use the name of its own layer"
        )
    if set(kept) != set(expected):
        return Wrong(
            f"`kept` has the names {', '.join(map(repr, kept))}; it should have {', '.join(map(repr, expected))}"
        )
    for name, value in expected.items():
        if not isinstance(kept[name], torch.Tensor):
            return Wrong(f"under {name!r} you kept {kept[name]!r}; keep a tensor")
        if torch.equal(kept[name], value.relu()) and not torch.equal(kept[name], value):
            return Wrong(
                f"the negative values of {name!r} are gone: you kept the layer's own tensor, and the next layer, "
                "an in-place ReLU, has overwritten them with 0. Keep `output.detach().clone()`"
            )
        if kept[name].shape != value.shape or not torch.equal(kept[name], value):
            return Wrong(f"under {name!r} you kept {_numbers(kept[name])}, but the layer returned {_numbers(value)}")
    if "forward" not in registered:
        return Wrong("what you kept is right, but you registered no forward hook; fix the function, and keep its hooks")
    if len(results) > 1:
        return Wrong(f"what you kept is right, but you called the model {len(results)} times; once is enough")
    if not torch.equal(results[0], expected[last]):
        return Wrong("what you kept is right, but your hooks change what the model returns")
    if not results[-1].requires_grad:
        return Wrong(
            "what you kept is right, but the model's output has lost its gradient: your hook returned the detached "
            "copy, and that replaced the output"
        )
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("what you kept still has its graph; keep `output.detach().clone()`")
    if len(census(model, include_global=False)) > 1 + len(expected):
        return Wrong("your hooks are still on the model; remove every handle")
    return None


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
        module, kept = _AppliesFunction(function), list[Any]()

        def keep(module: nn.Module, args: object, output: Any, kept: list[Any] = kept) -> None:
            kept.append((output, dict(output) if isinstance(output, dict) else {}))

        module.register_forward_hook(keep)
        module.register_forward_hook(halve)
        answer, raw = module(x), function(x)
        found, before = kept[0]
        if any(found.get(name) is not tensor for name, tensor in before.items()):
            return Wrong("an earlier hook has kept the dict, and you put other tensors into it; create a new dict")
        if type(answer) is not type(raw):
            loop = isinstance(raw, torch.Tensor) and isinstance(answer, tuple | list)
            why = "; a loop over a tensor goes along its first axis" if loop else ""
            got = answer.__class__.__name__
            return Wrong(f"the module returned a {what}; with your hook the call returns a {got}{why}")
        if isinstance(raw, dict) and set(answer) != set(raw):
            return Wrong(f"the dict had the names {', '.join(raw)}; now it has {', '.join(map(str, answer))}")
        if isinstance(raw, tuple) and len(answer) != len(raw):
            return Wrong(f"the {what} had {len(raw)} tensors; now it has {len(answer)}")
        names = list(raw) if isinstance(raw, dict) else range(len(raw))
        pairs = [(answer, raw)] if isinstance(raw, torch.Tensor) else [(answer[name], raw[name]) for name in names]
        for ours, theirs in pairs:
            if not isinstance(ours, torch.Tensor):
                return Wrong(f"the {what} now has a {ours.__class__.__name__} in the place of a tensor")
            if ours.shape != theirs.shape:
                return Wrong(f"a tensor of shape {tuple(theirs.shape)} became one of shape {tuple(ours.shape)}")
            if torch.equal(ours, theirs):
                where = "" if isinstance(raw, torch.Tensor) else f" in the {what}"
                return Wrong(f"with your hook, {_numbers(theirs)}{where} did not change")
            if not torch.equal(ours, theirs / 2):
                return Wrong(f"{_numbers(theirs)} became {_numbers(ours)}, not {_numbers(theirs / 2)}")
            if ours.dtype != theirs.dtype or ours.requires_grad != theirs.requires_grad:
                return Wrong("the values are right, but a tensor has a different dtype or no gradient")
    return None
