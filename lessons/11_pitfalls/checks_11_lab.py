"""Chapter 11: the ten bugs of the lab. The first wrong answer of each is the bug."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, allows, blind_to, probing
from hookscope_course.practice.nets import NO_HOOK, left_on, linear, numbers, row, swallowed
from hookscope_course.practice.probing import CALLS_NOTHING, registrations


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
        if seen != (doubled := {name: 2 * value for name, value in expected.items()}):
            return Wrong(f"in a second pass the layers returned {numbers(doubled)}; `seen` is {numbers(seen)}")
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
        if layer.weight.item() != 2:
            return Wrong(f"the weight was 2, and after `backward()` it is {layer.weight.item():g}; leave it alone")
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
