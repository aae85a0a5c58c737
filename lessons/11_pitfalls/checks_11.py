"""Exercises of chapter 11: four bugs that are hard to find. The first wrong answer of each is the bug itself.

The ten bugs of the second sitting, the lab, are in `pitfalls_calls.py` and `pitfalls_values.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3", "q4"]


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


def _check_hidden(hidden_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
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


q1 = Exercise(
    "11.1",
    question="The symptom: `hidden_gradient` returns an empty list. It should return the gradient that arrives at "
    "`h_n`, the last hidden state. The loss is made from nothing else. Mend it.",
    difficulty="hard",
    minutes=5,
    check=_check_hidden,
    why="A full backward hook finds the tensors of a tuple, not those of a tuple in it; a hook on the tensor need not "
    "find anything.",
    hints=(
        "Chapter 08: what does an LSTM return, and where in it does torch look for tensors? "
        "`hookscope.record` says whether a kind of hook fired.",
        "A forward hook is given the whole output, however nested. A tensor has hooks of its own.",
        "In a forward hook: `_, (h_n, _) = output`, then `h_n.register_hook(seen.append)`.",
    ),
    solution="""
def hidden_gradient(model, x):
    seen = []

    def watch(module, args, output):
        _, (h_n, c_n) = output
        h_n.register_hook(seen.append)

    with model.lstm.register_forward_hook(watch):
        model(x).sum().backward()
    return seen[0]

q1.check(hidden_gradient)
""",
    wrong={
        """
def hidden_gradient(model, x):
    seen = []

    def keep(module, grad_input, grad_output):
        seen.append(grad_output[1])

    with model.lstm.register_full_backward_hook(keep):
        model(x).sum().backward()
    return seen

q1.check(hidden_gradient)
""": "your list is empty: no hook was called, and torch said nothing",
        """
def hidden_gradient(model, x):
    seen = []

    def keep(module, grad_output):
        seen.append(grad_output[0])

    with model.lstm.register_full_backward_pre_hook(keep):
        model(x).sum().backward()
    return seen

q1.check(hidden_gradient)
""": "your list is empty",
        """
def hidden_gradient(model, x):
    seen = []

    def watch(module, args, output):
        output[0].register_hook(seen.append)

    with model.lstm.register_forward_hook(watch):
        model(x).sum().backward()
    return seen

q1.check(hidden_gradient)
""": "your list is empty",
        """
def hidden_gradient(model, x):
    seen = []

    def watch(module, args, output):
        output.register_hook(seen.append)

    with model.register_forward_hook(watch):
        model(x).sum().backward()
    return seen[0]

q1.check(hidden_gradient)
""": "You returned [1, 1], of shape (1, 1, 2)",
        """
def hidden_gradient(model, x):
    seen = []

    def watch(module, args, output):
        output[1][0].register_hook(seen.append)

    model.lstm.register_forward_hook(watch)
    model(x).sum().backward()
    return seen[0]

q1.check(hidden_gradient)
""": "a hook is still on the model",
        """
def hidden_gradient(model, x):
    seen = []

    def watch(module, args, output):
        output[1][0].register_hook(seen.append)

    with model.lstm.register_forward_hook(watch):
        model(x).sum().backward()
    return seen

q1.check(hidden_gradient)
""": "you returned a list; return the tensor in it",
    },
)


def _check_average(with_average: Callable[[nn.Module], Any]) -> Wrong | None:
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


q2 = Exercise(
    "11.2",
    question="`with_average` makes a copy of a net, on which the weights will be averaged. It notes what the net "
    "returns, and apart from it what the average returns. The symptom: the net is called once and returns 2; then the "
    "average is called once and returns 20. The list of the net has both. Mend it.",
    difficulty="hard",
    minutes=4,
    check=_check_average,
    why="`deepcopy` copies the hooks along, but it does not copy functions: the hook of the copy writes where that of "
    "the original writes.",
    hints=(
        "Ask `hookscope.census(average)` right after the copy.",
        "The copy has a hook before you give it one. What if there is none yet when you copy?",
    ),
    solution="""
def with_average(net):
    average = copy.deepcopy(net)
    seen = {"net": [], "average": []}

    def note_net(module, args, output):
        seen["net"].append(output.item())

    def note_average(module, args, output):
        seen["average"].append(output.item())

    net.register_forward_hook(note_net)
    average.register_forward_hook(note_average)
    return average, seen

q2.check(with_average)
""",
    setup="import copy\nimport hookscope\n",
    wrong={
        """
def with_average(net):
    seen = {"net": [], "average": []}

    def note_net(module, args, output):
        seen["net"].append(output.item())

    def note_average(module, args, output):
        seen["average"].append(output.item())

    net.register_forward_hook(note_net)
    average = copy.deepcopy(net)
    average.register_forward_hook(note_average)
    return average, seen

q2.check(with_average)
""": "you noted {net: [2, 20], average: [20]}",
        """
def with_average(net):
    seen = {"net": [], "average": []}

    def note_net(module, args, output):
        seen["net"].append(output.item())

    def note_average(module, args, output):
        seen["average"].append(output.item())

    handle = net.register_forward_hook(note_net)
    average = copy.deepcopy(net)
    handle.remove()
    average.register_forward_hook(note_average)
    return average, seen

