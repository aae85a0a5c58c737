"""Exercises of chapter 09: three legacy backward hooks from real life, ported to the hooks of today."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


def _linear(*weights: float) -> nn.Linear:
    """A Linear layer from one number to as many as there are weights."""
    layer = nn.Linear(1, len(weights), bias=False)
    layer.weight.data = torch.tensor(weights).unsqueeze(1)
    return layer


def _numbers(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return "[" + ", ".join(f"{number:g}" for number in value.flatten().tolist()) + "]"


def _left(model: nn.Module) -> Wrong | None:
    found = len(census(model, include_global=False))
    return Wrong("your hook is still on the model; take it off") if found else None


def _check_input_gradient(input_gradient: Callable[[nn.Module, nn.Module, Tensor], Any]) -> Wrong | None:
    block = nn.Sequential(_linear(3.0), _linear(5.0))
    model = nn.Sequential(OrderedDict(stem=_linear(2.0), block=block, head=_linear(7.0)))
    gradient = input_gradient(model, block, torch.tensor([[1.0]]))
    if wrong := _left(model):
        return wrong
    if isinstance(gradient, tuple):
        return Wrong("you returned a tuple; the gradient of the block's input is its first entry")
    if not isinstance(gradient, Tensor):
        return Wrong(f"your function returned {gradient!r}; it should return the gradient, a tensor")
    got = gradient.item() if gradient.numel() == 1 else None
    if got == 105:
        return None
    reasons = {
        35.0: "is the gradient of the input of the block's last layer: that is what the legacy hook gets",
        7.0: "is the gradient of the block's output; its input is in `grad_input`",
        210.0: "is the gradient of the model's input, from before the stem",
    }
    said = reasons.get(got or 0, "is not it")
    return Wrong(f"the output is 7 · 5 · 3 · (the block's input), so the gradient is 105. {_numbers(gradient)} {said}")


q1 = Exercise(
    "09.1",
    question="This function is meant to return the gradient of the sum of the output with respect to the input of "
    "`block`, which is a part of `model`. Port it."
    """
```
def input_gradient(model, block, x):
    seen = []
    handle = block.register_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    handle.remove()
    return seen[0]
```""",
    difficulty="easy",
    minutes=3,
    check=_check_input_gradient,
    why="A full hook gets the gradient of the block's own input, however many steps the block takes.",
    hints=("Which hook belongs to the whole block?", "One word more: `register_full_backward_hook`."),
    solution="""
def input_gradient(model, block, x):
    seen = []
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    handle.remove()
    return seen[0]

q1.check(input_gradient)
""",
    wrong={
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    handle.remove()
    return seen[0]

q1.check(input_gradient)
""": "[35] is the gradient of the input of the block's last layer",
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(go[0]))
    model(x).sum().backward()
    handle.remove()
    return seen[0]

q1.check(input_gradient)
""": "[7] is the gradient of the block's output",
        """
def input_gradient(model, block, x):
    x.requires_grad_()
    model(x).sum().backward()
    return x.grad

q1.check(input_gradient)
""": "[210] is the gradient of the model's input",
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(gi))
    model(x).sum().backward()
    handle.remove()
    return seen[0]

q1.check(input_gradient)
""": "you returned a tuple",
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    return seen[0]

q1.check(input_gradient)
""": "your hook is still on the model",
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    handle.remove()
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    handle.remove()
    return seen[0]

q1.check(input_gradient)
""": "Cannot use both regular backward hooks and full backward hooks",
        """
def input_gradient(model, block, x):
    seen = []
    handle = block.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0]))
    model(x).sum().backward()
    handle.remove()

q1.check(input_gradient)
""": "your function returned None",
    },
)


def _check_log_weight(log_weight: Callable[[nn.Linear, list[Any]], Any]) -> Wrong | None:
    for shape, bias in (((3, 2), True), ((3, 2), False), ((2,), True), ((4, 3, 2), True)):
        if wrong := _log_of(log_weight, nn.Linear(2, 5, bias=bias), torch.randn(shape)):
            return wrong
    return None


