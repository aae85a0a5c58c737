"""Chapter 11: four bugs that are hard to find, and the ten of the lab. The first wrong answer of each is the bug."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, allows, blind_to, probing
from hookscope_course.practice.probing import CALLS_NOTHING, SWALLOWED, Breaks, registrations, swallows


def linear(weight: float, size: int = 1) -> nn.Linear:
    """A Linear layer that multiplies `size` numbers by `weight`, of float64 if there are several."""
    layer = nn.Linear(size, size, bias=False, dtype=torch.float32 if size == 1 else torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight * torch.eye(size))
    return layer


def row(*values: float) -> Tensor:
    """One sample, of float64 if it has several numbers."""
    return torch.tensor([values], dtype=torch.float32 if len(values) == 1 else torch.float64)


def swallowed(answer: Callable[[nn.Module, Any], Any], given: Any = None) -> Wrong | None:
    """A complaint if an answer keeps to itself what a layer of the model raised."""
    breaking = nn.Sequential(linear(1.0), Breaks())
    given = row(1) if given is None else given
    return Wrong(SWALLOWED) if swallows(lambda: answer(breaking, given)) else None


def numbers(value: object) -> str:
    """A tensor, or a list of tensors and numbers, as one line of numbers that can be read."""
    if isinstance(value, Tensor):
        return numbers(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(numbers, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {numbers(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


NO_HOOK = "the answer is right, but no hook was registered; let a hook find it"


def left_on(model: nn.Module, own: int = 0) -> Wrong | None:
    """A complaint if there is a hook on the model, beside so many of the check's own."""
    found = probing.left_on(model) - own
    left = "a hook is" if found == 1 else f"{found} hooks are"
    return Wrong(f"the answer is right, but {left} still on the model; take them off") if found else None


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
    net(row(1))
    average(row(10))
    if seen != {"net": [weight], "average": [10 * weight]}:
        once = f"the net returned {weight:g}, the average {10 * weight:g}, once each"
        return Wrong(f"{once}; you noted {numbers(seen)}")
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


# -- the lab ------------------------------------------------------------------------------------------------------