q2.check(with_average)
""": "you noted {net: [20], average: [20]}",
        """
def with_average(net):
    seen = {"net": [], "average": []}

    def note_net(module, args, output):
        seen["net"].append(output.item())

    net.register_forward_hook(note_net)
    return copy.deepcopy(net), seen

q2.check(with_average)
""": "you noted {net: [2, 20], average: []}",
        """
def with_average(net):
    seen = {"net": [], "average": []}

    def note_average(module, args, output):
        seen["average"].append(output.item())

    net.register_forward_hook(note_average)
    return net, seen

q2.check(with_average)
""": "your average is the net itself",
        """
def with_average(net):
    return copy.deepcopy(net)

q2.check(with_average)
""": "return the average and the dict of two lists",
    },
)


def _check_first_row(without_first: Callable[[Tensor], Any]) -> Wrong | None:
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

q3 = Exercise(
    "11.3",
    question="`without_first` stops the gradient of the first row. With `y = 2 * x` and three rows, `x.grad` should be "
    "0 in the first row, and 2 in the others. The symptom: with the loss `y.sum()` it is 0 in all rows. Mend it.",
    difficulty="hard",
    minutes=4,
    check=_check_first_row,
    why="A gradient may be expanded: all rows stand at one place in memory. Write into a clone, and return it.",
    hints=(
        "`hookscope.record(nn.Identity(), tensors={'y': y}, values=True)` shows what is left after your hook. Print "
        "`grad.stride()` in it: a stride of 0 means that the next row is at the same place.",
        "Never write into `grad`. Write into a clone of it, and return the clone.",
    ),
    solution="""
def without_first(y):
    def stop(grad):
        grad = grad.clone()
        grad[0] = 0
        return grad

    y.register_hook(stop)

q3.check(without_first)
""",
    wrong={
        """
def without_first(y):
    def stop(grad):
        grad[0] = 0
        return grad

    y.register_hook(stop)

q3.check(without_first)
""": "the loss is y.sum(). x.grad is [0, 0, 0, 0, 0, 0]",
        """
def without_first(y):
    def stop(grad):
        grad = grad.detach()
        grad[0] = 0
        return grad

    y.register_hook(stop)

q3.check(without_first)
""": "the loss is y.sum(). x.grad is [0, 0, 0, 0, 0, 0]",
        """
def without_first(y):
    def stop(grad):
        grad = grad.clone()
        grad[0] = 0

    y.register_hook(stop)

q3.check(without_first)
""": "x.grad is [2, 2, 2, 2, 2, 2]",
        """
def without_first(y):
    def stop(grad):
        grad[0].zero_()

    y[0].register_hook(stop)

q3.check(without_first)
""": "x.grad is [2, 2, 2, 2, 2, 2]",
        """
def without_first(y):
    y.register_hook(lambda grad: grad[0].zero_())

q3.check(without_first)
""": "has changed the size of value",
    },
)


def _check_outputs(outputs_of: Callable[[nn.Module, list[Tensor]], Any]) -> Wrong | None:
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


q4 = Exercise(
    "11.4",
    question="`outputs_of` runs a net on some batches and returns what its first layer returned. The symptom: memory "
    "grows with every batch, much more than the outputs take. Somebody read that `torch.no_grad()` in the hook helps. "
    "Mend it.",
    difficulty="medium",
    minutes=3,
    check=_check_outputs,
    why="A tensor with a `grad_fn` holds its whole graph, and all that autograd saved in it; `detach()` cuts it off.",
    hints=(
        "Print an entry: does it have a `grad_fn`? `hookscope.graph(entry)` shows what is behind it.",
        "In the hook, `no_grad()` stops the recording of *new* steps. `output` was recorded before. What cuts it off?",
    ),
    solution="""
def outputs_of(net, batches):
    history = []

    def keep(module, args, output):
        history.append(output.detach().clone())

    with net[0].register_forward_hook(keep):
        for batch in batches:
            net(batch)
    return history

q4.check(outputs_of)
""",
    wrong={
        """
def outputs_of(net, batches):
    history = []

    def keep(module, args, output):
        with torch.no_grad():
            history.append(output)

    with net[0].register_forward_hook(keep):
        for batch in batches:
            net(batch)
    return history

q4.check(outputs_of)
""": "what you returned keeps 3 tensors alive that autograd saved",
        """
def outputs_of(net, batches):
    history = []

    def keep(module, args, output):
        history.append(output.clone().cpu())

    with net[0].register_forward_hook(keep):
        for batch in batches:
            net(batch)
    return history

q4.check(outputs_of)
""": "tensors alive that autograd saved",
        """
def outputs_of(net, batches):
    history = []

    def keep(module, args, output):
        history.append(output.mean().item())

    with net[0].register_forward_hook(keep):
        for batch in batches:
            net(batch)
    return history

q4.check(outputs_of)
""": "you returned [2, 4, 6]",
        """
def outputs_of(net, batches):
    history = []

    def keep(module, args, output):
        history.append(output.detach())

    net[0].register_forward_hook(keep)
    for batch in batches:
        net(batch)
    return history

q4.check(outputs_of)
""": "a hook is still on the model",
    },
)
