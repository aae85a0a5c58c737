"""Exercises of chapter 08: both ends of a module, a hook that reverses gradients, and a weight at half speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING, add_foreign_hooks, format_numbers
from hookscope_course.practice.exercise_kinds import adds_hook, returns
from hookscope_course.practice.probe_models import Applies


class _ProductLayer(nn.Module):
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


def _grads() -> list[float]:
    product, x1, x2 = _ProductLayer(), _leaf(2.0), _leaf(3.0)
    product.register_full_backward_hook(_stop_x1)
    product.register_full_backward_pre_hook(_ten_times)
    return [float(grad) for grad in torch.autograd.grad(product(x1, x2), (x1, x2, product.W))]


def _why_not(answer: list[float]) -> str:
    expected = _grads()
    if answer[0] != expected[0]:
        return f"`x1.grad` is not {answer[0]}: `stop_x1` runs last and replaces the gradient of `x1`"
    if answer[1] == 0:
        return "`x2.grad` is not 0: `stop_x1` returns `grad_input[1]` unchanged"
    if answer[1:] == [10, 6]:
        return "`x2.grad` is not 10, and `W.grad` is not 6: `ten_times` fires first and replaces `grad_output`"
    if answer[1] != expected[1]:
        return f"`x2.grad` is not {answer[1]}: `x2`'s gradient is computed from `grad_output`, after `ten_times`"
    return f"`W.grad` is not {answer[2]}: `W` is not in `grad_input`, but its gradient is computed from `grad_output`"


check_q1 = returns(_grads, what="a list of three numbers", reasons=_why_not)


def _weigh(*args: Any) -> Any:
    """2·first + 3·second + …, of tensors and numbers."""
    return sum(factor * arg for factor, arg in enumerate(args, start=2))


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(reverse: Callable[[float], Any]) -> Wrong | None:
    factors = (1.0, 0.5, -2.0)
    hooks = [reverse(factor) for factor in factors]  # all of them, before the first is used
    for factor, hook in zip(factors, hooks, strict=True):
        if not callable(hook):
            return Wrong(f"`reverse({factor:g})` returned {hook!r}; it should return the hook")
        take = add_foreign_hooks(Applies(_weigh))
        take.register_full_backward_hook(hook)
        one = _leaf(1.0, 1.0, 1.0)
        try:
            take(one).sum().backward()
        except TypeError as error:
            if "has no len()" in str(error):
                what = str(error).split("'")[1]
                return Wrong(f"your hook returned a {what}, but torch needs a tuple; put `tuple(…)` around it")
            raise
        except RuntimeError as error:
            if "Boolean value of Tensor" in str(error):
                return Wrong("your hook uses a gradient of three numbers as True or False; use `grad is None`")
            raise
        if _to_list(one.grad) != [-2 * factor] * 3:
            return Wrong(
                f"with factor {factor:g}, a gradient of 2 became {_one(one.grad)}; "
                f"it should have become {-2 * factor:g}"
            )
        first, second = _leaf(1.0), _leaf(1.0)
        take(first, second).sum().backward()
        if _to_list(second.grad) != [-3 * factor]:
            return Wrong(
                f"with two inputs and factor {factor:g}, the gradient 3 of the second became "
                f"{_one(second.grad)}; it should be {-3 * factor:g}"
            )
        try:
            take(_leaf(1.0), 4).sum().backward()
        except TypeError as error:
            return Wrong(f"the layer was called with a tensor and a number, but your hook raised TypeError: {error}")
        first, second = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        take(first, 4, second).sum().backward()
        if _to_list(first.grad) != [[-2 * factor] * 3] * 2 or _to_list(second.grad) != [[-4 * factor] * 3] * 2:
            return Wrong(
                f"called with a tensor, a number and a tensor, the gradients 2 and 4 became {_one(first.grad)} and "
                f"{_one(second.grad)}; they should be {-2 * factor:g} and {-4 * factor:g}"
            )
        entries = hook(take, (torch.ones(3), None), (torch.ones(3),))
        if entries[1] is not None:
            return Wrong(
                f"for a plain number, your hook returned {format_numbers(entries[1])}; its entry should stay None"
            )
        if wrong := _wrong_in_a_linear(hook, factor):
            return wrong
    return None


def _wrong_in_a_linear(hook: Any, factor: float) -> Wrong | None:
    """Use it on a layer with a weight of its own, and with gradients that differ."""
    layer, x = nn.Linear(2, 1, bias=False), _leaf(3.0, 4.0)
    layer.load_state_dict({"weight": torch.tensor([[1.0, 500.25]])})
    layer.register_full_backward_hook(hook)
    layer(x).sum().backward()
    if x.grad is None or not torch.equal(x.grad, -factor * torch.tensor([1.0, 500.25])):
        return Wrong(f"after a Linear with the weights 1 and 500.25, [1, 500.25] became {format_numbers(x.grad)}")
    if _to_list(layer.weight.grad) != [[3.0, 4.0]]:
        found = format_numbers(layer.weight.grad)
        return Wrong(f"with your hook the gradient of the layer's own weight is {found}; it should stay [3, 4]")
    return None


def _to_list(grad: Tensor | None) -> Any:
    return None if grad is None else grad.tolist()


def _one(grad: Tensor | None) -> str:
    return "None" if grad is None else f"{float(grad.flatten()[0]):g}"


def _layer() -> nn.Linear:
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 0.0)
    add_foreign_hooks(layer)
    return layer


@adds_hook()
def check_q3(half_speed: Callable[[nn.Linear], object]) -> Wrong | None:
    cases = {
        "": (True, 1, 1),
        " with an input that does not require grad": (False, 1, 1),
        " when the layer is called twice": (True, 2, 1),
        " after two backward passes": (True, 1, 2),
    }
    for when, (requires_grad, times, passes) in cases.items():
        found = []
        for change in (lambda layer: None, half_speed):
            layer, x = _layer(), torch.tensor([[3.0]], requires_grad=requires_grad)
            change(layer)
            for _ in range(passes):
                y: Any = x
                for _ in range(times):
                    y = layer(y)
                try:
                    y.sum().backward()
                except (AttributeError, TypeError) as error:
                    if "NoneType" not in str(error):
                        raise
                    return Wrong(
                        f"`weight.grad` is still None when your hook fires{when}; use a tensor hook on the weight"
                    )
            grads = {"weight": layer.weight.grad, "bias": layer.bias.grad, "x": x.grad}
            found.append({"y": y.item()} | {f"{name}.grad": g.item() for name, g in grads.items() if g is not None})
        normal, slow = found
        for name, value in normal.items():
            should = value / 2 if name == "weight.grad" else value
            if slow[name] != should:
                as_before = ", as before" if should == value else ""
                return Wrong(f"`{name}` is {slow[name]:g}{when}; it should be {should:g}{as_before}")
    layer = _layer().eval()
    half_speed(layer)
    for passes in range(1, 5):
        layer.zero_grad()
        layer(torch.tensor([[3.0]])).sum().backward()
        if layer.weight.grad is None or layer.weight.grad.item() != 1.5:
            grad = format_numbers(layer.weight.grad)
            return Wrong(
                f"in `eval()`, with `zero_grad()` before each pass, pass {passes} gave {grad}; it should be [1.5]"
            )
    layer, arrives = _layer(), torch.ones(1, 1)
    half_speed(layer)
    torch.autograd.backward(layer.weight, arrives)  # this very tensor reaches the hook
    if arrives.item() != 1:
        return Wrong("`weight.grad` is right, but your hook wrote into the gradient that it got; return a new one")
    layers = [nn.Linear(3, 2, bias=False).double() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    half_speed(layers[1])
    x = torch.randn(4, 3, dtype=torch.float64)
    for layer in layers:
        layer(x).square().sum().backward()
    normal_grad, slow_grad = (layer.weight.grad for layer in layers)
    if normal_grad is None or slow_grad is None or not torch.allclose(slow_grad, normal_grad / 2):
        return Wrong(f"for a layer from 3 to 2 the gradient {normal_grad} became {slow_grad}; it should be half of it")
    return None