@blind_to(one_size_only="the hook notes `output.item()`, so there is one size")
def check_q5(answers: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for net, x in ((linear(2.0), row(5)), (linear(3.0).double(), row(7).double())):
        expected = net(x).item()
        probing.with_others(net)
        with registrations() as registered:
            seen = answers(net, x)
        if seen == []:
            return Wrong("the net was run, and your list is empty: the hook was never called")
        if seen != [expected]:
            return Wrong(f"the net returned {expected:g} once; your list is {numbers(seen)}")
        if not registered:
            return Wrong(NO_HOOK)
        if wrong := left_on(net):
            return wrong
    return swallowed(answers)


@allows("hooks", "random")
@blind_to(
    swallows_errors=CALLS_NOTHING,
    one_size_only="the size of the net is the learner's own",
    works_in_place="`watch` returns nothing",
)
def check_q6(net_class: Callable[[], nn.Module], watch: Callable[[nn.Module, Any], Any]) -> Wrong | None:
    torch.manual_seed(0)
    return _wrong_watch(net_class(), watch, torch.float32) or _wrong_watch(net_class(), watch, torch.float64)


def _wrong_watch(net: nn.Module, watch: Callable[[nn.Module, Any], Any], dtype: torch.dtype) -> Wrong | None:
    net, called = net.to(dtype), list[str]()
    flow: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        called.append(module.__class__.__name__)
        flow.append((args[0], output))

    x = torch.tensor([[-1.0, 2.0]], dtype=dtype)
    before = net(x)
    with registrations() as registered:
        watch(net, note)
    after = net(x)
    if not torch.equal(before, after) or after.shape != (1, 2) or not (after >= 0).all():
        return Wrong("the net should still run Linear, ReLU, Linear, ReLU, with or without the hook")
    if called != ["Linear", "ReLU"] * 2:
        said = ", ".join(called) or "nothing at all"
        return Wrong(f"the net ran Linear, ReLU, Linear, ReLU, and the hook was told of {said}")
    if not registered:
        return Wrong("the hook was told of the layers, but `watch` has registered it on none; let torch call it")
    ways = zip([x, *(output for _, output in flow)], [*(given for given, _ in flow), after], strict=True)
    if not all(torch.equal(left, arrives) for left, arrives in ways):
        return Wrong(
            "what one layer returns should go into the next, and what the last one returns come out of the net"
        )
    return None


@allows("attributes")
def check_q7(count_calls: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for size in (1, 2):
        if wrong := _wrong_count(count_calls, linear(2.0, size), row(*[1.0] * size)):
            return wrong
    return swallowed(count_calls)


def _wrong_count(count_calls: Callable[[nn.Module, Tensor], Any], net: nn.Module, x: Tensor) -> Wrong | None:
    calls: list[object] = []
    probing.with_others(net).register_forward_pre_hook(lambda module, args: calls.append(module))
    with registrations() as registered:
        counted = [count_calls(net, x) for _ in range(3)]
    if counted != [1, 1, 1]:
        return Wrong(f"the cell was run three times, with one call of the net each, and counted {numbers(counted)}")
    found = probing.left_on(net) - 1
    if found > 1:
        return Wrong(f"it counts 1, but after three runs {found} hooks are on the net")
    if len(calls) != 3:
        return Wrong(f"it counts 1, but in three runs the net was called {len(calls)} times")
    return None if registered else Wrong(NO_HOOK)


@allows("random")
def check_q8(net_class: Callable[[], nn.Module]) -> Wrong | None:
    for weight in (2.0, 3.0):
        net: Any = net_class()
        nn.init.constant_(net.layer.weight, weight)
        returned = [net(row(value)) for value in (1.0, 2.0, 3.0)]
        expected = [weight, 2 * weight, 3 * weight]
        if net.seen != expected:
            once = f"three calls gave {', '.join(f'{value:g}' for value in expected)}, once each"
            return Wrong(f"{once}; the net noted {numbers(net.seen)}")
        if [value.item() for value in returned] != expected:
            return Wrong(f"the net should still return {numbers(expected)}; it returned {numbers(returned)}")
        net(row(3.0))
        if net.seen != [*expected, expected[-1]]:
            return Wrong(f"a fourth call gave the same as the third, and the net noted {numbers(net.seen)}")
        if (found := probing.left_on(net)) > 1:
            return Wrong(f"after four calls {found} hooks are on the net; register one, where the net is made")
        if not returned[0].requires_grad:
            return Wrong("with the hook on, the net's output has lost its gradient")
    return None


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q9(watch: Callable[[nn.Module, dict[str, Any]], Any]) -> Wrong | None:
    for weights, dtype in (((2.0, 3.0, 4.0), torch.float32), ((5.0, 2.0), torch.float64)):
        net, seen = nn.Sequential(*map(linear, weights)).to(dtype), dict[str, Any]()
        watch(net, seen)
        net(torch.ones(1, 1, dtype=dtype))
        expected = dict(zip("012", accumulate(weights, mul), strict=False))
        if seen != expected:
            return Wrong(f"the layers returned {numbers(expected)}; `seen` is {numbers(seen)}")
        output, twice = net(torch.full((1, 1), 2.0, dtype=dtype)).item(), 2 * list(expected.values())[-1]
        if output != twice:
            return Wrong(
                f"the first pass is right, but in the second, with the input 2, the net returned {output:g}, not "
                f"{twice:g}: your hook returns something"
            )
    return None


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q10(keep_first: Callable[[nn.Module, dict[str, Tensor]], Any]) -> Wrong | None:
    for size in (1, 2):
        net, kept = nn.Sequential(linear(2.0, size), linear(3.0, size)), dict[str, Tensor]()
        keep_first(net, kept)
        outputs = [net(row(*[value] * size)) for value in (1.0, 2.0)]
        if numbers(outputs) != numbers([[6.0] * size, [12.0] * size]):
            found = numbers([output.flatten()[0].item() for output in outputs])
            return Wrong(f"for 1 and 2 the net returns 6 and 12; with your hook it returned {found}")
        if list(kept) != ["0"] or numbers(kept["0"]) != numbers([2.0] * size):
            return Wrong(f"the first output of layer 0 was {numbers([2.0] * size)}; you kept {numbers(kept)}")
        if kept["0"].requires_grad:
            return Wrong("what you kept is right, but it holds the graph; keep `output.detach().clone()`")
        torch.autograd.backward(outputs[0].sum())
        if net.get_parameter("0.weight").grad is None:
            return Wrong(
                "what you kept is right, but with your hook on, no gradient comes to layer 0: it returns something"
            )
    return None


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q11(clip: Callable[[Tensor], Any]) -> Wrong | None:
    layer = linear(2.0)
    clip(layer.weight)
    totals = []
    for value in (3.0, -0.5, -5.0):
        layer(torch.tensor([[value]])).sum().backward()
        if layer.weight.grad is None:
            return Wrong("after `backward()`, `weight.grad` is None; clamp it, and leave it there")
        totals.append(layer.weight.grad.item())
    if totals != [1.0, 0.5, -1.0]:
        return Wrong(f"3, then -0.5, then -5 arrive, so `.grad` is 1, 0.5 and -1; with yours it is {numbers(totals)}")
    weight = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    clip(weight)
    arrives = torch.tensor([[3, 0.5, -2], [-0.25, 1, 0]], dtype=torch.float64)
    torch.autograd.backward(weight, arrives)
    if weight.grad is None or not torch.equal(weight.grad, arrives.clamp(-1, 1)):
        return Wrong(f"for a weight of six numbers {numbers(arrives)} arrive; with yours `.grad` is {weight.grad}")
    return None


def check_q12(before_relu: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for net, x in (
        (nn.Sequential(linear(2.0), nn.ReLU(inplace=True)), torch.tensor([[-1.0], [1.0]])),
        (nn.Sequential(linear(-3.0, 2), nn.ReLU(inplace=True)), row(1, -2)),
    ):
        returned = net[0](x).detach()
        outputs: list[Tensor] = []
        probing.with_others(net)
        look = net.register_forward_hook(lambda module, args, output, outputs=outputs: outputs.append(output))
        with registrations() as registered:
            kept = before_relu(net, x)
        look.remove()
        if isinstance(kept, list | tuple) and len(kept) == 1:
            return Wrong(f"you returned a {type(kept).__name__}; return the tensor in it")
        if not isinstance(kept, Tensor) or kept.shape != returned.shape or numbers(kept) != numbers(returned):
            return Wrong(f"layer 0 returned {numbers(returned)}; you returned {numbers(kept)}")
        if not registered:
            return Wrong(NO_HOOK)
        if not all(torch.equal(output, returned.relu()) for output in outputs):
            return Wrong("what you kept is right, but with your hook on, the net returns other numbers")
        if not (isinstance(net[1], nn.ReLU) and net[1].inplace):
            return Wrong("afterwards the ReLU is no longer in place; leave the model as it was")
        if wrong := left_on(net):
            return wrong
    return swallowed(before_relu)


@allows("grad")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q13(row_gradient: Callable[[Tensor], Any]) -> Wrong | None:
    for x in (torch.ones(2, 2), torch.ones(3, 4, dtype=torch.float64)):
        x.requires_grad_()
        with probing.no_crash_at_stale_views():
            seen = row_gradient(x)
        columns, rest = x.shape[1], x[1:].numel()
        before, once = numbers([100.0] * columns + [0.0] * rest), numbers([5.0] * columns)
        if x.grad is None or numbers(x.grad) != before:
            return Wrong(f"the computation itself has changed: `x.grad` is {numbers(x.grad)}, and was {before}")
        if not isinstance(seen, list) or numbers(seen) != f"[{once}]":
            return Wrong(
                f"the loss is 5 · row, so the gradient of the row is {once}, once; you returned {numbers(seen)}"
            )
    return None


@allows("parameter grad")
def check_q14(output_gradient: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    for size, factor in ((1, 3.0), (2, 7.0)):
        net = nn.Sequential(linear(2.0, size), linear(factor, size))
        with warnings.catch_warnings(action="ignore"):
            net[0].register_backward_hook(lambda module, grad_input, grad_output: None).remove()
        probing.with_others(net)
        with registrations() as registered:
            gradient = output_gradient(net, row(*[1.0] * size))
        if not isinstance(gradient, Tensor) or numbers(gradient) != numbers([factor] * size):
            return Wrong(
                f"the net multiplies what layer 0 returns by {factor:g}, so the gradient is {factor:g}; "
                f"you returned {gradient!r}"
            )
        if not registered:
            return Wrong(NO_HOOK)
        if wrong := left_on(net):
            return wrong
    return swallowed(output_gradient)