def _log_of(log_weight: Callable[[nn.Linear, list[Any]], Any], layer: nn.Linear, x: Tensor) -> Wrong | None:
    """Look at the log after two passes, the first with all ones as gradient of the output, the second with twos."""
    case = f"a Linear layer {'with' if layer.bias is not None else 'without'} bias and input {tuple(x.shape)}"
    log: list[Any] = []
    handle = log_weight(layer, log)
    if not hasattr(handle, "remove"):
        return Wrong(f"your function returned {handle!r}; return the handle, so that the hook can come off again")
    (first,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    log.clear()
    for factor in (1, 2):
        (factor * layer(x)).sum().backward()
    if len(log) != 2:
        return Wrong(f"after two backward passes there are {len(log)} entries in the log, not 2")
    for place, entry in enumerate(log):
        if not isinstance(entry, Tensor):
            return Wrong(f"for {case} you logged {entry!r}; when your hook fired, the gradient was not there yet")
        if entry.shape != first.shape:
            said = ", the shape of the gradient of the output" * (entry.shape == (*x.shape[:-1], 5))
            return Wrong(f"for {case} you logged a tensor {tuple(entry.shape)}{said}; the weight is (5, 2)")
        if not torch.allclose(entry, (place + 1) * first, atol=1e-5):
            return Wrong("after two passes the log holds sums: `.grad` adds up; log the gradient of each pass alone")
    handle.remove()
    layer(x).sum().backward()
    return Wrong("`remove()` on the handle you returned did not take your hook off") if len(log) > 2 else None


q2 = Exercise(
    "09.2",
    question="This one logs the gradient of a Linear layer's weight. It fails without a bias, and with 1-D or 3-D "
    "input. Write it from nothing: for each backward pass, one entry in `log`, in the shape of the weight. Return the "
    "handle."
    """
```
def log_weight(layer, log):
    return layer.register_backward_hook(lambda m, gi, go: log.append(gi[2].T.clone()))
```""",
    difficulty="medium",
    minutes=5,
    check=_check_log_weight,
    why="The weight is a tensor and has hooks of its own, whatever the layer does with it.",
    hints=(
        "No hook of the module has the weight's gradient in a safe place. Which other thing could carry a hook?",
        "`layer.weight` is a tensor. `layer.weight.register_hook(…)` returns a handle.",
    ),
    solution="""
def log_weight(layer, log):
    return layer.weight.register_hook(lambda grad: log.append(grad))

q2.check(log_weight)
""",
    wrong={
        """
def log_weight(layer, log):
    return layer.register_backward_hook(lambda m, gi, go: log.append(gi[2].T.clone()))

q2.check(log_weight)
""": "raised IndexError: tuple index out of range",
        """
def log_weight(layer, log):
    return layer.register_backward_hook(lambda m, gi, go: log.append(gi[-1].T.clone()))

q2.check(log_weight)
""": "input (2,) you logged a tensor (5, 1); the weight is (5, 2)",
        """
def log_weight(layer, log):
    return layer.register_full_backward_hook(lambda m, gi, go: log.append(gi[0]))

q2.check(log_weight)
""": "you logged None; when your hook fired",
        """
def log_weight(layer, log):
    return layer.register_full_backward_hook(lambda m, gi, go: log.append(go[0]))

q2.check(log_weight)
""": "you logged a tensor (3, 5), the shape of the gradient of the output",
        """
def log_weight(layer, log):
    return layer.weight.register_hook(lambda grad: log.append(grad.T))

q2.check(log_weight)
""": "you logged a tensor (2, 5); the weight is (5, 2)",
        """
def log_weight(layer, log):
    return layer.weight.register_post_accumulate_grad_hook(lambda w: log.append(w.grad))

q2.check(log_weight)
""": "`.grad` adds up",
        """
def log_weight(layer, log):
    layer.weight.register_hook(lambda grad: log.append(grad))

q2.check(log_weight)
""": "return the handle",
        """
def log_weight(layer, log):
    layer.weight.register_hook(lambda grad: log.append(grad))
    return layer.register_forward_hook(lambda module, args, output: None)

q2.check(log_weight)
""": "did not take your hook off",
        """
def log_weight(layer, log):
    return layer.weight.register_hook(lambda grad: log.append(grad) if not log else None)

q2.check(log_weight)
""": "there are 1 entries in the log, not 2",
    },
)


def _check_guided(guided: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for in_place in (False, True):
        relu = nn.ReLU(inplace=in_place)
        last = nn.Linear(2, 1, bias=False)
        last.weight.data = torch.tensor([[3.0, -2.0]])
        model = nn.Sequential(_linear(1.0, 2.0), relu, last)
        gradient = guided(model, torch.tensor([[1.0]]))
        if relu._is_full_backward_hook is False:
            return Wrong("that is the legacy hook again; it happens to work here, and warns at every call")
        if relu.inplace != in_place:
            return Wrong("afterwards the ReLUs of the model are no longer in place; leave the model as it was")
        if wrong := _left(model):
            return wrong
        if not isinstance(gradient, Tensor) or gradient.shape != (1, 1):
            return Wrong(f"your function returned {_numbers(gradient)}; it should return the gradient of x")
        if gradient.item() != 3:
            same = ": the plain gradient, so what your hooks computed did not count" * (gradient.item() == -1)
            return Wrong(
                "in the test, 3 and -2 come to the ReLU, so 3 and 0 go on, and the gradient of x is 1 · 3 + 2 · 0 = 3. "
                f"Yours is {gradient.item():g}{same}"
            )
    return None


q3 = Exercise(
    "09.3",
    question="Guided backpropagation: every ReLU passes back only what is above zero. Somebody has ported it to full "
    "hooks already. It works, until the ReLUs are `inplace=True`. Mend it, and leave the model as it was.",
    difficulty="hard",
    minutes=6,
    check=_check_guided,
    why="A hook on the output tensor needs no extra node around the ReLU, so an in-place ReLU may write.",
    hints=(
        "A full hook makes the input a view, and an in-place ReLU may not write into that. Which hook does without?",
        "Chapter 08 had a way: a forward hook that calls `output.register_hook`. Negative gradients may just as well "
        "be cut before the ReLU's own step.",
        "`def keep_positive(module, args, output): output.register_hook(lambda grad: grad.clamp(min=0))`",
    ),
    solution="""
def guided(model, x):
    def only_positive(module, args, output):
        output.register_hook(lambda grad: grad.clamp(min=0))

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        handles.append(relu.register_forward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""",
    setup="import hookscope\n",
    wrong={
        """
def guided(model, x):
    def only_positive(module, grad_input, grad_output):
        return (grad_input[0].clamp(min=0),)

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        handles.append(relu.register_full_backward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""": "is a view and is being modified inplace",
        """
def guided(model, x):
    def only_positive(module, grad_input, grad_output):
        return (grad_input[0].clamp(min=0),)

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        handles.append(relu.register_backward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""": "that is the legacy hook again",
        """
def guided(model, x):
    def only_positive(module, grad_input, grad_output):
        return (grad_input[0].clamp(min=0),)

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        relu.inplace = False
        handles.append(relu.register_full_backward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""": "no longer in place",
        """
def guided(model, x):
    def only_positive(module, args, output):
        return output.register_hook(lambda grad: grad.clamp(min=0))

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        handles.append(relu.register_forward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""": "must be Tensor, not RemovableHandle",
        """
def guided(model, x):
    def cut(grad):
        grad.clamp(min=0)

    def only_positive(module, args, output):
        output.register_hook(cut)

    handles = []
    for relu in hookscope.find_layers(model, nn.ReLU).values():
        handles.append(relu.register_forward_hook(only_positive))
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return x.grad

q3.check(guided)
""": "Yours is -1: the plain gradient",
        """
def guided(model, x):
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    return x.grad.clamp(min=0)

q3.check(guided)
""": "Yours is 0",
        """
def guided(model, x):
    def only_positive(module, args, output):
        output.register_hook(lambda grad: grad.clamp(min=0))

    for relu in hookscope.find_layers(model, nn.ReLU).values():
        relu.register_forward_hook(only_positive)
    x = x.detach().clone().requires_grad_()
    model(x).sum().backward()
    return x.grad

q3.check(guided)
""": "your hook is still on the model",
        """
def guided(model, x):
    x.requires_grad_()
    model(x).sum().backward()

q3.check(guided)
""": "your function returned None",
    },
)
