"""Exercises of chapter 02: predict an order, get in front, and get the gradient of the input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hookscope import census, record
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


def _check_order(order: object) -> Wrong | None:
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


q1 = Exercise(
    "02.1",
    question="""Put the five hooks below in order, as a list of letters. `x` requires grad.
```
net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
net(x).sum().backward()
```
A: the full backward hook of `net`
B: the forward hook of `net`
C: the pre-hook of `net`
D: the full backward hook of the ReLU layer
E: the forward hook of the Linear layer""",
    difficulty="easy",
    minutes=4,
    check=_check_order,
    why="Going forward the container opens first and closes last; going back its input's gradient is known last.",
    hints=(
        "Forward and backward are two separate passes; sort each one alone.",
        "A container's forward hook runs when everything inside it has run.",
        "A full backward hook needs the gradient of the module's input. For `net` that is the gradient of `x`.",
    ),
    solution="""
q1.check(["C", "E", "B", "D", "A"])
""",
    wrong={
        'q1.check(["C", "B", "E", "D", "A"])\n': "can only return after the layers inside",
        'q1.check(["C", "E", "B", "A", "D"])\n': "the gradient of the container's input is known last",
        'q1.check(["E", "C", "B", "D", "A"])\n': "C comes at place 1",
        'q1.check(["A", "B", "C", "D"])\n': "use each of the letters",
        'q1.check("ABCDE")\n': "a list of five letters, not a str",
    },
)


def _check_first(first: Callable[[nn.Module, Callable[..., None]], object]) -> Wrong | None:
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


q2 = Exercise(
    "02.2",
    question="Write `first(layer, hook)`. It registers `hook` as a forward hook that fires before the forward hooks "
    "that are on the layer already. It returns the handle.",
    difficulty="easy",
    minutes=3,
    check=_check_first,
    why="`prepend=True` puts the new hook at the front of the layer's own line.",
    hints=("`register_forward_hook` has a keyword for this.", "`prepend=True`."),
    solution="""
def first(layer, hook):
    return layer.register_forward_hook(hook, prepend=True)

q2.check(first)
""",
    wrong={
        """
def first(layer, hook):
    return layer.register_forward_hook(hook)

q2.check(first)
""": "fired in the order theirs, yours, later",
        """
def first(layer, hook):
    layer.register_forward_hook(hook, prepend=True)

q2.check(first)
""": "return the handle",
        """
def first(layer, hook):
    layer._forward_hooks.clear()
    return layer.register_forward_hook(hook)

q2.check(first)
""": "leave the others alone",
        """
def first(layer, hook):
    return layer.register_forward_pre_hook(hook, prepend=True)

q2.check(first)
""": "missing 1 required positional argument",
    },
)


def _check_input_gradient(input_gradient: Callable[[nn.Module, torch.Tensor], object]) -> Wrong | None:
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


q3 = Exercise(
    "02.3",
    question="""A colleague wants the gradient of the input, and gets `None`. Find the defect and mend it.
Leave the caller's `x` as it is.
```
def input_gradient(model, x):
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0])):
        model(x).sum().backward()
    return seen[0]
```""",
    difficulty="medium",
    minutes=5,
    check=_check_input_gradient,
    why="There is a gradient only for an input that requires grad, and images as they come do not.",
    hints=(
        "Print `grad_input`, or look at section 5 again. What must be true of `x`?",
        "`x.requires_grad_()` would change the caller's tensor. Work on a copy.",
        "`x = x.detach().clone().requires_grad_()` as the first line.",
    ),
    solution="""
def input_gradient(model, x):
    x = x.detach().clone().requires_grad_()
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0])):
        model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""",
    wrong={
        """
def input_gradient(model, x):
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0])):
        model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""": "your function returned None",
        """
def input_gradient(model, x):
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(gi)):
        model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""": "grad_input = (None,)",
        """
def input_gradient(model, x):
    x.requires_grad_()
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0])):
        model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""": "the caller's x requires grad now",
        """
def input_gradient(model, x):
    x = x.detach().clone().requires_grad_()
    seen = []
    with model.register_full_backward_hook(lambda m, gi, go: seen.append(go[0])):
        model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""": "the gradient of x is 10",
        """
def input_gradient(model, x):
    x = x.detach().clone().requires_grad_()
    seen = []
    model.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    return seen[0]

q3.check(input_gradient)
""": "your hook is still on the model",
    },
)
