"""Exercises of chapter 08: both ends of a module, a hook that reverses gradients, and a weight at half speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


class _Product(nn.Module):
    """Returns x1 * x2 * W, with W = 5."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0]))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1 * x2 * self.W


def _leaf(*values: float, requires_grad: bool = True) -> Tensor:
    return torch.tensor(values, requires_grad=requires_grad)


def _stop_x1(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[Tensor, Tensor]:
    return 0 * grad_input[0], grad_input[1]


def _ten_times(module: nn.Module, grad_output: Any) -> tuple[Tensor]:
    return (10 * grad_output[0],)


def _check_three(answer: object) -> Wrong | None:
    if not isinstance(answer, Sequence) or len(answer) != 3 or isinstance(answer, str):
        return Wrong(f"the answer is a list of three numbers, not {answer!r}")
    product, x1, x2 = _Product(), _leaf(2.0), _leaf(3.0)
    product.register_full_backward_hook(_stop_x1)
    product.register_full_backward_pre_hook(_ten_times)
    product(x1, x2).backward()
    expected = [float(tensor.grad) for tensor in (x1, x2, product.W) if tensor.grad is not None]
    if list(answer) == expected:
        return None
    if answer[0] != expected[0]:
        return Wrong(f"x1.grad is not {answer[0]}: `stop_x1` has the last word on what goes on to `x1`")
    if answer[1] == 0:
        return Wrong("x2.grad is not 0: `stop_x1` returns `grad_input[1]` as it was given it")
    names = {1: "x2", 2: "W"}
    place = next(place for place in names if answer[place] != expected[place])
    return Wrong(f"{names[place]}.grad is not {answer[place]}: whose gradients does `ten_times` reach?")


q1 = Exercise(
    "08.1",
    question="""Both hooks sit on `product`, and `product(x1, x2).backward()` runs, with 2 · 3 · 5 as before. Which \
values have `x1.grad`, `x2.grad` and `W.grad` then? Give a list of three.
```
def stop_x1(module, grad_input, grad_output):
    return (0 * grad_input[0], grad_input[1])

def ten_times(module, grad_output):
    return (10 * grad_output[0],)

product.register_full_backward_hook(stop_x1)
product.register_full_backward_pre_hook(ten_times)
```""",
    difficulty="easy",
    minutes=3,
    check=_check_three,
    why="The pre-hook comes first and multiplies all three; then the full backward hook changes what goes to `x1`.",
    hints=(
        "Without hooks they are 15, 10 and 6. Which of the two fires first, whatever the order of registration?",
        "`ten_times` changes what the module's step back begins with. `stop_x1` changes one thing that comes out.",
    ),
    solution="""
q1.check([0, 100, 60])
""",
    wrong={
        "q1.check([150, 100, 60])\n": "`stop_x1` has the last word",
        "q1.check([0, 0, 60])\n": "returns `grad_input[1]` as it was given it",
        "q1.check([0, 10, 60])\n": "x2.grad is not 10: whose gradients does `ten_times` reach?",
        "q1.check([0, 100, 6])\n": "W.grad is not 6: whose gradients",
        "q1.check(0)\n": "a list of three numbers, not 0",
    },
)


class _Take(nn.Module):
    """Returns 2·first + 3·second + …, of tensors and numbers."""

    def forward(self, *args: Any) -> Any:
        return sum(factor * arg for factor, arg in enumerate(args, start=2))


def _check_reverse(reverse: Callable[[float], Any]) -> Wrong | None:
    for factor in (1.0, 0.5):
        hook = reverse(factor)
        if not callable(hook):
            return Wrong(f"`reverse({factor:g})` returned {hook!r}; it should return the hook")
        take = _Take()
        take.register_full_backward_hook(hook)
        one = _leaf(1.0, 1.0, 1.0)
        y = take(one)
        y.sum().backward()
        if _numbers(one.grad) != [-2 * factor] * 3:
            return Wrong(
                f"with factor {factor:g}, the gradient 2 went on as {_one(one.grad)}; it should be {-2 * factor:g}"
            )
        first, second = _leaf(1.0), _leaf(1.0)
        take(first, second).sum().backward()
        if _numbers(second.grad) != [-3 * factor]:
            return Wrong(
                f"with two inputs and factor {factor:g}, the gradient 3 of the second went on as "
                f"{_one(second.grad)}; it should be {-3 * factor:g}"
            )
        try:
            take(_leaf(1.0), 4).sum().backward()
        except TypeError as error:
            return Wrong(f"the layer was called with a tensor and a number, and your hook raised TypeError: {error}")
    return None


def _numbers(grad: Tensor | None) -> list[float] | None:
    return None if grad is None else grad.tolist()


def _one(grad: Tensor | None) -> str:
    return "None" if grad is None else f"{float(grad.flatten()[0]):g}"


q2 = Exercise(
    "08.2",
    question="Write `reverse(factor)`. It returns a full backward hook that turns gradients round: all that goes on to "
    "the layers before the module is multiplied by `-factor`. (Nets that must not learn something are trained "
    "with it.) It works for one input or several, and also if an argument is a plain number: its entry is `None`.",
    difficulty="medium",
    minutes=6,
    check=_check_reverse,
    why="You return a tuple with one entry for each argument, and `None` stays `None`.",
    hints=(
        "A function in a function; the inner one has `(module, grad_input, grad_output)`.",
        "Walk over `grad_input` and return a tuple of the same length.",
        "`tuple(None if grad is None else -factor * grad for grad in grad_input)`.",
    ),
    solution="""
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return tuple(None if grad is None else -factor * grad for grad in grad_input)

    return hook

q2.check(reverse)
""",
    wrong={
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return -factor * grad_input[0]

    return hook

q2.check(reverse)
""": "invalid number of grad_input, got 3, but expected 1",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return (-factor * grad_input[0],)

    return hook

q2.check(reverse)
""": "invalid number of grad_input, got 1, but expected 2",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return (-factor * grad_input[0], *grad_input[1:])

    return hook

q2.check(reverse)
""": "the gradient 3 of the second went on as 3; it should be -3",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return tuple(-factor * grad for grad in grad_input)

    return hook

q2.check(reverse)
""": "called with a tensor and a number, and your hook raised TypeError",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        grads = tuple(-factor * grad for grad in grad_input)

    return hook

q2.check(reverse)
""": "the gradient 2 went on as 2; it should be -2",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return tuple(None if grad is None else -grad for grad in grad_input)

    return hook

q2.check(reverse)
""": "with factor 0.5, the gradient 2 went on as -2; it should be -1",
        """
def reverse(factor):
    def hook(module, grad_input, grad_output):
        return tuple(None if grad is None else -factor * grad for grad in grad_input)

q2.check(reverse)
""": "`reverse(1)` returned None; it should return the hook",
    },
)


def _layer() -> nn.Linear:
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 0.0)
    return layer


