"""Exercises of chapter 09: three legacy backward hooks from real life, ported to the hooks of today."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, allows
from hookscope_course.practice.check_helpers import add_foreign_hooks, format_numbers
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, runs_model
from hookscope_course.practice.probe_models import make_broken


def _linear(*weights: float) -> nn.Linear:
    """A Linear layer from one number to as many as there are weights."""
    layer = nn.Linear(1, len(weights), bias=False)
    layer.weight.data = torch.tensor(weights).unsqueeze(1)
    return layer


def _break_block(input_gradient: Callable[..., Any]) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: input_gradient(model, model[-1], torch.ones(1, 2))


@allows("parameter grad")
@runs_model(broken=_break_block)
def check_q1(input_gradient: Callable[[nn.Module, nn.Module, Tensor], Any]) -> Wrong | None:
    block = nn.Sequential(_linear(3.0), _linear(5.0))
    model = add_foreign_hooks(nn.Sequential(OrderedDict(stem=_linear(2.0), block=block, head=_linear(7.0))))
    gradient = input_gradient(model, block, torch.tensor([[1.0]]))
    if wrong := find_left_hooks(model):
        return wrong
    if isinstance(gradient, tuple):
        return Wrong("you returned a tuple; the gradient of the block's input is its first entry")
    if not isinstance(gradient, Tensor):
        return Wrong(f"your function returned {gradient!r}; it should return the gradient, a tensor")
    got = gradient.item() if gradient.numel() == 1 else None
    if got == 105:
        return _wrong_block(input_gradient)
    reasons = {
        35.0: "is the gradient of the input of the block's last layer: the legacy hook gets that one",
        7.0: "is the gradient of the block's output; its input is in `grad_input`",
        210.0: "is the gradient of the model's input, from before the stem",
    }
    said = reasons.get(got or 0, "is not it")
    return Wrong(
        f"the output is 7 · 5 · 3 · (the block's input), so the gradient is 105. {format_numbers(gradient)} {said}"
    )


class _Plus(nn.Module):
    """Adds its input to what its layer makes of that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _linear(3.0)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) + x
        return made


