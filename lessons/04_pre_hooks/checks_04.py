"""Exercises of chapter 04: consecutive edits, a pre-hook that standardizes, and a guard with a hole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hookscope import samples
from hookscope_course.practice import Wrong
from hookscope_course.practice.check_helpers import add_foreign_hooks, format_numbers
from hookscope_course.practice.exercise_kinds import hook_that, returns
from hookscope_course.practice.probe_models import KeepsArguments, make_double


def _send_through() -> float:
    double = make_double()
    double.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    double.register_forward_pre_hook(lambda module, args: (10 * args[0],), prepend=True)
    double.register_forward_pre_hook(lambda module, args: (args[0] - 2,), prepend=True)
    return float(double(torch.tensor([3.0])))


check_q1 = returns(
    _send_through,
    what="a number",
    reasons={
        11: "11 is the input of `forward`, but `double` returns twice that",
        76: "you get 76 if the hooks run in the order of registration, but two of them were prepended; write down "
        "the order first and put each prepended hook in front of the earlier ones",
        58: "you get 58 if `ten_times` is the first. Both are prepended, and the later one goes in front of the "
        "earlier; so begin with `minus_two`",
        6: "you get 6 if the hooks do not change the input, but each of the three returns a new one; send 3 "
        "through them one by one",
    },
    otherwise="the last line does not return {answer}; write down the order of the hooks and the value that each of "
    "them passes on",
)


def standardize(x: Tensor, mean: float, std: float) -> Tensor:
    return (x - mean) / std


check_q2 = hook_that(
    changes=standardize,
    settings=[(2.0, 4.0), (0.0, 2.0), (0.0, 0.001), (0.5, 0.25)],
    sample=(10.0, 6.0),
    is_pre_hook=True,
)


def _read_with(value: float) -> int:
    """What the network reads when one pixel of an 8 has this value."""
    eight = samples.digit(8)
    eight[0, 0, 3, 3] = value
    return int(samples.digit_cnn()(eight).argmax())


def check_q3(guard: Callable[..., Any]) -> Wrong | None:
    batch = torch.rand(2, 1, 2, 2, dtype=torch.float64)
    for good in (torch.tensor([[0.0, 0.5, 1.0]]), batch, torch.zeros(1, 4), torch.ones(1, 4)):
        if wrong := _wrong_guard(guard, good):
            return wrong
    keeper, asking = KeepsArguments(), torch.rand(2, 3, requires_grad=True)
    keeper.register_forward_pre_hook(guard)
    keeper(asking, "second")
    if len(keeper.args) != 2 or keeper.args[1] != "second":
        return Wrong("your guard lost a second argument; it should only check the image and return None")
    if not keeper.args[0].requires_grad:
        return Wrong("a good image required grad, but reached the model without it; your guard should only check")
    return None


def _wrong_guard(guard: Callable[..., Any], good: Tensor) -> Wrong | None:
    keeper = KeepsArguments()
    add_foreign_hooks(keeper).register_forward_pre_hook(guard)
    before = good.clone()
    try:
        keeper(good)
    except ValueError:
        return Wrong(f"your guard refused a good image, {format_numbers(before)}; 0 and 1 are also allowed")
    if not torch.equal(good, before) or not (keeper.args and isinstance(keeper.args[0], Tensor)):
        return Wrong("your guard changed a good image; it should either raise an error or return None")
    if keeper.args[0].dtype != before.dtype or not torch.equal(keeper.args[0], before):
        return Wrong(
            f"your guard changed a good image from {format_numbers(before)} to {format_numbers(keeper.args[0])}; "
            "it should only check"
        )
    bad = {"-0.5": -0.5, "1.5": 1.5, "inf": float("inf"), "-inf": -float("inf"), "NaN": float("nan")}
    bad |= {"-0.000001": -1e-6, "1.000001": 1 + 1e-6}
    for name, value in bad.items():
        for place in range(before.numel()):
            x = before.clone()
            x.view(-1)[place] = value
            try:
                keeper(x)
            except ValueError:
                continue
            except AssertionError:
                return Wrong("your guard raises an AssertionError for a bad image; it should raise a ValueError")
            if not torch.equal(keeper.args[0].nan_to_num(), x.nan_to_num()):
                return Wrong(f"your guard changed an image with one value {name}; it should raise a ValueError")
            read = _read_with(value)
            if name == "NaN":  # it is for the learner to find out what is in there
                return Wrong(f"a broken image got past your guard; with it, the network reads an 8 as a {read}")
            came = f"an image with one value {name} in it got past your guard"
            return Wrong(came if read == 8 else f"{came}; with it, the network reads an 8 as a {read}")
    return None