def _check_half_speed(half_speed: Callable[[nn.Linear], object]) -> Wrong | None:
    cases = {"": (True, 1), " with a plain input": (False, 1), " when the layer is called twice": (True, 2)}
    for when, (requires_grad, times) in cases.items():
        found = []
        for change in (lambda layer: None, half_speed):
            layer, x = _layer(), torch.tensor([[3.0]], requires_grad=requires_grad)
            change(layer)
            y: Any = x
            for _ in range(times):
                y = layer(y)
            y.sum().backward()
            grads = {"weight": layer.weight.grad, "bias": layer.bias.grad, "x": x.grad}
            found.append({"y": y.item()} | {f"{name}.grad": g.item() for name, g in grads.items() if g is not None})
        normal, slow = found
        for name, value in normal.items():
            should = value / 2 if name == "weight.grad" else value
            if slow[name] != should:
                as_before = ", as it was" if should == value else ""
                return Wrong(f"{name} is {slow[name]:g}{when}; it should be {should:g}{as_before}")
    return None


q3 = Exercise(
    "08.3",
    question="""The weight of one layer should learn at half speed: `layer.weight.grad` should be half of what it \
would be, and everything else as it was. A colleague's hook does the opposite. Find the defect and mend it.
```
def half_speed(layer):
    def hook(module, grad_input, grad_output):
        return tuple(0.5 * grad for grad in grad_input)

    layer.register_full_backward_hook(hook)
```""",
    difficulty="medium",
    minutes=5,
    check=_check_half_speed,
    why="Only a hook on the weight itself reaches the gradient of the weight and nothing else.",
    hints=(
        "Whose gradients are in `grad_input`? Section 1 has the list.",
        "The pre-hook would reach the weight, but the input and the bias as well.",
        "A weight is a tensor, and a tensor has `register_hook`.",
    ),
    solution="""
def half_speed(layer):
    layer.weight.register_hook(lambda grad: 0.5 * grad)

q3.check(half_speed)
""",
    wrong={
        """
def half_speed(layer):
    def hook(module, grad_input, grad_output):
        return tuple(0.5 * grad for grad in grad_input)

    layer.register_full_backward_hook(hook)

q3.check(half_speed)
""": "weight.grad is 3; it should be 1.5",
        """
def half_speed(layer):
    def hook(module, grad_output):
        return (0.5 * grad_output[0],)

    layer.register_full_backward_pre_hook(hook)

q3.check(half_speed)
""": "bias.grad is 0.5; it should be 1, as it was",
        """
def half_speed(layer):
    def hook(module, grad_input, grad_output):
        module.weight.grad *= 0.5

    layer.register_full_backward_hook(hook)

q3.check(half_speed)
""": "raised TypeError",
        """
def half_speed(layer):
    def hook(module, grad_input, grad_output):
        if module.weight.grad is not None:
            module.weight.grad *= 0.5

    layer.register_full_backward_hook(hook)

q3.check(half_speed)
""": "weight.grad is 3 with a plain input; it should be 1.5",
        """
def half_speed(layer):
    def hook(module, args, output):
        module.weight.register_hook(lambda grad: 0.5 * grad)

    layer.register_forward_hook(hook)

q3.check(half_speed)
""": "weight.grad is 3 when the layer is called twice; it should be 6",
        """
def half_speed(layer):
    with torch.no_grad():
        layer.weight *= 0.5

q3.check(half_speed)
""": "y is 3; it should be 6, as it was",
    },
)
