"""Exercises of chapter 04: edits in a row, a pre-hook that standardizes, and a guard with a hole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING, add_foreign_hooks


class _Doubler(nn.Module):
    """Returns 2 * x."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class _Keeper(nn.Module):
    """Keeps the arguments it gets."""

    got: tuple[Any, ...] = ()

    def forward(self, *args: Any) -> Any:
        self.got = args
        return args


def _numbers(x: object) -> str:
    if not isinstance(x, Tensor):
        return repr(x)
    return "[" + ", ".join(f"{value:g}" for value in x.flatten().tolist()) + "]"


def check_q1(result: object) -> Wrong | None:
    if isinstance(result, Tensor) and result.numel() == 1:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, int | float):
        return Wrong(f"the answer is a number, not a {result.__class__.__name__}")
    double = _Doubler()
    double.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    double.register_forward_pre_hook(lambda module, args: (10 * args[0],), prepend=True)
    double.register_forward_pre_hook(lambda module, args: (args[0] - 2,), prepend=True)
    expected = double(torch.tensor([3.0])).item()
    if result == expected:
        return None
    reasons = {
        expected / 2: f"{expected / 2:g} is what `forward` gets, and `double` returns twice that",
        76: "you get 76 if the hooks run in the order of registration, but two of them were prepended; write down "
        "the order first, and put each prepended hook in front of the earlier ones",
        58: "you get 58 if `ten_times` is the first. Both are prepended, and the later one goes in front of the "
        "earlier; so begin with `minus_two`",
        6: "you get 6 if the hooks do not change the input, but each of the three returns a new one; send 3 "
        "through them one by one",
    }
    other = f"{result:g} is not what the last line returns; write down in which order the hooks run, and what each of "
    return Wrong(reasons.get(float(result), f"{other}them passes to the next"))


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(standardize: Callable[[float, float], Any]) -> Wrong | None:
    hooks = {settings: standardize(*settings) for settings in ((2.0, 4.0), (0.0, 2.0), (0.0, 0.001))}
    for (mean, std), hook in hooks.items():
        if not callable(hook):
            return Wrong(f"`standardize({mean:g}, {std:g})` returned {_numbers(hook)}; it should return the hook")
        keeper, x = _Keeper(), torch.tensor([10.0, 6.0])
        add_foreign_hooks(keeper)
        expected = (x - mean) / std
        returned: list[Any] = []

        def watched(module: nn.Module, args: Any, hook: Any = hook, returned: list[Any] = returned) -> Any:
            returned.append(hook(module, args))
            return returned[-1]

        keeper.register_forward_pre_hook(watched)
        keeper(x)
        if _numbers(x) != "[10, 6]":
            return Wrong(
                f"the caller's tensor was [10, 6] and is now {_numbers(x)}; create a new tensor, and do not change x"
            )
        if returned[0] is None:
            return Wrong("your hook returned None, so the layer got [10, 6] unchanged")
        if isinstance(returned[0], list):
            return Wrong("your hook returned a list, so the layer got one argument, and that was the list")
        got = keeper.got[0] if keeper.got else None
        if not isinstance(got, Tensor):
            return Wrong(f"the layer got {got!r}; its first argument should be a tensor")
        if got.shape != x.shape or not torch.allclose(got, expected):
            return Wrong(
                f"with mean {mean:g} and std {std:g} the layer got {_numbers(got)} instead of [10, 6]; "
                f"it should get {_numbers(expected)}"
            )
        keeper(x, "second")
        if len(keeper.got) != 2:
            return Wrong(
                f"a call with two arguments reached the layer with {len(keeper.got)}: what your hook returns "
                "replaces all of `args`"
            )
        if keeper.got[1] != "second":
            return Wrong(f'the second argument was "second" and arrived as {keeper.got[1]!r}; hand it on as it is')
        third = torch.ones(2)
        keeper(x, "second", third)
        last: Any = keeper.got[-1]
        if last is not third:
            return Wrong("a third argument, a tensor, did not arrive unchanged; pass on all other arguments")
    return _wrong_shapes(standardize)


def _wrong_shapes(standardize: Callable[[float, float], Any]) -> Wrong | None:
    """Try images instead of two numbers, and see whether a gradient still goes through the hook."""
    for shape, dtype in (((2, 3, 4), torch.float64), ((5,), torch.float32)):
        keeper, x = _Keeper(), torch.randn(shape, dtype=dtype, requires_grad=True)
        keeper.register_forward_pre_hook(standardize(0.5, 0.25))
        keeper(x)
        got = keeper.got[0]
        if got.shape != x.shape or got.dtype != dtype or not torch.allclose(got, (x - 0.5) / 0.25):
            return Wrong(f"an input of shape {shape} and dtype {dtype} reached the layer as {got!r}")
        if not got.requires_grad:
            return Wrong("the values are right, but no gradient reaches the input through your hook")
    return None


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
    keeper, asking = _Keeper(), torch.rand(2, 3, requires_grad=True)
    keeper.register_forward_pre_hook(guard)
    keeper(asking, "second")
    if len(keeper.got) != 2 or keeper.got[1] != "second":
        return Wrong("your guard lost a second argument; it should only check, and return None")
    if not keeper.got[0].requires_grad:
        return Wrong("a good image that requires grad reached the model without it; it should only check")
    return None


def _wrong_guard(guard: Callable[..., Any], good: Tensor) -> Wrong | None:
    keeper = _Keeper()
    add_foreign_hooks(keeper).register_forward_pre_hook(guard)
    before = good.clone()
    try:
        keeper(good)
    except ValueError:
        return Wrong(f"your guard refused a good image, {_numbers(before)}; 0 and 1 are allowed, too")
    if not torch.equal(good, before) or not (keeper.got and isinstance(keeper.got[0], Tensor)):
        return Wrong("your guard changed a good image; it should only check, and raise an error or return None")
    if keeper.got[0].dtype != before.dtype or not torch.equal(keeper.got[0], before):
        return Wrong(f"a good image, {_numbers(before)}, reached the model as {_numbers(keeper.got[0])}; only check")
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
            read = _read_with(value)
            if name == "NaN":  # it is for the learner to find out what is in there
                return Wrong(f"a broken image got past your guard; with it, the network reads an 8 as a {read}")
            came = f"an image with one value {name} in it got past your guard"
            return Wrong(came if read == 8 else f"{came}; with it, the network reads an 8 as a {read}")
    return None
