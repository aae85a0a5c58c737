"""Kinds of exercises: what many checks ask of an answer in the same way, so that a new exercise of a kind is data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    ERROR_HIDDEN,
    add_foreign_hooks,
    count_hooks,
    format_count,
    format_numbers,
    hides_errors,
    record_registrations,
)
from hookscope_course.practice.check_options import allows, blind_to
from hookscope_course.practice.exercise import Wrong
from hookscope_course.practice.probe_models import KeepsArguments, make_broken, make_double
from hookscope_course.practice.snapshot import Snapshot

__all__ = ["WatchedCall", "adds_hook", "find_left_hooks", "hook_that", "order_of", "returns", "runs_model"]

Check = Callable[..., Wrong | None]
Judge = Callable[..., Wrong | None]


# -- a value --------------------------------------------------------------------------------------------------------


def returns(
    right: object,
    *,
    what: str,
    reasons: Mapping[Any, str] | Callable[[Any], str] | None = None,
    otherwise: str = "{answer} is not the answer",
) -> Check:
    """Make the check of an exercise whose answer is one value: a number, a string, or a list of numbers.

    NumPy's numbers and tensors of one element are numbers, too; True and False are none.

    Args:
        right: the answer, or a function that computes it.
        what: what the answer is, as in "an integer"; said to those who hand in something else.
        reasons: by value, what leads to a wrong answer; or a function that finds it.
        otherwise: what is said of every other value; `{answer}` stands for it.

    Example:
        >>> check_q1 = returns(3, what="an integer", reasons={4: "one of the hooks was removed"})
        >>> check_q1(4), check_q1("three")
        (Wrong('one of the hooks was removed'), Wrong('your answer is a str; it should be an integer'))

    """

    def check(answer: object) -> Wrong | None:
        expected = right() if callable(right) else right
        value = _to_python(answer)
        if not _is_like(value, expected):
            said = repr(answer) if isinstance(expected, list) else _name_type(answer)
            return Wrong(f"your answer is {said}; it should be {what}")
        if value == expected:
            return None
        reason = reasons(value) if callable(reasons) else (reasons or {}).get(value, "")
        return Wrong(reason or otherwise.format(answer=format_numbers(value)))

    return check


def _to_python(answer: Any) -> Any:
    """Turn tensors and what NumPy has into numbers and lists, and a float without a fraction into an integer."""
    if isinstance(answer, Tensor | np.ndarray | np.generic):
        values = answer.reshape(-1).tolist()
        return _to_python(values[0] if len(values) == 1 else values)
    if isinstance(answer, list | tuple):
        return [_to_python(value) for value in answer]
    return int(answer) if isinstance(answer, float) and answer.is_integer() else answer


def _is_like(value: object, expected: object) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list) and len(value) == len(expected) and all(map(_is_like, value, expected))
    if isinstance(expected, bool | str):
        return isinstance(value, type(expected))
    return isinstance(value, (int, type(expected))) and not isinstance(value, bool)


def _name_type(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def order_of(right: str | Callable[[], str], reasons: Mapping[str, str] | None = None) -> Check:
    """Make the check of an exercise whose answer is an order of letters: a list of them, or "C, A, B", or "CAB".

    Args:
        right: the letters in their order, or a function that finds it on the learner's machine.
        reasons: by two letters that stand in the wrong order, as in "BE", why B must come after E.

    Example:
        >>> check_q1 = order_of("CAB", reasons={"BA": "B comes before A, but it waits for A"})
        >>> check_q1("C, B, A"), check_q1(["A", "C", "B"])
        (Wrong('B comes before A, but it waits for A'), Wrong('letter 1 of your answer is A; it should be C'))

    """

    def check(order: object) -> Wrong | None:
        expected = right() if callable(right) else right
        letters, count = sorted(expected), _COUNTS[len(expected)]
        given = _read_letters(order, "".join(letters))
        if given is None:
            what = repr(order) if isinstance(order, str) else f"an object of type {type(order).__name__}"
            listed = ", ".join(f'"{letter}"' for letter in letters)
            return Wrong(f"your answer is {what}; it should be a list of {count} letters, such as [{listed}]")
        if sorted(given) != letters:
            return Wrong(f"use each of the letters {', '.join(letters)} once; you gave {', '.join(given)}")
        for pair, reason in (reasons or {}).items():
            if given.index(pair[0]) < given.index(pair[1]):
                return Wrong(reason)
        for place, (ours, theirs) in enumerate(zip(given, expected, strict=True), start=1):
            if ours != theirs:
                where = "on your machine " if callable(right) else ""
                return Wrong(f"letter {place} of your answer is {ours}; {where}it should be {theirs}")
        return None

    return check


_COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def _read_letters(order: object, letters: str) -> list[str] | None:
    """The letters of a list, or of a string that has these and commas, spaces and arrows alone."""
    if isinstance(order, list | tuple) and len(order) == 1 and isinstance(order[0], str):
        order = order[0]
    if isinstance(order, str) and re.fullmatch(rf"[{letters}\s,;>-]+", order, re.IGNORECASE):
        order = re.findall("[A-Za-z]", order)
    return [str(letter).strip().upper() for letter in order] if isinstance(order, list | tuple) else None


# -- a hook ---------------------------------------------------------------------------------------------------------


def hook_that(
    *,
    changes: Callable[..., Tensor],
    settings: Sequence[tuple[float, ...]] = ((),),
    sample: tuple[float, float] = (2.0, 6.0),
    is_pre_hook: bool = False,
) -> Check:
    """Make the check of an exercise whose answer is a hook that replaces an output, or the input, by a new tensor.

    It must not write into the old one, and must keep shape, dtype and gradient, at every size and for huge numbers.
    A pre-hook has to pass on all other arguments.

    Args:
        changes: computes the new tensor from the old one and a setting; it is called as the learner's function is.
        settings: what the learner's function is called with, once each, to make hooks; without any, it is the hook.
        sample: the two numbers that the replies are about.
        is_pre_hook: whether the hook changes the first argument, and not the output.

    Example:
        >>> check_q1 = hook_that(changes=lambda x: -x)
        >>> check_q1(lambda module, args, output: None)
        Wrong('your hook did not return a new output, so the call still returned [2, 6]')

    """

    @blind_to(swallows_errors=CALLS_NOTHING)
    def check(answer: Callable[..., Any]) -> Wrong | None:
        hooks: list[tuple[Any, Callable[[Tensor], Tensor], str]] = []
        for setting in settings:  # all of them, before the first is used
            called = f"`{changes.__name__}({', '.join(map(format_numbers, setting))})`" if setting else "your hook"
            hook = answer(*setting) if setting else answer
            if not callable(hook):
                return Wrong(f"{called} returned {format_numbers(hook)}; it should return the hook function")
            hooks.append((hook, partial(_change, changes, setting), called))
        for hook, change, called in hooks:
            wrong = _wrong_input if is_pre_hook else _wrong_output
            if found := wrong(hook, change, called, torch.tensor(sample)):
                return found
        for hook, change, called in hooks:
            if found := _wrong_size(hook, change, called, is_pre_hook):
                return found
        return None

    return check


def _change(changes: Callable[..., Tensor], setting: tuple[float, ...], x: Tensor) -> Tensor:
    return changes(x, *setting)


def _wrong_output(hook: Any, change: Callable[[Tensor], Tensor], called: str, x: Tensor) -> Wrong | None:
    layer, before, expected, kept = make_double(), format_numbers(x), change(x.clone()), list[Tensor]()
    layer.register_forward_hook(lambda module, args, output: kept.append(output))
    layer.register_forward_hook(hook)
    answer = layer(x / 2)
    if (now := format_numbers(kept[0])) != before:
        return Wrong(f"you changed the output in place: an earlier hook had kept {before}, which is now {now}")
    if answer is kept[0]:
        return Wrong(f"your hook did not return a new output, so the call still returned {before}")
    if not isinstance(answer, Tensor):
        return Wrong(f"with your hook the call returned {answer!r}; it should return a tensor")
    if answer.shape != expected.shape or not torch.allclose(answer, expected):
        return Wrong(
            f"with {called}, {before} became {format_numbers(answer)}; it should be {format_numbers(expected)}"
        )
    return None


def _wrong_input(hook: Any, change: Callable[[Tensor], Tensor], called: str, x: Tensor) -> Wrong | None:
    layer, before, expected = KeepsArguments(), format_numbers(x), change(x.clone())
    returned: list[Any] = []

    def watched(module: nn.Module, args: Any) -> Any:
        returned.append(hook(module, args))
        return returned[-1]

    add_foreign_hooks(layer).register_forward_pre_hook(watched)
    layer(x)
    if format_numbers(x) != before:
        return Wrong(
            f"your hook changed the caller's tensor from {before} to {format_numbers(x)}; it should create a new one"
        )
    if returned[0] is None:
        return Wrong(f"your hook returned None, so the layer got {before} unchanged")
    if isinstance(returned[0], list):
        return Wrong("your hook returned a list, so the layer got the list as its only argument; return a tuple")
    got = layer.args[0] if layer.args else None
    if not isinstance(got, Tensor):
        return Wrong(f"the layer got {got!r}; its first argument should be a tensor")
    if got.shape != x.shape or not torch.allclose(got, expected):
        return Wrong(
            f"with {called} the layer got {format_numbers(got)} instead of {before}; "
            f"it should get {format_numbers(expected)}"
        )
    layer(x, "second")
    if len(layer.args) != 2:
        return Wrong(
            f"a call with two arguments reached the layer with {len(layer.args)}: the return value of your "
            "hook replaces all of `args`"
        )
    if layer.args[1] != "second":
        return Wrong(f'your hook changed the second argument from "second" to {layer.args[1]!r}; pass it on unchanged')
    layer(x, "second", third := torch.ones(2))
    if layer.args[-1] is not third:
        return Wrong("your hook lost or changed a third argument, a tensor; pass on all other arguments unchanged")
    return None


def _wrong_size(hook: Any, change: Callable[[Tensor], Tensor], called: str, is_pre_hook: bool) -> Wrong | None:
    """Try a hook on huge numbers, other sizes and another dtype, and see whether gradients still go through it."""
    what, layer = ("input", KeepsArguments()) if is_pre_hook else ("output", make_double())
    layer.register_forward_pre_hook(hook) if is_pre_hook else layer.register_forward_hook(hook)
    huge = torch.tensor([float("inf"), 1e9, -1e9, -float("inf")])
    cases = [huge, torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 1, 5)]
    for given in cases:
        asking = given.clone().requires_grad_()
        x = asking if is_pre_hook else 2 * asking
        answer, expected = layer(asking), change(x)
        if not isinstance(answer, Tensor) or answer.shape != x.shape or answer.dtype != x.dtype:
            return Wrong(
                f"an {what} of shape {tuple(x.shape)} and dtype {x.dtype} should keep both; it became {answer!r}"
            )
        if not torch.allclose(answer, expected, equal_nan=True):  # a subtraction may round
            return Wrong(f"with {called}, {format_numbers(x, 3)} became {format_numbers(answer, 3)}")
        if not answer.requires_grad:
            return Wrong(f"the numbers are right, but the {what} has lost its gradient; compute it without `detach()`")
        found, wanted = (torch.autograd.grad(value.sum(), asking)[0] for value in (answer, expected))
        if given is not huge and not torch.allclose(found, wanted):
            return Wrong("the values are right, but the gradients that flow back through your hook are not")
    return None


# -- a function that adds a hook ------------------------------------------------------------------------------------


def adds_hook(*cases: tuple[Any, ...], right: str = "") -> Callable[[Judge], Check]:
    """Make the check of an exercise whose answer registers a hook on what it is given, and leaves it there.

    The judge is handed the answer and one case after another. The kind allows hooks and, where a handle comes back,
    sees to it that `remove()` takes off all that the call has registered.

    Args:
        *cases: what the judge gets after the answer; without any, it is called once.
        right: what the judge has found right, as in "the counts are right"; without it, no handle has to come back.

    Example:
        >>> @adds_hook((1,), (3,), right="the list is right")
        ... def check_q1(keep, size):
        ...     layer, kept = nn.Identity(), []
        ...     keep(layer, kept)
        ...     layer(torch.ones(size))
        ...     return None if len(kept) == 1 else Wrong(f"you kept {len(kept)} outputs, not 1")
        >>> check_q1(lambda layer, kept: layer.register_forward_hook(lambda *given: kept.append(1)) and None)
        Wrong('the list is right, but `keep` returned None; return the handle, so that the hook can be removed')

    """

    def make(judge: Judge) -> Check:
        name = next(iter(signature(judge).parameters))

        @allows("hooks")
        @blind_to(swallows_errors=CALLS_NOTHING)
        def check(answer: Callable[..., Any]) -> Wrong | None:
            for case in cases or ((),):
                calls: list[_Registration] = []

                def call(*args: Any, calls: list[_Registration] = calls) -> Any:
                    before = _list_hooks(args)
                    handle = answer(*args)
                    calls.append(_Registration(handle, args, len(before), _list_hooks(args)))
                    return handle

                if wrong := judge(call, *case):
                    return wrong
                for each in calls if right else ():
                    if wrong := _wrong_handle(name, each, right):
                        return wrong
            return None

        return check

    return make


@dataclass
class _Registration:
    """A call of an answer: the handle that came back, what the call got, and the hooks on that before and after."""

    handle: Any
    args: tuple[Any, ...]
    before: int
    after: set[int]


def _list_hooks(args: tuple[Any, ...]) -> set[int]:
    found = Snapshot({"args": args})
    stores = [each.hooks for each in found.modules.values()] + [each.hooks for each in found.tensors.values()]
    return {hook for store in stores for hook in store}


def _wrong_handle(name: str, call: _Registration, right: str) -> Wrong | None:
    handle = call.handle
    if not callable(getattr(handle, "remove", None)) or isinstance(handle, list):
        back = "return the handle, so that the hook can be removed"
        return Wrong(f"{right}, but `{name}` returned {handle!r}; {back}")
    handle.remove()
    if len(call.after & _list_hooks(call.args)) > call.before:
        return Wrong("`remove()` on the handle you returned did not remove your hook")
    handle.remove()  # as everywhere in torch, a second time does nothing
    return None


# -- a function that runs a model -----------------------------------------------------------------------------------


def runs_model(
    *cases: tuple[Any, ...],
    broken: Callable[[Callable[..., Any]], tuple[nn.Module, Callable[[], object]]] | None = None,
    comes_off: bool = False,
) -> Callable[[Judge], Check]:
    """Make the check of an exercise whose answer runs a model, and lets through what a layer raises.

    Args:
        *cases: what the judge gets after the answer; without any, it is called once.
        broken: from the answer, a model with a `BreakingLayer` in it, and a call of the answer that runs it; without
            it, `answer(model, x)`.
        comes_off: whether the hooks must come off after an error, too.

    Example:
        >>> @runs_model((1,), (3,))
        ... def check_q1(output_of, size):
        ...     output = output_of(nn.ReLU(), -torch.ones(size))
        ...     return Wrong(f"you returned {output!r}") if output is None or output.any() else None
        >>> def output_of(model, x):
        ...     try:
        ...         return model(x)
        ...     except Exception:
        ...         return None
        >>> check_q1(output_of)
        Wrong('a layer raised an error, but your function kept it to itself; let the exception through')

    """

    def make(judge: Judge) -> Check:
        def check(answer: Callable[..., Any]) -> Wrong | None:
            for case in cases or ((),):
                if wrong := judge(answer, *case):
                    return wrong
            model, run = broken(answer) if broken else _break(answer)
            hidden = hides_errors(run)
            if comes_off and (left := count_hooks(model)):
                off = f"{format_count(left)} still on the model; use `with` or `finally`"
                return Wrong(f"a layer raised an error, and {off}")
            return Wrong(ERROR_HIDDEN) if hidden else None

        return check

    return make


def _break(answer: Callable[..., Any]) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: answer(model, torch.ones(1, 2))


def find_left_hooks(model: nn.Module, right: str = "", own: int = 0) -> Wrong | None:
    """Say that hooks are left on a model, beside so many of the check's own.

    Args:
        model: the model.
        right: what was found right, as in "the output is right".
        own: how many hooks of the check are on it.

    """
    if (left := count_hooks(model) - own) <= 0:
        return None
    but = f"{right}, but " if right else ""
    return Wrong(f"{but}{format_count(left)} still on the model; remove every handle")


class WatchedCall:
    """A call of an answer that runs a model: what it returned, what the model did meanwhile, which hooks are left.

    Args:
        model: it gets hooks of somebody else's on each module.
        call: calls the answer.
        own: how many hooks of the check are on the model.

    Attributes:
        result: what the answer returned.
        outputs: copies of what the model returned, for each time that it ran.
        registered: which kinds of hooks were registered, as in `record_registrations`.

    Raises:
        Wrong: the model never ran.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> call = WatchedCall(model, lambda: model(torch.ones(1, 1)))
        >>> call.find_traces("the output is right", call.outputs[0])
        Wrong('the output is right, but you registered no forward hook; use one')

    """

    def __init__(self, model: nn.Module, call: Callable[[], Any], own: int = 0) -> None:
        self.outputs, self._graphs = list[Tensor](), list[bool]()
        recorder = add_foreign_hooks(model).register_forward_hook(self._note)
        with recorder, record_registrations() as self.registered:
            self.result = call()
        self._left = find_left_hooks(model, own=own)
        if not self.outputs:
            raise Wrong(
                "your function never called `model(x)`; call the model, so that each layer gets its input from the "
                "layers before it"
            )

    def _note(self, module: nn.Module, args: object, output: Tensor) -> None:
        self.outputs.append(output.detach().clone())
        self._graphs.append(output.requires_grad or not torch.is_grad_enabled())

    def find_traces(self, right: str, expected: Tensor, hook: str = "forward") -> Wrong | None:
        """Say what is wrong beside the result: hooks left, no hook used, a call too many, an output that changed.

        Args:
            right: what was found right, as in "the output is right".
            expected: what the model returns without hooks.
            hook: the kind of hook that the exercise asks for; "" for any, or none.

        """
        if self._left:
            return Wrong(f"{right}, but {self._left}")
        if hook and hook not in self.registered:
            return Wrong(f"{right}, but you registered no {hook} hook; use one")
        if len(self.outputs) > 1:
            return Wrong(f"{right}, but you called the model {len(self.outputs)} times; once is enough")
        if not all(torch.equal(output, expected) for output in self.outputs):
            return Wrong(
                f"{right}, but your hooks changed the model's output, because the return value of a "
                "forward hook replaces the output; it should return None"
            )
        if expected.requires_grad and not all(self._graphs):
            return Wrong(
                f"{right}, but the model's output has lost its gradient: the return value of your hook "
                "replaced the output; it should return None"
            )
        return None
