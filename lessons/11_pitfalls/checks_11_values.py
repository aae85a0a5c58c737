"""The lab of chapter 11: hooks that change something, or keep the wrong thing. The first wrong answer is the bug."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lessons.checks import Exercise, Wrong
from lessons.checks.pitfalls import left_on, linear, numbers

__all__ = ["q10", "q11", "q12", "q13", "q14"]


def _check_first_kept(keep_first: Callable[[nn.Module, dict[str, Tensor]], Any]) -> Wrong | None:
    net, kept = nn.Sequential(linear(2.0), linear(3.0)), dict[str, Tensor]()
    keep_first(net, kept)
    outputs = [net(torch.tensor([[value]])).item() for value in (1.0, 2.0)]
    if outputs != [6, 12]:
        return Wrong(f"for 1 and 2 the net returns 6 and 12; with your hook it returned {numbers(outputs)}")
    if list(kept) != ["0"] or numbers(kept["0"]) != "[2]":
        return Wrong(f"the first output of layer 0 was [2]; you kept {numbers(kept)}")
    return None


q10 = Exercise(
    "11.10",
    question="`keep_first` keeps the first output of a layer. The symptom: for the inputs 1 and 2 the net returns 6 "
    "and 12, but with the hook 6 and 6. Mend it.",
    difficulty="medium",
    minutes=3,
    check=_check_first_kept,
    why="A lambda returns its value, and what a forward hook returns becomes the output. A `def` returns None.",
    hints=("What does `setdefault` return, the second time?", "Write the hook with `def`, and without `return`."),
    solution="""
def keep_first(net, kept):
    def keep(module, args, output):
        kept.setdefault("0", output.detach().clone())

    net[0].register_forward_hook(keep)

q10.check(keep_first)
""",
    wrong={
        """
def keep_first(net, kept):
    net[0].register_forward_hook(lambda m, args, output: kept.setdefault("0", output))

q10.check(keep_first)
""": "for 1 and 2 the net returns 6 and 12; with your hook it returned [6, 6]",
        """
def keep_first(net, kept):
    net[0].register_forward_hook(lambda m, args, output: kept.update({"0": output}))

q10.check(keep_first)
""": "you kept {0: [4]}",
        """
def keep_first(net, kept):
    pass

q10.check(keep_first)
""": "you kept {}",
    },
)


def _check_clip(clip: Callable[[Tensor], Any]) -> Wrong | None:
    layer = linear(2.0)
    clip(layer.weight)
    totals = []
    for value in (3.0, -0.5, -5.0):
        layer(torch.tensor([[value]])).sum().backward()
        totals.append(layer.weight.grad.item())  # type: ignore[union-attr]
    if totals != [1.0, 0.5, -1.0]:
        return Wrong(f"3, then -0.5, then -5 arrive, so `.grad` is 1, 0.5 and -1; with yours it is {numbers(totals)}")
    return None


q11 = Exercise(
    "11.11",
    question="`clip` keeps `weight.grad` between -1 and 1, also when it adds up over several passes. The symptom: "
    "`backward()` stops with an error. Mend it.",
    difficulty="easy",
    minutes=2,
    check=_check_clip,
    why="A post-accumulate hook must return None; `clamp_` returns its tensor, and a lambda returns that.",
    hints=("Read the error: what should the hook return?", "Write it with `def`, and without `return`."),
    solution="""
def clip(weight):
    def clip_total(weight):
        weight.grad.clamp_(-1, 1)

    weight.register_post_accumulate_grad_hook(clip_total)

q11.check(clip)
""",
    wrong={
        """
def clip(weight):
    weight.register_post_accumulate_grad_hook(lambda w: w.grad.clamp_(-1, 1))

q11.check(clip)
""": "raised RuntimeError: Tensor post accumulate grad hooks should return None.",
        """
def clip(weight):
    weight.register_hook(lambda grad: grad.clamp(-1, 1))

q11.check(clip)
""": "`.grad` is 1, 0.5 and -1; with yours it is [1, 0.5, -0.5]",
        """
def clip(weight):
    def clip_total(weight):
        weight.grad.clamp(-1, 1)

    weight.register_post_accumulate_grad_hook(clip_total)

q11.check(clip)
""": "with yours it is [3, 2.5, -2.5]",
    },
)


def _check_before_relu(before_relu: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0), nn.ReLU(inplace=True))
    kept = before_relu(net, torch.tensor([[-1.0], [1.0]]))
    if not isinstance(kept, Tensor) or numbers(kept) != "[-2, 2]":
        return Wrong(f"layer 0 returned [-2, 2]; you returned {numbers(kept)}")
    if not (isinstance(net[1], nn.ReLU) and net[1].inplace):
        return Wrong("afterwards the ReLU is no longer in place; leave the model as it was")
    return left_on(net)


q12 = Exercise(
    "11.12",
    question="`before_relu` returns what the first layer returned. The symptom: there is nothing below zero in it, but "
    "the layer returned -2 and 2. Mend it.",
    difficulty="easy",
    minutes=2,
    check=_check_before_relu,
    why="`detach()` shares the memory, and the next layer writes into it; `clone()` has its own.",
    hints=("`hookscope.capture(net)` knows: ask `overwritten`.", "Which word makes a copy?"),
    solution="""
def before_relu(net, x):
    kept = []
    with net[0].register_forward_hook(lambda m, a, out: kept.append(out.detach().clone())):
        net(x)
    return kept[0]

q12.check(before_relu)
""",
    wrong={
        """
def before_relu(net, x):
    kept = []
    with net[0].register_forward_hook(lambda m, a, out: kept.append(out.detach())):
        net(x)
    return kept[0]

