"""Chapter 11: five bugs to fix, and a mistake to build. The first wrong answer of each bug is the bug."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.figures.sealed_models.puzzles import BOXES, Puzzle
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.check_helpers import (
    add_foreign_hooks,
    count_hooks,
    format_numbers,
    record_registrations,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, runs_model
from hookscope_course.practice.probe_models import make_broken, make_linear, make_row


@allows("attributes")
@runs_model((1,), (2,))
def check_q1(count_calls: Callable[[nn.Module, Tensor], Any], size: int) -> Wrong | None:
    net, x, calls = make_linear(2.0, size), make_row(*[1.0] * size), list[object]()
    add_foreign_hooks(net).register_forward_pre_hook(lambda module, args: calls.append(module))
    with record_registrations() as registered:
        counted = [count_calls(net, x) for _ in range(3)]
    if not calls:
        return Wrong(
            "the cell ran three times, but no hook on the net fired; "
            "call `net(x)`, because `net.forward(x)` runs no hooks"
        )
    if counted != [1, 1, 1]:
        other = ". Another hook was on the net before yours" if counted == [0, 0, 0] else ""
        return Wrong(
            f"the cell ran three times and called the net once each time, but you counted {format_numbers(counted)}; "
            f"it should be [1, 1, 1]{other}"
        )
    found = count_hooks(net) - 1
    if found > 1:
        return Wrong(f"the count is right, but after three runs {found} hooks are on the net; there should be none")
    if len(calls) != 3:
        return Wrong(f"the count is right, but three runs called the net {len(calls)} times; it should be 3 times")
    no_hook = Wrong("the count is right, but you registered no hook; a hook should count")
    return None if registered else no_hook


@adds_hook(((2.0, 3.0, 4.0), torch.float32), ((5.0, 2.0), torch.float64))
def check_q2(
    watch: Callable[[nn.Module, dict[str, Any]], Any], weights: tuple[float, ...], dtype: torch.dtype
) -> Wrong | None:
    net, seen = nn.Sequential(*map(make_linear, weights)).to(dtype), dict[str, Any]()
    watch(net, seen)
    try:
        net(torch.ones(1, 1, dtype=dtype))
    except TypeError as error:
        if "must be Tensor" not in str(error):
            raise
        return Wrong("the pass failed because a layer was not called with a tensor: your hook returns a value")
    expected = dict(zip("012", accumulate(weights, mul), strict=False))
    if seen != expected and {str(name): value for name, value in seen.items()} == expected:
        kind = type(next(iter(seen))).__name__
        return Wrong(f"the values in `seen` are right, but a key is of type {kind}; each should be a name, such as '0'")
    if seen != expected:
        return Wrong(f"after one pass `seen` is {format_numbers(seen)}; it should be {format_numbers(expected)}")
    output, twice = net(torch.full((1, 1), 2.0, dtype=dtype)).item(), 2 * list(expected.values())[-1]
    if output != twice:
        return Wrong(
            f"the first pass is right, but in the second, with the input 2, the net returned {output:g}; it should "
            f"return {twice:g}. Your hook returns a value"
        )
    if seen != (doubled := {name: 2 * value for name, value in expected.items()}):
        return Wrong(f"after a second pass `seen` is {format_numbers(seen)}; it should be {format_numbers(doubled)}")
    return None


@blind_to(
    one_size_only="the hooks note `output.item()`, so there is one size",
    one_dtype_only="it copies and registers, whatever the dtype",
)
@adds_hook((2.0,), (3.0,))
def check_q3(with_average: Callable[[nn.Module], Any], weight: float) -> Wrong | None:
    net = nn.Sequential(make_linear(weight))
    result = with_average(net)
    match result:
        case (nn.Module() as average, {"net": list(), "average": list()} as seen):
            pass
        case _:
            return Wrong(
                f"your function returned a {type(result).__name__}; "
                "it should return the average and the dict of two lists"
            )
    if average is net:
        return Wrong("your average is the net itself; it should be a copy, because training changes the net")
    returned = [net(make_row(1)), average(make_row(10))]
    if seen != {"net": [weight], "average": [10 * weight]}:
        return Wrong(
            f"after one call of each, you stored {format_numbers(seen)}; it should be one number in each list, "
            f"{weight:g} from the net and {10 * weight:g} from the average"
        )
    returned += [net(make_row(2)), average(make_row(20))]
    if seen != {"net": [weight, 2 * weight], "average": [10 * weight, 20 * weight]}:
        return Wrong(f"the first calls are right, but after a second call of each, you stored {format_numbers(seen)}")
    expected = [weight, 10 * weight, 2 * weight, 20 * weight]
    if [output.item() for output in returned] != expected or not all(output.requires_grad for output in returned):
        return Wrong("your lists are right, but your hooks change the output of a net")
    with torch.no_grad():
        next(average.parameters()).zero_()
    if next(net.parameters()).item() != weight:
        return Wrong("your average shares its weights with the net; it should have its own weights")
    if (found := count_hooks(average)) > 1:
        return Wrong(f"your lists are right, but {found} hooks are on the average; remove the copied hook")
    return None


def _break_history(outputs_of: Callable[..., Any]) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: outputs_of(model, [torch.ones(1, 2)])


@runs_model((1,), (2,), broken=_break_history)
def check_q4(outputs_of: Callable[[nn.Module, list[Tensor]], Any], size: int) -> Wrong | None:
    return _wrong_history(outputs_of, size) or _overwritten(outputs_of, size)


def _wrong_history(outputs_of: Callable[[nn.Module, list[Tensor]], Any], size: int) -> Wrong | None:
    net = nn.Sequential(make_linear(2.0, size), make_linear(3.0, size))
    batches = [make_row(*[float(batch)] * size).repeat(2, 1) for batch in (1, 2, 3)]
    expected = format_numbers([[2.0 * batch] * 2 * size for batch in (1, 2, 3)])
    alive: list[weakref.ref[_Saved]] = []
    returned: list[tuple[Tensor, bool]] = []

    def look(module: nn.Module, args: object, output: Tensor) -> None:
        returned.append((output.detach().clone(), output.requires_grad or not torch.is_grad_enabled()))

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())
        alive.append(weakref.ref(saved))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        add_foreign_hooks(net).register_forward_hook(look)
        history = outputs_of(net, batches)
    kept = sum(saved() is not None for saved in alive)
    if kept:
        return Wrong(
            f"your return value keeps {kept} tensors alive that autograd saved; the entries should not have a graph"
        )
    if isinstance(history, list) and any(isinstance(entry, list | tuple) for entry in history):
        return Wrong("you returned lists of numbers, without dtype and device; each entry should be a tensor")
    if format_numbers(history) != expected:
        return Wrong(f"you returned {format_numbers(history)}; the outputs of the first layer should be {expected}")
    if not returned:
        return Wrong("your entries are right, but your function never called `net(batch)`; a hook should keep them")
    if [format_numbers(output) for output, _ in returned] != [
        format_numbers([6.0 * batch] * 2 * size) for batch in (1, 2, 3)
    ]:
        return Wrong("your entries are right, but your hook changes the output of the net")
    if not all(has_graph for _, has_graph in returned):
        return Wrong("your entries are right, but your hook removes the graph from the net's output; it should stay")
    return find_left_hooks(net, "your entries are right", own=1)


def _overwritten(outputs_of: Callable[[nn.Module, list[Tensor]], Any], size: int) -> Wrong | None:
    """Return a `Wrong` if the next layer works in place and overwrites what the hook kept."""
    net = nn.Sequential(make_linear(2.0, size), nn.ReLU(inplace=True))
    history = outputs_of(net, [make_row(*[value] * size) for value in (-1.0, 1.0)])
    expected = format_numbers([[value] * size for value in (-2.0, 2.0)])
    if format_numbers(history) == expected:
        return None
    return Wrong(
        f"with an in-place ReLU after the first layer, you returned {format_numbers(history)}; "
        f"it should be {expected}. The ReLU overwrote your entries"
    )


class _Saved:
    """What autograd saves: it lives as long as some graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@adds_hook()
