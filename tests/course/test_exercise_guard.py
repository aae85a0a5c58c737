"""The guard: whatever an answer changes that is not its own is refused, and a right answer of any style is not."""

import contextlib
import functools
import inspect
import random

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope_course import Wrong, ____
from hookscope_course.practice import allows
from hookscope_course.practice.check_helpers import BreakingLayer, hides_errors, record_registrations
from hookscope_course.practice.side_effects import Guard, GuardedCallable
from tests.shared.exercises import ask_check, make_exercise


def net():
    """A model, with a hook of somebody else's on it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(inplace=True))
    model[0].register_forward_hook(lambda module, args, output: None)
    model[0].weight.register_hook(lambda grad: None)
    return model


def call_with_everything(answer):
    answer(net(), [torch.ones(2, 2), {"y": torch.ones(1, requires_grad=True)}])


SPOILS = {
    "x[0].mul_(2)": "`f` changed the numbers in `x[0]`, which belongs to the caller; work on a copy",
    "x[0].mul_(1)": "`f` changed the numbers in `x[0]`",
    "x[0].data[0] = torch.nan": "`f` changed the numbers in `x[0]`",
    "x[0].requires_grad_()": "`f` set `requires_grad` of `x[0]`, which belongs to the caller, to True; use your",
    "x[1]['y'].sum().backward()": "`f` changed `.grad` of `x[1]['y']`, which belongs to the caller",
    "model[0].weight.data += 1": "`f` changed the numbers in `0.weight` of `model`",
    "model[0].weight.requires_grad_(False)": "`f` set `requires_grad` of `0.weight` of `model`, to False",
    "model[0].weight.sum().backward()": "`f` changed `.grad` of `0.weight` of `model`",
    "model[0].weight = nn.Parameter(torch.ones(2, 2))": "`f` replaced a part of `0` of `model`",
    "model[2] = nn.ReLU()": "`f` replaced a part of `model`",
    "model[1](x[0])": "`f` changed the numbers in `1.running_mean` of `model`",
    "model[2].register_forward_hook(print)": "`f` left a hook on `2` of `model`; remove it with its handle",
    "model.register_full_backward_pre_hook(print)": "`f` left a hook on `model`",
    "model[0].bias.register_hook(print)": "`f` left a hook on `0.bias` of `model`",
    "x[1]['y'].register_post_accumulate_grad_hook(print)": "`f` left a hook on `x[1]['y']`; remove it",
    "model[0]._forward_hooks.clear()": "`f` removed a hook that was on `0` of `model` before; remove only your own",
    "model[0].weight._backward_hooks.clear()": "`f` removed a hook that was on `0.weight` of `model` before",
    "model.eval()": "`f` set `training` of `model` to False",
    "model[2].inplace = False": "`f` set `inplace` of `2` of `model` to False; do not change the caller's module",
    "model.calls = 0": "`f` set `calls` of `model` to 0",
    "model[0].forward = model[1].forward": "`f` replaced `forward` of `0` of `model`",
    "nn.modules.module.register_module_forward_hook(print)": "`f` registered a global hook on all modules",
    "nn.modules.module.register_module_forward_hook(print).remove()": "`f` registered a global hook on all modules",
    "torch.rand(1)": "`f` changed the state of the random numbers",
    "torch.manual_seed(9)": "`f` changed the state of the random numbers",
    "np.random.rand()": "`f` changed the state of the random numbers",
    "random.random()": "`f` changed the state of the random numbers",
    "torch.set_default_dtype(torch.float64)": "`f` changed torch's default dtype globally, from torch.float32 to",
    "torch.set_grad_enabled(False)": "`f` changed whether gradients are recorded globally, from True to False",
    "torch.autograd.graph.saved_tensors_hooks(id, id).__enter__()": "`f` changed the saved-tensor hooks globally",
}


@pytest.mark.parametrize("code", SPOILS)
def test_what_is_changed_is_refused_in_one_sentence(code):
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_default_dtype()
    names = {"nn": nn, "np": np, "random": random}
    try:
        feedback = ask_check(f"def f(model, x):\n    {code}\nq9.check(f)", call_with_everything, **names)
    finally:
        if "saved_tensors_hooks" in code:
            torch._C._autograd._pop_saved_tensors_default_hooks()
    assert feedback.outcome == "wrong"
    assert feedback.message.startswith(SPOILS[code])
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[1].tolist(), random.getstate(), torch.get_default_dtype())


@pytest.mark.parametrize("look", ["capture(model)", "record(model)", "edit(model)"])
def test_an_answer_may_look_with_hookscope_whose_own_hooks_are_not_the_answer_s(look):
    code = f"def f(model):\n    with hookscope.{look}:\n        model(torch.ones(1, 1))\nq9.check(f)"
    feedback = ask_check(code, lambda f: f(nn.Sequential(nn.Linear(1, 1))), hookscope=hookscope, torch=torch)
    assert feedback.outcome == "right", feedback.message


def test_what_a_check_says_itself_comes_first_and_what_it_allows_passes():
    code = "def f(model, x):\n    model.eval()\n    x[0].zero_()\nq9.check(f)"

    def judges(answer):
        call_with_everything(answer)
        return Wrong("its own words")

    assert ask_check(code, judges).message == "its own words"
    assert ask_check(code, allows("training")(lambda answer: call_with_everything(answer))).message.startswith(
        "`f` changed the numbers"
    )
    assert ask_check(code, allows("values", "training")(lambda answer: call_with_everything(answer))).outcome == "right"
    with pytest.raises(ValueError, match="there is no kind of change 'hoks'; there are: values"):
        allows("hoks")


def test_a_check_that_stumbles_over_a_change_names_the_change():
    def stumbles(answer):
        answer(model := nn.Linear(1, 1))
        model(torch.ones(1, 1))

    code = "def f(model):\n    model.forward = None\nq9.check(f)"
    assert ask_check(code, stumbles).message.startswith("`f` replaced `forward` of `model`")
    hook = "def f(model):\n    model.register_forward_hook(lambda module, args: None)\nq9.check(f)"
    assert ask_check(hook, stumbles).message.startswith("`f` left a hook on `model`")


def use_hook(make):
    module = nn.ReLU()
    module.register_forward_hook(make(2))
    module(torch.ones(2))


HOOK_MAKERS = {
    "function": "def f(n):\n    def hook(module, args, output):\n        output.mul_(n)\n    return hook",
    "lambda": "f = lambda n: lambda module, args, output: output.mul_(n)",
    "partial": "def scale(n, module, args, output):\n    output.mul_(n)\nf = lambda n: functools.partial(scale, n)",
    "class": "class f:\n    def __init__(self, n):\n        self.n = n\n    def __call__(self, module, args, output):\n"
    "        output.mul_(self.n)",
    "method": "class Scale:\n    def __init__(self, n):\n        self.n = n\n"
    "    def hook(self, module, args, output):\n"
    "        output.mul_(self.n)\nf = lambda n: Scale(n).hook",
    "generator": "def f(n):\n    def hook(module, args, output):\n        output.mul_(n)\n    yield hook",
}


@pytest.mark.parametrize("style", HOOK_MAKERS)
def test_a_hook_that_an_answer_returns_or_yields_is_guarded_too(style):
    code = HOOK_MAKERS[style]
    use = (lambda make: use_hook(lambda n: next(make(n)))) if style == "generator" else use_hook
    names = {"functools": functools}
    assert ask_check(f"{code}\nq9.check(f)", use, **names).message.startswith(
        "your hook changed the numbers in `output`"
    )
    right = code.replace("output.mul_(self.n)", "return output * self.n").replace("output.mul_(n)", "return output * n")
    right = right.replace(": return", ":")  # in a lambda
    assert ask_check(f"{right}\nq9.check(f)", use, **names).outcome == "right"


def test_a_guarded_answer_is_what_it_was():
    def double(module, args, *, times=2):
        """Say it."""

    class Net(nn.Module):
        pass

    guard = Guard()
    guarded = guard.guard(double)
    assert inspect.signature(guarded) == inspect.signature(double)
    assert (guarded.__name__, guarded.__defaults__, repr(guarded)) == ("double", None, repr(double))
    assert guarded == double == guarded
    assert {double: 1}[guarded] == 1
    guarded.mark = 3
    assert double.mark == 3
    cls = guard.guard(Net)
    assert isinstance(cls, type)
    assert issubclass(cls, nn.Module)
    assert type(cls()) is Net  # a module stays itself

    class Sub(cls):
        pass

    assert Sub.__mro__[1] is Net
    module, tensor, block = nn.ReLU(), torch.ones(1), contextlib.nullcontext()
    assert [guard.guard(value) for value in (module, tensor, block, 3, "x", None)] == [
        module,
        tensor,
        block,
        3,
        "x",
        None,
    ]
    assert guard.guard(guarded) is guarded

    class Seen(list):
        def __call__(self, grad):
            self.append(grad)

    assert [*guard.guard(Seen([3]))] == [3]
    assert guard.guard(lambda hook: hook)(double) is double
    partial = guard.guard(functools.partial(double, times=3))
    assert partial.keywords == {"times": 3}
    assert type(partial) is GuardedCallable


def test_a_context_manager_may_have_its_hooks_on_until_its_block_ends():
    module = nn.Identity()

    def use(watch):
        for _ in range(2):
            with watch(module) as seen:
                module(torch.ones(2))
            if len(seen) != 1:
                return Wrong(f"{len(seen)} outputs")
        with contextlib.suppress(KeyError), watch(module):
            raise KeyError
        return None

    code = (
        "@contextlib.contextmanager\ndef f(module):\n    seen = []\n"
        "    handle = module.register_forward_hook(lambda m, a, out: seen.append(out))\n"
        "    try:\n        with torch.no_grad():\n            yield seen\n    finally:\n        {end}\nq9.check(f)"
    )
    assert ask_check(code.format(end="handle.remove()"), use, contextlib=contextlib).outcome == "right"
    assert ask_check(
        code.format(end="pass"), lambda watch: use(watch) and None, contextlib=contextlib
    ).message.startswith("`f` left a hook on `module`")
    assert ask_check(code.format(end="handle.remove(); torch.rand(1)"), use, contextlib=contextlib).message.startswith(
        "`f` changed the state of the random numbers"
    )


def test_an_error_inside_guarded_code_still_names_the_learner_s_line():
    code = "def f(n):\n    def hook(module, args, output):\n        return output.nope\n    return hook\nq9.check(f)"
    assert ask_check(code, use_hook).message.startswith(
        "line 2 of your hook (`return output.nope`) raised AttributeError"
    )
    todo = "def f(n):\n    def hook(module, args, output):\n        return ____\n    return hook\nq9.check(f)"
    assert ask_check(todo, use_hook, ____=____).outcome == "not attempted"


@pytest.mark.parametrize("answer", [torch.ones(1), None, "f", [1]])
def test_a_result_instead_of_the_function_is_told(answer):
    feedback = make_exercise(call_with_everything).check(answer)
    assert feedback.outcome == "wrong"
    assert "the check needs `double` itself, with no parentheses after it" in feedback.message


def test_probes_tell_registrations_and_swallowed_errors():
    module = nn.Linear(1, 1)
    with record_registrations() as registered:
        module.register_full_backward_hook(print).remove()
        module.register_forward_pre_hook(print)
        module.weight.register_hook(print)
    module.register_forward_hook(print)
    assert registered == ["backward", "forward pre", "tensor"]
    breaks = nn.Sequential(BreakingLayer())
    assert not hides_errors(lambda: breaks(torch.ones(1)))

    def quiet():
        with contextlib.suppress(Exception):
            breaks(torch.ones(1))

    assert hides_errors(quiet)
