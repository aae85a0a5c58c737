"""Chapter 11: four bugs that are hard to find. The first wrong answer of each is the bug."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, allows, blind_to, probing
from hookscope_course.practice.nets import NO_HOOK, left_on, linear, numbers, row, swallowed
from hookscope_course.practice.probing import CALLS_NOTHING, SWALLOWED, Breaks, registrations, swallows


class _Reader(nn.Module):
    """An LSTM whose last hidden state goes through `10 *`, as many readers of text are built."""

    def __init__(self, hidden: int = 2, factor: float = 10, broken: bool = False) -> None:
        super().__init__()
        self.lstm, self.factor = nn.LSTM(1, hidden, batch_first=True), factor
        self.last = Breaks() if broken else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h_n: Tensor = self.last(self.lstm(x)[1][0])
        return self.factor * h_n


@allows("parameter grad")
def check_q1(hidden_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    if wrong := _wrong_hidden(hidden_gradient, _Reader(), torch.ones(1, 3, 1)):
        return wrong
    if wrong := _wrong_hidden(hidden_gradient, _Reader(3, 7).double(), torch.ones(2, 4, 1, dtype=torch.float64)):
        return wrong
    breaking = _Reader(broken=True)
    return Wrong(SWALLOWED) if swallows(lambda: hidden_gradient(breaking, torch.ones(1, 3, 1))) else None


def _wrong_hidden(hidden_gradient: Callable[[nn.Module, Tensor], Any], model: _Reader, x: Tensor) -> Wrong | None:
    shape, factor = (1, len(x), model.lstm.hidden_size), model.factor
    probing.with_others(model)
    with registrations() as registered:
        gradient = hidden_gradient(model, x)
    if isinstance(gradient, list) and not gradient:
        return Wrong("your list is empty: no hook was called, and torch said nothing")
    if isinstance(gradient, list | tuple) and len(gradient) == 1:
        (gradient,) = gradient  # the starter returns a list
    if not isinstance(gradient, Tensor):
        return Wrong(f"you returned {gradient!r}; it should be a tensor")
    if gradient.shape != shape or not torch.equal(gradient, torch.full(shape, factor, dtype=x.dtype)):
        said = f"{numbers(gradient)}, of shape {tuple(gradient.shape)}"
        return Wrong(
            f"the output is {factor:g} · h_n, so each gradient of h_n, whose shape is {shape}, is {factor:g}. "
            f"You returned {said}"
        )
    if not registered:
        return Wrong(NO_HOOK)
    return left_on(model)


@allows("hooks")
@blind_to(
    swallows_errors=CALLS_NOTHING,
    one_size_only="the hooks note `output.item()`, so there is one size",
    one_dtype_only="it copies and registers, whatever the dtype",
)
def check_q2(with_average: Callable[[nn.Module], Any]) -> Wrong | None:
    return _wrong_average(with_average, 2.0) or _wrong_average(with_average, 3.0)


def _wrong_average(with_average: Callable[[nn.Module], Any], weight: float) -> Wrong | None:
    net = nn.Sequential(linear(weight))
    result = with_average(net)
    match result:
        case (nn.Module() as average, {"net": list(), "average": list()} as seen):
            pass
        case _:
            return Wrong("your function should return the average and the dict of two lists")
    if average is net:
        return Wrong("your average is the net itself; training would change both")
    returned = [net(row(1)), average(row(10))]
    if seen != {"net": [weight], "average": [10 * weight]}:
        once = f"the net returned {weight:g}, the average {10 * weight:g}, once each"
        return Wrong(f"{once}; you noted {numbers(seen)}")
    returned += [net(row(2)), average(row(20))]
    if seen != {"net": [weight, 2 * weight], "average": [10 * weight, 20 * weight]}:
        return Wrong(f"the first calls are right, but after a second call of each you noted {numbers(seen)}")
    expected = [weight, 10 * weight, 2 * weight, 20 * weight]
    if [output.item() for output in returned] != expected or not all(output.requires_grad for output in returned):
        return Wrong("what you noted is right, but with your hooks on, a net returns something else")
    with torch.no_grad():
        next(average.parameters()).zero_()
    if next(net.parameters()).item() != weight:
        return Wrong("your average shares its weights with the net; training would change both")
    return None


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q3(without_first: Callable[[Tensor], Any]) -> Wrong | None:
    for name, total in _LOSSES.items():
        many = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
        y = 2 * many
        without_first(y)
        torch.autograd.backward(total(y))
        rows = numbers(many.grad)
        x = torch.ones(3, 2, requires_grad=True)
        y = 2 * x
        without_first(y)
        torch.autograd.backward(total(y))
        assert x.grad is not None
        if numbers(x.grad) != "[0, 0, 2, 2, 2, 2]":
            found = numbers(x.grad)
            return Wrong(
                f"`y = 2 * x` has three rows, and the loss is `{name}`. `x.grad` is {found}, not [0, 0, 2, 2, 2, 2]"
            )
        if rows != numbers([0.0] * 3 + [2.0] * 9):
            return Wrong(f"with four rows of three numbers and the loss `{name}`, `x.grad` is {rows}")
    weights, x = torch.tensor([[5.0, 6], [7, 8], [9, 10]]), torch.ones(3, 2, requires_grad=True)
    y = 2 * x
    without_first(y)
    for times in (1, 2):
        torch.autograd.backward((weights * y).sum(), retain_graph=True)
        if numbers(x.grad) != numbers(2 * times * weights * torch.tensor([[0.0], [1], [1]])):
            return Wrong(
                f"when 5, 6, 7, 8, 9 and 10 arrive at `y`, and `backward()` runs {'once' if times == 1 else 'twice'}, "
                f"`x.grad` is {numbers(x.grad)}"
            )
    x, arrives = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)
    y = 2 * x
    without_first(y)
    torch.autograd.backward(y, arrives)  # this very tensor reaches the hook
    if not arrives.all():
        return Wrong(
            "the right rows are 0, but your hook wrote into the tensor that `backward()` was given; write into a clone"
        )
    return None


# In the first two, all rows are in one place; if all numbers are, too, torch before 2.15 refuses to write there.
_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "y.sum(0) @ torch.ones(2)": lambda y: y.sum(0) @ torch.ones(y.shape[1], dtype=y.dtype),
    "y.sum()": lambda y: y.sum(),
    "(1 * y).sum()": lambda y: (1 * y).sum(),
}


def check_q4(outputs_of: Callable[[nn.Module, list[Tensor]], Any]) -> Wrong | None:
    for size in (1, 2):
        if wrong := _wrong_history(outputs_of, size):
            return wrong
    return swallowed(outputs_of, [row(1)])


def _wrong_history(outputs_of: Callable[[nn.Module, list[Tensor]], Any], size: int) -> Wrong | None:
    net = nn.Sequential(linear(2.0, size), linear(3.0, size))
    batches = [row(*[float(batch)] * size).repeat(2, 1) for batch in (1, 2, 3)]
    expected = numbers([[2.0 * batch] * 2 * size for batch in (1, 2, 3)])
    alive: list[weakref.ref[_Saved]] = []
    returned: list[tuple[Tensor, bool]] = []

    def look(module: nn.Module, args: object, output: Tensor) -> None:
        returned.append((output.detach().clone(), output.requires_grad or not torch.is_grad_enabled()))

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())
        alive.append(weakref.ref(saved))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        probing.with_others(net).register_forward_hook(look)
        history = outputs_of(net, batches)
    kept = sum(saved() is not None for saved in alive)
    if kept:
        return Wrong(f"what you returned keeps {kept} tensors alive that autograd saved: the entries have their graphs")
    if numbers(history) != expected:
        return Wrong(f"the first layer returned {expected}; you returned {numbers(history)}")
    if [numbers(output) for output, _ in returned] != [numbers([6.0 * batch] * 2 * size) for batch in (1, 2, 3)]:
        return Wrong("what you kept is right, but with your hook on, the net returns other numbers")
    if not all(has_graph for _, has_graph in returned):
        return Wrong("what you kept is right, but with your hook on, the net's output has no graph any more")
    return left_on(net, own=1)


class _Saved:
    """What autograd saves: it lives as long as some graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
