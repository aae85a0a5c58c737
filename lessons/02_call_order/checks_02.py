"""Exercises of chapter 02: predict an order, get in front, and get the gradient of the input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hookscope import census, record
from hookscope_course.exercises import Wrong, allows


def check_q1(order: object) -> Wrong | None:
    if not isinstance(order, list | tuple):
        return Wrong(f"the answer is a list of five letters, not a {type(order).__name__}")
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
    recorded = [letters[label] for label in recording.order() if label in letters]
    given = [str(letter).strip().upper() for letter in order]
    if given == recorded:
        return None
    if sorted(given) != sorted(recorded):
        return Wrong(f"use each of the letters {', '.join(sorted(recorded))} once; you gave {', '.join(given)}")
    if given.index("B") < given.index("E"):
        return Wrong("B stands before E, but the container can only return after the layers inside it have")
    if given.index("A") < given.index("D"):
        return Wrong("A stands before D, but the gradient of the container's input is known last of all")
    place = next(i for i, (ours, theirs) in enumerate(zip(given, recorded, strict=True), start=1) if ours != theirs)
    return Wrong(f"recorded on your machine, {recorded[place - 1]} comes at place {place}, not {given[place - 1]}")


@allows("hooks")
def check_q2(first: Callable[[nn.Module, Callable[..., None]], object]) -> Wrong | None:
    layer, log = nn.Linear(1, 1), []

    def named(name: str) -> Callable[..., None]:
        return lambda module, args, output: log.append(name)

    layer.register_forward_hook(named("theirs"))
    handle = first(layer, named("yours"))
    layer.register_forward_hook(named("later"))
    layer(torch.ones(1, 1))
    if "yours" not in log:
        return Wrong("your hook never fired; is it registered as a forward hook of this layer?")
    if log.index("yours") != 0:
        return Wrong(f"the hooks fired in the order {', '.join(log)}; yours must come first")
    if log.count("yours") > 1:
        return Wrong("your hook fired twice; register it once")
    if sorted(log) != ["later", "theirs", "yours"]:
        return Wrong("a hook that was there before is gone; leave the others alone")
    if not hasattr(handle, "remove"):
        return Wrong(f"your function returned {handle!r}; return the handle, so that the hook can come off again")
    handle.remove()
    if len(census(layer, include_global=False)) != 2:
        return Wrong("`remove()` on the handle you returned did not take your hook off")
    return None


@allows("parameter grad")
def check_q3(input_gradient: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for parameter, weight in zip(net.parameters(), (2.0, 5.0), strict=True):
        nn.init.constant_(parameter, weight)
    x = torch.tensor([[3.0]])
    answer = input_gradient(net, x)
    if x.requires_grad:
        return Wrong("the caller's x requires grad now; make your own copy with `x.detach().clone()` first")
    if len(census(net, include_global=False)):
        return Wrong("your hook is still on the model; take it off")
    if isinstance(answer, tuple) and len(answer) == 1:
        if answer[0] is None:
            return Wrong("your hook got grad_input = (None,): no input requires grad, so torch does not compute it")
        return Wrong("you returned the tuple grad_input; the gradient of x is its only entry")
    if answer is None:
        return Wrong("your function returned None; either the return is missing, or grad_input was (None,)")
    if not isinstance(answer, torch.Tensor):
        return Wrong(f"your function returned a {type(answer).__name__}; it should return a tensor")
    if answer.shape != x.shape or answer.item() != 10:
        return Wrong(f"y = 5 · 2 · x, so the gradient of x is 10; your function returned {answer.tolist()}")
    return None