q12.check(before_relu)
""": "layer 0 returned [-2, 2]; you returned [0, 2]",
        """
def before_relu(net, x):
    kept = []
    with net[0].register_forward_hook(lambda m, a, out: kept.append(out.detach())):
        net(x)
    return kept[0].clone()

q12.check(before_relu)
""": "you returned [0, 2]",
        """
def before_relu(net, x):
    kept = []
    net[1].inplace = False
    with net[0].register_forward_hook(lambda m, a, out: kept.append(out.detach())):
        net(x)
    return kept[0]

q12.check(before_relu)
""": "the ReLU is no longer in place",
    },
)


def _check_row(row_gradient: Callable[[Tensor], Any]) -> Wrong | None:
    x = torch.ones(2, 2, requires_grad=True)
    seen = row_gradient(x)
    if numbers(x.grad) != "[100, 100, 0, 0]":
        return Wrong(f"the computation itself has changed: x.grad is {numbers(x.grad)}, and was [100, 100, 0, 0]")
    if not isinstance(seen, list) or numbers(seen) != "[[5, 5]]":
        return Wrong(f"the loss is 5 · row, so the gradient of the row is [5, 5], once; you returned {numbers(seen)}")
    return None


q13 = Exercise(
    "11.13",
    question="`row_gradient` returns the gradients that arrive at a row of `y`, a view. The symptom: the list is "
    "empty, and there is no error. `x.grad` is right. Mend it, and leave the computation as it is.",
    difficulty="medium",
    minutes=4,
    check=_check_row,
    why="After `y.mul_` the view is made anew from the new `y`, and the hook stays with what it was made of before.",
    hints=(
        "With `recording.watch(row, 'row')`, `hookscope.record` logs nothing: nothing flows through this row.",
        "Chapter 07, section 5: what does an edit in place do to the views? So which line must come first?",
    ),
    solution="""
def row_gradient(x):
    seen = []
    y = 2 * x
    row = y[0]
    y.mul_(10)
    row.register_hook(seen.append)
    (5 * row).sum().backward()
    return seen

q13.check(row_gradient)
""",
    wrong={
        """
def row_gradient(x):
    seen = []
    y = 2 * x
    row = y[0]
    row.register_hook(seen.append)
    y.mul_(10)
    (5 * row).sum().backward()
    return seen

q13.check(row_gradient)
""": "the gradient of the row is [5, 5], once; you returned []",
        """
def row_gradient(x):
    seen = []
    y = 2 * x
    row = y[0]
    y.mul_(10)
    y[0].register_hook(seen.append)
    (5 * row).sum().backward()
    return seen

q13.check(row_gradient)
""": "you returned []",
        """
def row_gradient(x):
    seen = []
    y = 2 * x
    row = y[0]
    y.register_hook(seen.append)
    y.mul_(10)
    (5 * row).sum().backward()
    return seen

q13.check(row_gradient)
""": "you returned [[50, 50, 0, 0]]",
        """
def row_gradient(x):
    seen = []
    y = 2 * x
    row = y[0]
    row.register_hook(seen.append)
    (5 * row).sum().backward()
    return seen

q13.check(row_gradient)
""": "the computation itself has changed",
    },
)


def _check_output_gradient(output_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0), linear(3.0))
    with warnings.catch_warnings(action="ignore"):
        net[0].register_backward_hook(lambda module, grad_input, grad_output: None).remove()
    gradient = output_gradient(net, torch.ones(1, 1))
    if not isinstance(gradient, Tensor) or numbers(gradient) != "[3]":
        return Wrong(f"the net multiplies what layer 0 returns by 3, so the gradient is 3; you returned {gradient!r}")
    return left_on(net)


q14 = Exercise(
    "11.14",
    question="`output_gradient` returns the gradient of what layer 0 returns. A tool had a legacy hook on this net, "
    "and has taken it off: `hookscope.census(net)` counts 0. The symptom: the full hook is refused. Mend it.",
    difficulty="medium",
    minutes=4,
    check=_check_output_gradient,
    why="A module remembers its first kind of backward hook for good; a hook on the output tensor is of neither kind.",
    hints=(
        "Read the error. Nothing in the function is wrong; which other hook gets this gradient?",
        "A forward hook can call `output.register_hook`. Or: `hookscope.capture(net, gradients=True)`.",
    ),
    solution="""
def output_gradient(net, x):
    seen = []

    def watch(module, args, output):
        output.register_hook(seen.append)

    with net[0].register_forward_hook(watch):
        net(x).sum().backward()
    return seen[0]

q14.check(output_gradient)
""",
    wrong={
        """
def output_gradient(net, x):
    seen = []

    def keep(module, grad_input, grad_output):
        seen.append(grad_output[0])

    with net[0].register_full_backward_hook(keep):
        net(x).sum().backward()
    return seen[0]

q14.check(output_gradient)
""": "Cannot use both regular backward hooks and full backward hooks",
        """
def output_gradient(net, x):
    seen = []

    def keep(module, grad_input, grad_output):
        seen.append(grad_output[0])

    hookscope.census(net).remove_all()
    with net[0].register_full_backward_hook(keep):
        net(x).sum().backward()
    return seen[0]

q14.check(output_gradient)
""": "Cannot use both regular backward hooks and full backward hooks",
        """
def output_gradient(net, x):
    seen = []

    def watch(module, args, output):
        output.register_hook(seen.append)

    with net.register_forward_hook(watch):
        net(x).sum().backward()
    return seen[0]

q14.check(output_gradient)
""": "so the gradient is 3; you returned tensor([[1.]])",
    },
    setup="import hookscope\n",
)