def check_q5(without_first: Callable[[Tensor], Any]) -> Wrong | None:
    for name, total in _LOSSES.items():
        many = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
        y = 2 * many
        without_first(y)
        torch.autograd.backward(total(y))
        rows = format_numbers(many.grad)
        x = torch.ones(3, 2, requires_grad=True)
        y = 2 * x
        without_first(y)
        torch.autograd.backward(total(y))
        assert x.grad is not None
        if format_numbers(x.grad) != "[0, 0, 2, 2, 2, 2]":
            found = format_numbers(x.grad)
            return Wrong(
                f"`y = 2 * x` has three rows, and the loss is `{name}`. `x.grad` is {found}; "
                "it should be [0, 0, 2, 2, 2, 2]"
            )
        if rows != format_numbers([0.0] * 3 + [2.0] * 9):
            return Wrong(
                f"with rows of three numbers and the loss `{name}`, `x.grad` is {rows}; only row 0 should be 0"
            )
    weights, x = torch.tensor([[5.0, 6], [7, 8], [9, 10]]), torch.ones(3, 2, requires_grad=True)
    y = 2 * x
    without_first(y)
    for times in (1, 2):
        torch.autograd.backward((weights * y).sum(), retain_graph=True)
        should = format_numbers(2 * times * weights * torch.tensor([[0.0], [1], [1]]))
        if format_numbers(x.grad) != should:
            return Wrong(
                f"the gradient at `y` is 5, 6, 7, 8, 9 and 10. `backward()` ran {'once' if times == 1 else 'twice'}. "
                f"`x.grad` is {format_numbers(x.grad)}; it should be {should}"
            )
    x, arrives = torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)
    y = 2 * x
    without_first(y)
    torch.autograd.backward(y, arrives)  # this very tensor reaches the hook
    if not arrives.all():
        return Wrong(
            "`x.grad` is right, but your hook wrote into the tensor that was passed to `backward()`; write into a clone"
        )
    return None


