"""Demonstrations of the claims of document D0: the four hooks around one Linear layer."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import io
import re
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from hookscope import census, record
from hookscope_course.history.records import history
from tests.course.claims import Found, shows
from tests.course.claims.parts import THREE, Double, Product, doubling


@shows("D0.1")
def watches_or_steps_in() -> None:
    class Watcher:
        seen: torch.Tensor

        def look(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
            self.seen = output

    watcher, double = Watcher(), Double()
    with double.register_forward_hook(watcher.look):
        assert double(THREE).item() == watcher.seen.item() == 6
    with double.register_forward_hook(lambda module, args, output: output + 1):
        assert double(THREE).item() == 7
    with double.register_forward_pre_hook(lambda module, args: (args[0] + 1,)):
        assert double(THREE).item() == 8
    x = THREE.clone().requires_grad_()
    with double.register_full_backward_hook(lambda module, grad_input, grad_output: (10 * grad_input[0],)):
        double(x).sum().backward()
    assert x.grad.item() == 20


@shows("D0.2")
def forward_called_directly_skips_the_own_hooks() -> Found:
    seen: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda *given: seen.append(name)

    outer = nn.Sequential(doubling())
    outer.register_forward_hook(hook("own forward"))
    outer.register_full_backward_hook(hook("own backward"))
    outer[0].register_forward_hook(hook("child's forward"))
    outer[0].weight.register_hook(hook("weight's"))
    outer.forward(THREE.clone().requires_grad_()).sum().backward()
    own = [name for name in seen if "own" in name]
    assert seen == ["child's forward", "weight's"], "these belong to other calls, or to none"
    outer(THREE.clone().requires_grad_())
    assert seen[2:] == ["child's forward", "own forward"], "a call runs the own hooks, too"
    return Found(holds=not own, fails=bool(own))


@shows("D0.3")
def inside_call_around_forward() -> None:
    seen = []

    class Speaking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append("forward")
            return x

    speaking = Speaking()
    speaking.register_forward_pre_hook(lambda module, args: seen.append("pre-hook"))
    speaking.register_forward_hook(lambda module, args, output: seen.append("forward hook"))
    speaking.__call__(THREE)
    assert seen == ["pre-hook", "forward", "forward hook"]


@shows("D0.4")
def called_by_the_engine() -> None:
    linear, x = doubling(), THREE.clone().requires_grad_()
    seen = []
    linear.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append("module"))
    y = linear(x)
    y.register_hook(lambda grad: seen.append("tensor"))
    assert seen == []
    y.sum().backward()
    assert seen == ["tensor", "module"]


@shows("D0.5")
def order_of_registration_unless_you_ask_for_another() -> Found:
    double, seen = Double(), []

    def hook(name: str) -> Callable[..., None]:
        return lambda module, args, output: seen.append(name)

    double.register_forward_hook(hook("first"))
    double.register_forward_hook(hook("second"))
    double(THREE)
    found = Found(holds=seen == ["first", "second"], fails=seen != ["first", "second"])
    seen.clear()
    double.register_forward_hook(hook("prepended"), prepend=True)
    with register_module_forward_hook(hook("global")):
        double(THREE)
    assert seen == ["global", "prepended", "first", "second"]
    return found


@shows("D0.6")
def a_return_value_was_ignored_in_no_release() -> Found:
    what_a_forward_hook_returns_replaces_the_output()
    answers = {*history("forward_hook_returns").values()}
    assert {answer.partition(":")[0] for answer in answers} == {"RuntimeError", "60"}, "an error, or ten times the 6"
    in_place = {*history("forward_hook_edits_in_place").values()}
    assert in_place == {"11"}, "5 more than the 6, in each release"
    double = Double()
    double.register_forward_hook(lambda module, args, output: output + 1)
    ignored = "6"
    return Found(holds=double(THREE).item() == 6, fails=double(THREE).item() == 7, held_once=ignored in answers)


def what_a_forward_hook_returns_replaces_the_output() -> None:
    """For the next hook and for the caller; None leaves it. (torch 1.0 and 1.1 raised; since 1.2, as recorded.)"""
    double, seen = Double(), []
    double.register_forward_hook(lambda module, args, output: seen.append(output))
    assert double(THREE).item() == 6
    double.register_forward_hook(lambda module, args, output: output + 1)
    double.register_forward_hook(lambda module, args, output: 10 * output)
    assert double(THREE).item() == 70
    assert seen[-1].item() == 6, "a hook before it still sees the old output"
    double.register_forward_hook(lambda module, args, output: "seventy")
    assert double(THREE) == "seventy", "its type is not looked at"
    doc = inspect.getdoc(nn.Module.register_forward_hook) or ""
    assert "hook(module, args, output) -> None or modified output" in doc


@shows("D0.7")
def pre_hook_replaces_the_input() -> None:
    """None leaves the args; a tuple is the new args; anything else, a list too, is wrapped as one argument."""

    def with_hook(hook: Callable[..., object]) -> tuple[object, tuple[object, ...]]:
        got: list[tuple[object, ...]] = []
        double = Double()
        double.register_forward_pre_hook(hook)
        double.register_forward_pre_hook(lambda module, args: got.append(args))
        return double(THREE), got[0]

    assert with_hook(lambda module, args: None)[0] == 6
    assert with_hook(lambda module, args: args)[0] == 6
    assert with_hook(lambda module, args: (10 * args[0],)) == (60, (30,))
    assert with_hook(lambda module, args: 10 * args[0]) == (60, (30,))
    assert with_hook(lambda module, args: [10 * args[0]]) == ([30, 30], ([30],))
    # Arguments by keyword are neither in args nor replaced, unless the hook asks for them.
    double = Double()
    with double.register_forward_pre_hook(lambda module, args: None if args == () else (10 * args[0],)):
        assert double(x=THREE) == 6
    with double.register_forward_pre_hook(lambda module, args, kwargs: (args, {"x": 10 * THREE}), with_kwargs=True):
        assert double(x=THREE) == 60


@shows("D0.8")
def only_grad_input_can_be_changed() -> Found:
    def run(method: str, hook: Callable[..., object]) -> list[float]:
        product, x1, x2 = Product(), torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
        getattr(product, method)(hook)
        product(x1, x2).backward()
        return [tensor.grad.item() for tensor in (x1, x2, product.W)]

    def spoil_grad_output(module: nn.Module, gi: tuple[torch.Tensor, ...], go: tuple[torch.Tensor, ...]) -> None:
        go[0].zero_()

    assert not hasattr(Product(), "backward"), "the engine calls no such thing"
    assert run("register_full_backward_hook", lambda module, gi, go: None) == [15, 10, 6]
    assert run("register_full_backward_hook", lambda module, gi, go: (10 * gi[0], gi[1])) == [150, 10, 6]
    assert run("register_full_backward_hook", lambda module, gi, go: [10 * g for g in gi]) == [150, 100, 6], "or a list"
    assert run("register_full_backward_hook", spoil_grad_output) == [15, 10, 6], "it comes too late for that"
    assert run("register_full_backward_pre_hook", lambda module, go: (10 * go[0],)) == [150, 100, 60]

    linear, x = nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
    for size, complaint in {3: "invalid number of grad_input, got 3, but expected 1", 1: "changed the size"}.items():
        with linear.register_full_backward_hook(lambda module, gi, go: gi[0]), pytest.raises(RuntimeError) as caught:
            linear(x[:size]).sum().backward()
        assert complaint in str(caught.value), "a tensor is taken for a tuple of its rows"

    def note(module: nn.Module, gi: object, go: object) -> tuple[torch.Tensor]:
        assert gi == (None,)
        assert linear.weight.grad is None, "it does not wait"
        return (torch.zeros(3, 2),)

    # The document's own `return grad_input` is no error here: it returns (None,).
    linear.zero_grad()
    with linear.register_full_backward_hook(lambda module, gi, go: gi), pytest.warns(UserWarning, match="no inputs"):
        linear(x.detach()).sum().backward()
    linear.zero_grad()
    with (
        linear.register_full_backward_hook(note),
        pytest.raises(RuntimeError, match="where no input requires gradient should always return None"),
        pytest.warns(UserWarning, match="no inputs require gradients"),
    ):
        linear(x.detach()).sum().backward()

    # Where no input requires grad the hook comes before anything is computed, in time to write into grad_output.
    plain = doubling()
    with plain.register_full_backward_hook(lambda module, gi, go: go[0].mul_(10) and None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (1 * plain(THREE)).backward()
    return Found(holds=True, fails=plain.weight.grad.item() == 30)


@shows("D0.9")
def a_hook_gets_the_gradient_at_its_place_in_the_line() -> None:
    for place, expected in enumerate((5, 50, 51)):
        x = torch.tensor(3.0, requires_grad=True)
        y, seen = 2 * x, []
        line = [lambda grad: 10 * grad, lambda grad: grad + 1]
        line.insert(place, lambda grad, to=seen: to.append(grad.item()))
        for number, hook in enumerate(line):
            if number == place:
                y.retain_grad()
            y.register_hook(hook)
        (5 * y).backward()
        assert [seen, y.grad, x.grad] == [[expected], 51, 102], "wherever retain_grad() stands"
    # In place: the hook stays with the old grad_fn, retain_grad goes along, and a hook on a view is not called.
    for on, when, expected in (("y", "before", [50]), ("y", "after", [5]), ("v", "before", []), ("v", "after", [5])):
        x = torch.tensor([3.0], requires_grad=True)
        y, seen = 2 * x, []
        y.retain_grad()
        v = y[:1]
        for moment in ("before", "edit", "after"):
            if moment == "edit":
                y.mul_(10)
            elif moment == when:
                {"y": y, "v": v}[on].register_hook(lambda grad, to=seen: to.append(grad.item()))
        (5 * v).sum().backward()
        assert [seen, y.grad, x.grad] == [expected, 5, 100]


@shows("D0.10")
def around_a_linear_layer() -> None:
    linear, x = doubling(), THREE.clone().requires_grad_()
    with record(linear) as recording:
        y = linear(x)
        recording.watch(y, "y")
        y.sum().backward()
    kinds = [event.kind for event in recording.events if event.kind != "full_backward_pre"]
    assert kinds == ["forward_pre", "forward", "tensor", "full_backward"]

    seen: list[object] = []
    plain = doubling()
    plain.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain(THREE).sum().backward()
    assert seen == [(None,)]
    assert any("no inputs require gradients" in str(warning.message) for warning in caught)
    printed, on_the_layer, on_y = as_printed()
    assert re.findall(r"^\[(.+?)\]", printed, re.MULTILINE) == [
        "Pre-Hook",
        "Forward Hook",
        "Tensor Hook",
        "Backward Hook",
    ]
    assert "[Pre-Hook] (tensor([[1., 2., 3., 4.]], requires_grad=True),)" in printed
    assert [on_the_layer, on_y] == [2, 1], "of four hooks, one is taken off"


def as_printed() -> tuple[str, int, int]:
    """Run the program of the document, with its four printing hooks; return what it prints, and the hooks it leaves."""

    class SimpleModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    def pre_hook(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        print(f"[Pre-Hook] {args}")
        return args

    def forward_hook(module: nn.Module, args: object, output: torch.Tensor) -> None:
        print(f"[Forward Hook] {output}")

    def backward_hook(module: nn.Module, grad_input: object, grad_output: object) -> None:
        print(f"[Backward Hook] {grad_input}, {grad_output}")

    def tensor_hook(grad: torch.Tensor) -> torch.Tensor:
        print(f"[Tensor Hook] {grad}")
        return grad

    model = SimpleModel()
    model.linear.register_forward_pre_hook(pre_hook)
    model.linear.register_forward_hook(forward_hook)
    handle = model.linear.register_full_backward_hook(backward_hook)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        y = model(torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True))
        y.register_hook(tensor_hook)
        y.sum().backward()
        handle.remove()
    return printed.getvalue(), len(census(model)), len(census(y))


@shows("D0.11")
def remove_comes_too_late_for_a_built_graph() -> Found:
    seen = []
    double = Double()
    handle = double.register_forward_hook(lambda module, args, output: seen.append("forward"))
    handle.remove()
    double(THREE)
    assert seen == []

    linear, x = doubling(), THREE.clone().requires_grad_()
    handle = linear.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append("backward"))
    y = linear(x)
    handle.remove()
    y.sum().backward()
    assert seen == ["backward"]
    linear(x).sum().backward()
    assert seen == ["backward"], "a graph built after the removal has no hook in it"
    # The document removes after backward(): there its own words are so.
    handle = linear.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append("once"))
    linear(x).sum().backward()
    handle.remove()
    linear(x).sum().backward()
    return Found(holds=seen[1:] == ["once"], fails=seen[0] == "backward")


@shows("D0.12")
def a_bound_method_brings_its_object_along() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.seen: list[float] = []

        def look(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
            self.seen.append(output.item())

    watcher, double = Watcher(), Double()
    handle = double.register_forward_hook(watcher.look)
    twin = copy.deepcopy(double)
    twin(THREE)
    assert watcher.seen == [], "the twin's hook has a copy of the object"
    (hook,) = twin._forward_hooks.values()
    assert hook.__self__.seen == [6]

    alive = weakref.ref(watcher)
    del watcher
    gc.collect()
    assert alive() is not None, "the module holds the hook, and the hook holds its object"
    handle.remove()
    gc.collect()
    assert alive() is None


@shows("D0.13")
def what_each_return_value_does() -> None:
    """The document's table says that a forward hook's return value is ignored; it replaces the output."""

    def values(register: Callable[[nn.Linear, torch.Tensor], object]) -> tuple[float, float, float]:
        linear, x = doubling(), THREE.clone().requires_grad_()
        y = register(linear, x)
        if y is None:
            y = linear(x)
        y.sum().backward()
        return y.item(), x.grad.item(), linear.weight.grad.item()

    def tensor_hook(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        y.register_hook(lambda grad: 10 * grad)
        return y

    def on(method: str, hook: Callable[..., object]) -> Callable[[nn.Linear, torch.Tensor], None]:
        def register(linear: nn.Linear, x: torch.Tensor) -> None:
            getattr(linear, method)(hook)

        return register

    assert values(lambda linear, x: None) == (6, 2, 3)
    assert values(on("register_forward_pre_hook", lambda m, args: (10 * args[0],))) == (60, 20, 30)
    assert values(on("register_forward_hook", lambda m, args, output: 10 * output)) == (60, 20, 30)
    assert values(on("register_full_backward_pre_hook", lambda m, go: (10 * go[0],))) == (6, 20, 30)
    assert values(on("register_full_backward_hook", lambda m, gi, go: (10 * gi[0],))) == (6, 20, 3)
    assert values(tensor_hook) == (6, 20, 30)


@shows("D0.14")
def delivered_times_local_but_a_sum_where_used_twice() -> Found:
    def gradient_at(b: torch.Tensor, end: torch.Tensor) -> float:
        seen: list[float] = []
        b.register_hook(lambda grad: seen.append(grad.item()))
        end.backward()
        (one,) = seen
        return one

    def b() -> torch.Tensor:
        return 1 * torch.tensor(3.0, requires_grad=True)

    once = b()
    delivered = 5.0
    square = once**2
    assert gradient_at(once, delivered * square) == delivered * 2 * 3
    twice = b()
    both = gradient_at(twice, 5 * twice + 2 * twice**2)
    assert both == 5 + 12, "a sum, over the ways on"
    edited, below = b(), []
    further = 2 * edited
    further.register_hook(lambda grad: 10 * grad)
    edited.register_hook(lambda grad: below.append(grad.item()))
    (5 * further).backward()
    assert below == [100], "no gradient of what backward() was called on: that is 10"
    return Found(holds=True, fails=both not in (5, 12))


@shows("D0.15")
def class_methods_and_static_methods_work() -> Found:
    seen: list[str] = []

    class Watcher:
        @classmethod
        def of_the_class(cls, module: nn.Module, args: object, output: torch.Tensor) -> None:
            seen.append(cls.__name__)

        @staticmethod
        def of_none(module: nn.Module, args: object, output: torch.Tensor) -> None:
            seen.append("static")

    double = Double()
    double.register_forward_hook(Watcher.of_the_class)
    double.register_forward_hook(Watcher.of_none)
    double(THREE)
    assert seen == ["Watcher", "static"]
    return Found(holds=True, fails=True, hidden=True)  # how often people use them, no run can tell
