"""Exercises of chapter 02: predict an order, get in front, and get the gradient of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from hookscope import record
from hookscope_course.practice import Wrong, allows
from hookscope_course.practice.check_helpers import add_foreign_hooks, record_registrations
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, order_of, runs_model


def _record_order() -> str:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    x = torch.ones(1, 1, requires_grad=True)
    with record(net, kinds=["forward_pre", "forward", "full_backward"]) as recording:
        net(x).sum().backward()
    letters = {
        "full_backward (root)": "A",
        "forward (root)": "B",
        "forward_pre (root)": "C",
        "full_backward 1": "D",
        "forward 0": "E",
    }
    return "".join(letters.get(label, "") for label in recording.order())


check_q1 = order_of(
    _record_order,
    reasons={
        "BE": "you put B before E, but the container can only return after the layers inside it",
        "AD": "you put A before D, but the gradient of the container's input is known last",
        "EC": "you put E before C, but a container's pre-hook runs before the layers inside",
        "BC": "you put B before C, but a pre-hook of `net` runs before its forward hook",
        "DE": "you put D before E, but the backward pass begins after the forward pass has ended",
        "DC": "you put D before C, but the backward pass begins after the forward pass has ended",
        "DB": "you put D before B, but the backward pass begins after the forward pass has ended",
        "AE": "you put A before E, but the backward pass begins after the forward pass has ended",
        "AC": "you put A before C, but the backward pass begins after the forward pass has ended",
        "AB": "you put A before B, but the backward pass begins after the forward pass has ended",
    },
)


@adds_hook((1, 1, 1, torch.float32), (3, 2, 4, torch.float64), right="the order is right")
def check_q2(
    first: Callable[[nn.Module, Callable[..., None]], object], width: int, out: int, rows: int, dtype: torch.dtype
) -> Wrong | None:
    layer, x, log = nn.Linear(width, out, dtype=dtype), torch.ones(rows, width, dtype=dtype), list[str]()
    as_pre_hook = "{}, as a pre-hook"

    def named(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: object, output: Any = None) -> Any:
            log.append(name if output is not None else as_pre_hook.format(name))
            return output + 1 if name == "yours" and output is not None else None

        return note

    plain = layer(x)
    layer.register_forward_hook(named("theirs"))
    first(layer, named("yours"))
    if log:
        return Wrong("your function called the hook itself; register it, and let torch call it")
    layer.register_forward_hook(named("later"))
    changed = layer(x)
    if as_pre_hook.format("yours") in log:
        return Wrong("`hook` is called as a pre-hook; register it as a forward hook")
    if "yours" not in log:
        return Wrong(
            "your hook never fired; register it as a forward hook of `layer`, and do not remove it before you return"
        )
    if log.index("yours") != 0:
        return Wrong(f"the hooks fired in this order: {', '.join(log)}. Yours should be the first")
    if log.count("yours") > 1:
        return Wrong("your hook fired twice; register it once")
    if sorted(log) != ["later", "theirs", "yours"]:
        return Wrong("a hook that was there before is gone; do not touch the other hooks")
    if not torch.equal(changed, plain + 1):
        return Wrong(
            "our hook returned `output + 1`, but the layer returned something else. Register `hook` itself, or return "
            "its result"
        )
    return None


@allows("parameter grad")
@runs_model()
def check_q3(input_gradient: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for parameter, weight in zip(net.parameters(), (2.0, 5.0), strict=True):
        nn.init.constant_(parameter, weight)
    other = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    given = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)  # the caller trains it
    for model, x in ((net, torch.tensor([[3.0]])), (other, torch.randn(2, 3).double()), (other, given)):
        if wrong := _wrong_gradient(input_gradient, model, x):
            return wrong
    return None


def _wrong_gradient(
    input_gradient: Callable[[nn.Module, torch.Tensor], object], net: nn.Module, x: torch.Tensor
) -> Wrong | None:
    asked, copy = x.requires_grad, x.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(net(copy).sum(), copy)
    add_foreign_hooks(net)
    before = None if x.grad is None else x.grad.clone()
    try:
        with record_registrations() as registered:
            answer = input_gradient(net, x)
    except RuntimeError as error:
        if asked and "leaf variables" in str(error):
            return Wrong(f"if `x` already requires grad, your copy is still connected to it: {_LOOSE}")
        raise
    if x.requires_grad and not asked:
        return Wrong("the caller's x now requires grad; make your own copy with `x.detach().clone()` first")
    if asked and not x.requires_grad:
        return Wrong("the caller's x required grad, but no longer does; make your own copy first")
    if asked and x.grad is not None and not (before is not None and torch.equal(x.grad, before)):
        x.grad = before
        return Wrong(f"your copy is still connected to the caller's `x`, so the backward pass reached it. {_LOOSE}")
    if left := find_left_hooks(net):
        return left
    if isinstance(answer, tuple) and len(answer) == 1:
        if answer[0] is None:
            return Wrong("your hook got grad_input = (None,): no input requires grad, so torch computes no gradient")
        return Wrong("you returned the tuple grad_input; the gradient of x is its only entry")
    if answer is None:
        return Wrong("your function returned None: grad_input was (None,), or the return is missing")
    if not isinstance(answer, torch.Tensor):
        return Wrong(f"your function returned a {answer.__class__.__name__}; it should return a tensor")
    if answer.shape != x.shape or not torch.allclose(answer, expected):
        if expected.numel() == 1:
            return Wrong(f"`y = 5 · 2 · x`, so the gradient of `x` is 10; your function returned {answer.tolist()}")
        return Wrong(f"on a second model the gradient of `x` is {expected.tolist()}; you returned {answer.tolist()}")
    if not {*registered} - {"forward", "forward pre"}:
        return Wrong("the gradient is right, but no hook of yours gets it; fix the function and keep its hook")
    with _only_hooks_tell(net):
        seen = input_gradient(net, x)
    if not (isinstance(seen, torch.Tensor) and torch.allclose(seen, expected)):
        return Wrong("the numbers are right, but they do not come from your hook; return its gradient")
    return None


_LOOSE = "`x.detach().clone()` is not connected to anything"


@contextmanager
def _only_hooks_tell(net: nn.Module) -> Iterator[None]:
    """Give other numbers to who reads `.grad` or calls `torch.autograd.grad`; hooks are given the true ones."""
    grad = torch.autograd.grad

    def other(*args: Any, **kwargs: Any) -> Any:
        return tuple(None if found is None else 3 * found for found in grad(*args, **kwargs))

    def change(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        leaf.grad = 3 * leaf.grad

    def watch(module: nn.Module, args: tuple[Any, ...]) -> None:
        for each in args:
            if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad:
                each.register_post_accumulate_grad_hook(change)  # type: ignore[no-untyped-call]

    with net.register_forward_pre_hook(watch), patch.object(torch.autograd, "grad", other):
        yield
