"""Chapter 11: four bugs that are hard to find, and the ten of the lab. The first wrong answer of each is the bug."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census
from hookscope_course.exercises import Wrong, allows


def linear(weight: float) -> nn.Linear:
    """A Linear layer that multiplies one number by `weight`."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def numbers(value: object) -> str:
    """A tensor, or a list of tensors and numbers, as one line of numbers that can be read."""
    if isinstance(value, Tensor):
        return numbers(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(numbers, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {numbers(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def left_on(model: nn.Module) -> Wrong | None:
    """A complaint if there is a hook on the model."""
    found = len(census(model, include_global=False))
    left = "a hook is" if found == 1 else f"{found} hooks are"
    return Wrong(f"the answer is right, but {left} still on the model; take them off") if found else None


class _Reader(nn.Module):
    """An LSTM whose last hidden state goes through `10 *`, as many readers of text are built."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h_n: Tensor = self.lstm(x)[1][0]
        return 10 * h_n


@allows("parameter grad")
def check_q1(hidden_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    model = _Reader()
    gradient = hidden_gradient(model, torch.ones(1, 3, 1))
    if isinstance(gradient, list) and not gradient:
        return Wrong("your list is empty: no hook was called, and torch said nothing")
    if isinstance(gradient, list | tuple) and len(gradient) == 1:
        return Wrong(f"you returned a {type(gradient).__name__}; return the tensor in it")
    if not isinstance(gradient, Tensor):
        return Wrong(f"you returned {gradient!r}; it should be a tensor")
    if gradient.shape != (1, 1, 2) or not torch.equal(gradient, torch.full((1, 1, 2), 10.0)):
        said = f"{numbers(gradient)}, of shape {tuple(gradient.shape)}"
        return Wrong(f"the output is 10 · h_n, so each gradient of h_n, which is (1, 1, 2), is 10. You returned {said}")
    return left_on(model)


@allows("hooks")
def check_q2(with_average: Callable[[nn.Module], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0))
    result = with_average(net)
    match result:
        case (nn.Module() as average, {"net": list(), "average": list()} as seen):
            pass
        case _:
            return Wrong("your function should return the average and the dict of two lists")
    if average is net:
        return Wrong("your average is the net itself; training would change both")
    net(torch.tensor([[1.0]]))
    average(torch.tensor([[10.0]]))
    if seen == {"net": [2.0], "average": [20.0]}:
        return None
    return Wrong(f"the net returned 2, the average 20, once each; you noted {numbers(seen)}")


@allows("hooks")
def check_q3(without_first: Callable[[Tensor], Any]) -> Wrong | None:
    for name, total in _LOSSES.items():
        x = torch.ones(3, 2, requires_grad=True)
        y = 2 * x
        without_first(y)
        torch.autograd.backward(total(y))
        assert x.grad is not None
        if numbers(x.grad) != "[0, 0, 2, 2, 2, 2]":
            return Wrong(f"y = 2 · x has three rows, and the loss is {name}. x.grad is {numbers(x.grad)}")
    return None


# In the first two losses every row gets the same numbers, which stand in memory once.
_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "y.sum()": lambda y: y.sum(),
    "y.sum(0).sum()": lambda y: y.sum(0).sum(),
    "(1 * y).sum()": lambda y: (1 * y).sum(),
}


def check_q4(outputs_of: Callable[[nn.Module, list[Tensor]], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0), linear(3.0))
    alive: list[weakref.ref[_Saved]] = []

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())
        alive.append(weakref.ref(saved))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        history = outputs_of(net, [torch.full((2, 1), float(batch)) for batch in (1, 2, 3)])
    kept = sum(saved() is not None for saved in alive)
    if kept:
        return Wrong(f"what you returned keeps {kept} tensors alive that autograd saved: the entries have their graphs")
    if numbers(history) != "[[2, 2], [4, 4], [6, 6]]":
        return Wrong(f"the first layer returned [2, 2], [4, 4] and [6, 6]; you returned {numbers(history)}")
    return left_on(net)


class _Saved:
    """What autograd saves: it lives as long as some graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


# -- the lab ------------------------------------------------------------------------------------------------------


def check_q5(answers: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = linear(2.0)
    seen = answers(net, torch.tensor([[5.0]]))
    if seen == []:
        return Wrong("the net was run, and your list is empty: the hook was never called")
    if seen != [10.0]:
        return Wrong(f"the net returned 10 once; your list is {numbers(seen)}")
    return left_on(net)


@allows("hooks", "random")
def check_q6(net_class: Callable[[], nn.Module], watch: Callable[[nn.Module, Any], Any]) -> Wrong | None:
    torch.manual_seed(0)
    net, called = net_class(), list[str]()

    def note(module: nn.Module, args: object, output: object) -> None:
        called.append(type(module).__name__)

    x = torch.tensor([[-1.0, 2.0]])
    before = net(x)
    watch(net, note)
    after = net(x)
    if not torch.equal(before, after) or after.shape != (1, 2) or not (after >= 0).all():
        return Wrong("the net should still do Linear, ReLU, Linear, ReLU, with or without the hook")
    if called != ["Linear", "ReLU"] * 2:
        said = ", ".join(called) or "nothing at all"
        return Wrong(f"the net did Linear, ReLU, Linear, ReLU, and the hook was told of {said}")
    return None


@allows("attributes")
def check_q7(count_calls: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = linear(2.0)
    counted = [count_calls(net, torch.ones(1, 1)) for _ in range(3)]
    if counted != [1, 1, 1]:
        return Wrong(f"the cell was run three times, with one call of the net each, and counted {numbers(counted)}")
    found = len(census(net, include_global=False))
    return Wrong(f"it counts 1, but after three runs {found} hooks are on the net") if found > 1 else None


@allows("random")
def check_q8(net_class: Callable[[], nn.Module]) -> Wrong | None:
    net: Any = net_class()
    nn.init.constant_(net.layer.weight, 2.0)
    for value in (1.0, 2.0, 3.0):
        net(torch.tensor([[value]]))
    if net.seen != [2.0, 4.0, 6.0]:
        return Wrong(f"three calls gave 2, 4 and 6, once each; the net noted {numbers(net.seen)}")
    return None


@allows("hooks")
def check_q9(watch: Callable[[nn.Module, dict[str, Any]], Any]) -> Wrong | None:
    net, seen = nn.Sequential(linear(2.0), linear(3.0), linear(4.0)), dict[str, Any]()
    watch(net, seen)
    net(torch.ones(1, 1))
    if seen != {"0": 2.0, "1": 6.0, "2": 24.0}:
        return Wrong(f"layers 0, 1 and 2 returned 2, 6 and 24; `seen` is {numbers(seen)}")
    return None


@allows("hooks")
def check_q10(keep_first: Callable[[nn.Module, dict[str, Tensor]], Any]) -> Wrong | None:
    net, kept = nn.Sequential(linear(2.0), linear(3.0)), dict[str, Tensor]()
    keep_first(net, kept)
    outputs = [net(torch.tensor([[value]])).item() for value in (1.0, 2.0)]
    if outputs != [6, 12]:
        return Wrong(f"for 1 and 2 the net returns 6 and 12; with your hook it returned {numbers(outputs)}")
    if list(kept) != ["0"] or numbers(kept["0"]) != "[2]":
        return Wrong(f"the first output of layer 0 was [2]; you kept {numbers(kept)}")
    return None


@allows("hooks")
def check_q11(clip: Callable[[Tensor], Any]) -> Wrong | None:
    layer = linear(2.0)
    clip(layer.weight)
    totals = []
    for value in (3.0, -0.5, -5.0):
        layer(torch.tensor([[value]])).sum().backward()
        totals.append(layer.weight.grad.item())  # type: ignore[union-attr]
    if totals != [1.0, 0.5, -1.0]:
        return Wrong(f"3, then -0.5, then -5 arrive, so `.grad` is 1, 0.5 and -1; with yours it is {numbers(totals)}")
    return None


def check_q12(before_relu: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0), nn.ReLU(inplace=True))
    kept = before_relu(net, torch.tensor([[-1.0], [1.0]]))
    if not isinstance(kept, Tensor) or numbers(kept) != "[-2, 2]":
        return Wrong(f"layer 0 returned [-2, 2]; you returned {numbers(kept)}")
    if not (isinstance(net[1], nn.ReLU) and net[1].inplace):
        return Wrong("afterwards the ReLU is no longer in place; leave the model as it was")
    return left_on(net)


@allows("grad")
def check_q13(row_gradient: Callable[[Tensor], Any]) -> Wrong | None:
    x = torch.ones(2, 2, requires_grad=True)
    seen = row_gradient(x)
    if numbers(x.grad) != "[100, 100, 0, 0]":
        return Wrong(f"the computation itself has changed: x.grad is {numbers(x.grad)}, and was [100, 100, 0, 0]")
    if not isinstance(seen, list) or numbers(seen) != "[[5, 5]]":
        return Wrong(f"the loss is 5 · row, so the gradient of the row is [5, 5], once; you returned {numbers(seen)}")
    return None


@allows("parameter grad")
def check_q14(output_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    net = nn.Sequential(linear(2.0), linear(3.0))
    with warnings.catch_warnings(action="ignore"):
        net[0].register_backward_hook(lambda module, grad_input, grad_output: None).remove()
    gradient = output_gradient(net, torch.ones(1, 1))
    if not isinstance(gradient, Tensor) or numbers(gradient) != "[3]":
        return Wrong(f"the net multiplies what layer 0 returns by 3, so the gradient is 3; you returned {gradient!r}")
    return left_on(net)