# In the first two, all rows are in one place; if all numbers are, too, torch before 2.15 refuses to write there.
_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "y.sum(0) @ torch.ones(2)": lambda y: y.sum(0) @ torch.ones(y.shape[1], dtype=y.dtype),
    "y.sum()": lambda y: y.sum(),
    "(1 * y).sum()": lambda y: (1 * y).sum(),
}


@allows("hooks")
@blind_to(
    one_size_only="the model in the box has one size",
    one_dtype_only="the model in the box has one dtype",
    first_result_forever="it returns nothing",
    swallows_errors="nothing in the box fails",
)
def check_q6(seal: Callable[[nn.Module], Any]) -> Wrong | None:
    box, plain = (Puzzle(BOXES[2], "", "", way) for way in (seal, _watch_all))
    for question in ("census", "record", "capture"):
        if apart := box.find_difference(plain, question):
            layer, found, expected = apart
            return Wrong(f"`{question}` shows {found} for `{layer}`; without a mistake, it shows {expected}")
    rows = box.answer("compare")
    changed = [row["layer"] for row in rows if row["output, without hooks"] != row["output, with hooks"]]
    if not changed:
        return Wrong(
            "`compare` shows the same inputs and outputs with your hooks and without them; "
            "the output of `gate` should differ"
        )
    if changed[0] != "gate":
        first = changed[0]
        return Wrong(
            f"in `compare`, the first output that your hooks change is that of `{first}`; it should be that of `gate`"
        )
    return None


def _watch_all(model: nn.Module) -> None:
    for layer in model.children():
        layer.register_forward_hook(lambda module, args, output: None)