class _AroundBlock(nn.Module):
    """Doubles between two of its layers: the block's input is the output of no module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = _linear(2.0), _Plus(), _linear(7.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(2 * self.stem(x)))  # type: ignore[no-any-return]


class _Skip(nn.Module):
    """Adds to what a block makes of its input a hundred times that input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = _linear(2.0), nn.Sequential(_linear(3.0), _linear(5.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        made: Tensor = self.block(h) + 100 * h
        return made


def _first_row(expected: Tensor, found: Tensor) -> str:
    """Say which row is the first in which two gradients differ, with rounded numbers."""
    row = int((~torch.isclose(expected, found)).any(dim=1).nonzero()[0])
    wanted, got = ([round(value, 3) for value in rows[row].tolist()] for rows in (expected, found))
    return f"row {row} of your gradient is {got}; it should be {wanted}"


def _wrong_block(input_gradient: Callable[[nn.Module, nn.Module, Tensor], Any]) -> Wrong | None:
    """Try models of other sizes, and with ways around the block."""
    stem, block, head = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)
    model, x = nn.Sequential(stem, block, head).double(), torch.randn(5, 2, dtype=torch.float64)
    inside = stem(x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(head(block(inside)).sum(), inside)
    gradient = input_gradient(model, block, x)
    if not isinstance(gradient, Tensor) or gradient.shape != expected.shape:
        return Wrong(f"on a second model, with a batch, you returned {gradient!r}; its shape should be (5, 3)")
    if not torch.allclose(gradient, expected):
        return Wrong(f"on a second model, with a batch of 5, {_first_row(expected, gradient)}")
    if wrong := find_left_hooks(model):
        return wrong
    around = _AroundBlock()
    gradient = input_gradient(around, around.block, torch.tensor([[1.0]]))
    if not isinstance(gradient, Tensor) or gradient.flatten().tolist() != [28.0]:
        return Wrong(
            "in another model the block returns 3 · (its input) + (its input), and the head multiplies that by 7, so "
            f"the gradient of its input is 28; you returned {format_numbers(gradient)}"
        )
    beside = _Skip()
    gradient = input_gradient(beside, beside.block, torch.tensor([[1.0]]))
    if not isinstance(gradient, Tensor) or gradient.flatten().tolist() != [15.0]:
        return Wrong(
            "in another model the input also bypasses the block, times 100: 15 comes back through the block, "
            f"but you returned {format_numbers(gradient)}"
        )
    return _wrong_first_block(input_gradient)


def _wrong_first_block(input_gradient: Callable[[nn.Module, nn.Module, Tensor], Any]) -> Wrong | None:
    """Try the first block of a model, whose input requires grad only if the answer sees to it."""
    first = nn.Sequential(_linear(3.0), _linear(5.0))
    gradient = input_gradient(nn.Sequential(first, _linear(7.0)), first, torch.tensor([[1.0]]))
    if gradient is None:
        return Wrong(
            "if the block is the first layer of the model, your function returned None: its input is `x`, which does "
            "not require grad, so autograd computes no gradient for it"
        )
    if not isinstance(gradient, Tensor) or gradient.flatten().tolist() != [105.0]:
        return Wrong(
            "if the block is the first layer of the model, the gradient of its input is 7 · 5 · 3 = 105; you returned "
            f"{format_numbers(gradient)}"
        )
    return None


@adds_hook(((3, 2), True), ((3, 2), False), ((2,), True), ((4, 3, 2), True), right="the log is right")
def check_q2(log_weight: Callable[[nn.Linear, list[Any]], Any], shape: tuple[int, ...], bias: bool) -> Wrong | None:
    """Look at the log after two passes, the first with all ones as gradient of the output, the second with twos."""
    layer, x = nn.Linear(2, 5, bias=bias), torch.randn(shape)
    case = f"a Linear layer {'with' if layer.bias is not None else 'without'} bias and input {tuple(x.shape)}"
    (first,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    log: list[Any] = []
    add_foreign_hooks(layer)
    log_weight(layer, log)
    for factor in (1, 2):
        (factor * layer(x)).sum().backward()
    if len(log) != 2:
        return Wrong(f"after two backward passes the length of the log is {len(log)}; it should be 2")
    for place, entry in enumerate(log):
        if entry is None:
            return Wrong(f"for {case} you logged None; when your hook fired, there was no gradient yet")
        if not isinstance(entry, Tensor):
            return Wrong(f"for {case} you logged {entry!r}, which is not a tensor; log the gradient itself")
        if entry.shape != first.shape:
            said = ", the shape of the gradient of the output" * (entry.shape == (*x.shape[:-1], 5))
            return Wrong(f"for {case} you logged a tensor {tuple(entry.shape)}{said}; it should be (5, 2)")
        if torch.allclose(entry, 3 * first, atol=1e-5):
            return Wrong("after two passes the log holds sums: `.grad` adds up; log the gradient of each pass alone")
        if not torch.allclose(entry, (place + 1) * first, atol=1e-5):
            return Wrong(f"for {case}, entry {place} of the log is not the gradient of that pass")
    if layer.weight.grad is None or not torch.allclose(layer.weight.grad, 3 * first, atol=1e-5):
        return Wrong("the log is right, but your hook changes `weight.grad` after two passes; only log the gradient")
    for _ in range(2):
        layer.zero_grad()
        layer(x).sum().backward()
        if not torch.allclose(log[-1], first, atol=1e-5):
            return Wrong("after `zero_grad()`, the log does not hold the gradient of that pass")
    if len(log) != 4:
        return Wrong(f"after four backward passes the log has {len(log)} entries; it should have 4")
    return None


@allows("parameter grad")
@runs_model()
def check_q3(guided: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    return _wrong_guided(guided) or _wrong_on_a_batch(guided)


def _wrong_on_a_batch(guided: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    """Compare with what autograd says when a gradient below zero is cut behind each ReLU."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    copy = x.clone().requires_grad_()
    value = copy
    for layer in model:
        value = layer(value)
        if isinstance(layer, nn.ReLU):
            value.register_hook(lambda grad: grad.clamp(min=0))
    (expected,) = torch.autograd.grad(value.sum(), copy)
    gradient = guided(add_foreign_hooks(model), x)
    if not isinstance(gradient, Tensor) or gradient.shape != x.shape:
        return Wrong(f"on a batch of 6, through two ReLUs, you returned {gradient!r}; its shape should be (6, 3)")
    if not torch.allclose(gradient, expected):
        return Wrong(f"on a batch of 6, through two ReLUs, {_first_row(expected, gradient)}")
    if wrong := find_left_hooks(model):
        return wrong
    nested = guided(nn.Sequential(model[:2], model[2:]), x)
    if not isinstance(nested, Tensor) or not torch.allclose(nested, expected):
        return Wrong(
            "with the same layers inside blocks, your gradient is different; look at all modules, not only at children"
        )
    beside = _Beside()
    gradient = guided(beside, torch.tensor([[2.0]]))
    if not isinstance(gradient, Tensor) or gradient.item() != -1:
        return Wrong(
            "with y = -(x + relu(x)), -1 arrives at both terms: the ReLU passes nothing back, and x keeps the other "
            f"-1. Yours is {format_numbers(gradient)}: a hook that writes into the gradient it gets, or that is on `x` "
            "itself, reaches the other term as well"
        )
    return None


class _Beside(nn.Module):
    """Returns -(x + relu(x)): one and the same tensor reaches both terms as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = -(self.relu(x) + x)
        return made


def _wrong_guided(guided: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for in_place in (False, True):
        relu = nn.ReLU(inplace=in_place)
        last = nn.Linear(2, 1, bias=False)
        last.weight.data = torch.tensor([[3.0, -2.0]])
        model = add_foreign_hooks(nn.Sequential(_linear(1.0, 2.0), relu, last))
        gradient = guided(model, torch.tensor([[1.0]]))
        if relu._is_full_backward_hook is False:
            return Wrong("that is the legacy hook again; it happens to work here, but it warns at every call")
        if relu.inplace != in_place:
            now = "no longer work in place" if in_place else "work in place now, but did not before"
            return Wrong(f"afterwards the ReLUs of the model {now}; leave the model as you found it")
        if wrong := find_left_hooks(model):
            return wrong
        if not isinstance(gradient, Tensor) or gradient.shape != (1, 1):
            return Wrong(f"your function returned {format_numbers(gradient)}; it should return the gradient of x")
        if gradient.item() != 3:
            same = ": the plain gradient, so your hooks had no effect" * (gradient.item() == -1)
            return Wrong(
                "in the test, 3 and -2 come to the ReLU, so 3 and 0 go on, and the gradient of x is 1 · 3 + 2 · 0 = 3. "
                f"Yours is {gradient.item():g}{same}"
            )
    return None
