"""Exercises of chapter 04: edits in a row, a pre-hook that standardises, and a guard with a hole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import samples
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


class _Double(nn.Module):
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


def _check_result(result: object) -> Wrong | None:
    if isinstance(result, Tensor) and result.numel() == 1:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, int | float):
        return Wrong(f"the answer is a number, not a {type(result).__name__}")
    double = _Double()
    double.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    double.register_forward_pre_hook(lambda module, args: (10 * args[0],), prepend=True)
    double.register_forward_pre_hook(lambda module, args: (args[0] - 2,), prepend=True)
    expected = double(torch.tensor([3.0])).item()
    if result == expected:
        return None
    reasons = {
        expected / 2: f"{expected / 2:g} is what `forward` gets; `double` then returns twice that",
        76: "that is the order of registration, but two of the hooks are prepended",
        58: "both are prepended, and the later one goes in front of the earlier: `minus_two` is the first",
        6: "with 6 the input would be unchanged, but all three hooks return something",
    }
    return Wrong(reasons.get(float(result), f"it is not {result:g}; write down what each hook hands to the next"))


q1 = Exercise(
    "04.1",
    question="""What does the last line return? Say it before you run it. `double` returns `2 * x`, and `x` is 3.
```
def add_one(module, args):
    return (args[0] + 1,)

def ten_times(module, args):
    return (10 * args[0],)

def minus_two(module, args):
    return (args[0] - 2,)

double.register_forward_pre_hook(add_one)
double.register_forward_pre_hook(ten_times, prepend=True)
double.register_forward_pre_hook(minus_two, prepend=True)
double(x)
```""",
    difficulty="easy",
    minutes=4,
    check=_check_result,
    why="`minus_two` makes 1, `ten_times` 10, `add_one` 11, and `forward` doubles that.",
    hints=(
        "Write down the line of the three hooks. Each `prepend=True` goes to the front of the line as it is then.",
        "The line is `minus_two`, `ten_times`, `add_one`. Send 3 through it; `forward` comes last.",
    ),
    solution="""
q1.check(22)
""",
    wrong={
        "q1.check(11)\n": "what `forward` gets",
        "q1.check(76)\n": "two of the hooks are prepended",
        "q1.check(58)\n": "goes in front of the earlier",
        "q1.check(6)\n": "the input would be unchanged",
        "q1.check(40)\n": "it is not 40",
        'q1.check("22")\n': "a number, not a str",
    },
)


def _check_standardise(standardise: Callable[[float, float], Any]) -> Wrong | None:
    for mean, std in ((2.0, 4.0), (0.0, 2.0)):
        hook = standardise(mean, std)
        if not callable(hook):
            return Wrong(f"`standardise({mean:g}, {std:g})` returned {_numbers(hook)}; it should return the hook")
        keeper, x = _Keeper(), torch.tensor([10.0, 6.0])
        expected = (x - mean) / std
        returned: list[Any] = []

        def watched(module: nn.Module, args: Any, hook: Any = hook, returned: list[Any] = returned) -> Any:
            returned.append(hook(module, args))
            return returned[-1]

        keeper.register_forward_pre_hook(watched)
        keeper(x)
        if _numbers(x) != "[10, 6]":
            return Wrong(f"the caller's tensor was [10, 6] and is now {_numbers(x)}; make a new one and leave x alone")
        if returned[0] is None:
            return Wrong("your hook returned None, so the layer got [10, 6] as it was")
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
    return None


q2 = Exercise(
    "04.2",
    question="Write `standardise(mean, std)`. It returns a pre-hook. With it, a layer gets `(x - mean) / std` instead "
    "of its first argument `x`. Further arguments, if there are any, arrive as they are, and the caller's tensor "
    "stays as it is.",
    difficulty="medium",
    minutes=6,
    check=_check_standardise,
    why="`x - mean` makes a new tensor, and the tuple that you return stands for all arguments.",
    hints=(
        "A function inside a function, as `cover` in section 5: the inner one is the hook, with `(module, args)`.",
        "`args[0]` is the first argument, `args[1:]` is a tuple of all others, often empty.",
        "Return `((args[0] - mean) / std, *args[1:])`.",
    ),
    solution="""
def standardise(mean, std):
    def hook(module, args):
        return ((args[0] - mean) / std, *args[1:])

    return hook

q2.check(standardise)
""",
    wrong={
        """
def standardise(mean, std):
    def hook(module, args):
        return (args[0] - mean) / std

    return hook

q2.check(standardise)
""": "a call with two arguments reached the layer with 1",
        """
def standardise(mean, std):
    def hook(module, args):
        args[0].sub_(mean).div_(std)

    return hook

q2.check(standardise)
""": "the caller's tensor was [10, 6] and is now [2, 1]",
        """
def standardise(mean, std):
    def hook(module, args):
        x = (args[0] - mean) / std

    return hook

q2.check(standardise)
""": "your hook returned None",
        """
def standardise(mean, std):
    def hook(module, args):
        return [(args[0] - mean) / std]

    return hook

q2.check(standardise)
""": "your hook returned a list",
        """
def standardise(mean, std):
    def hook(module, args):
        return (args[0] - mean / std, *args[1:])

    return hook

q2.check(standardise)
""": "the layer got [9.5, 5.5] instead of [10, 6]; it should get [2, 1]",
        """
def standardise(mean, std):
    def hook(module, args):
        return (args - mean) / std

    return hook

q2.check(standardise)
""": "line 2 of your hook",
        """
def standardise(module, args):
    return (args[0],)

q2.check(standardise)
""": "raised TypeError",
        """
def standardise(mean, std):
    def hook(module, args):
        return ((args[0] - mean) / std, *args[1:])

q2.check(standardise)
""": "`standardise(2, 4)` returned None; it should return the hook",
        """
def standardise(mean, std):
    def hook(module, args):
        return tuple((x - mean) / std if torch.is_tensor(x) else None for x in args)

    return hook

q2.check(standardise)
""": "arrived as None",
    },
)


def _read_with(value: float) -> int:
    """What the network reads when one pixel of an 8 has this value."""
    eight = samples.digit(8)
    eight[0, 0, 3, 3] = value
    return int(samples.digit_cnn()(eight).argmax())


def _check_guard(guard: Callable[..., Any]) -> Wrong | None:
    keeper = _Keeper()
    keeper.register_forward_pre_hook(guard)
    good = torch.tensor([[0.0, 0.5, 1.0]])
    before = good.clone()
    try:
        keeper(good)
    except ValueError:
        return Wrong("your guard refused a good picture, with the values 0, 0.5 and 1; 0 and 1 are allowed")
    if not torch.equal(good, before) or not (keeper.got and isinstance(keeper.got[0], Tensor)):
        return Wrong("your guard changed a good picture; it should only look, and raise or return None")
    if keeper.got[0].dtype != before.dtype or not torch.equal(keeper.got[0], before):
        return Wrong(f"a good picture, {_numbers(before)}, reached the model as {_numbers(keeper.got[0])}; only look")
    bad = {"-0.5": -0.5, "1.5": 1.5, "inf": float("inf"), "NaN": float("nan")}
    for name, value in bad.items():
        for place in range(3):
            x = before.clone()
            x[0, place] = value
            try:
                keeper(x)
            except ValueError:
                continue
            came = f"a picture with one value {name} in it came through your guard"
            read = _read_with(value)
            return Wrong(came if read == 8 else f"{came}; with it the network reads an 8 as a {read}")
    return None


q3 = Exercise(
    "04.3",
    question="""This is the part of the guard that looks at the values. It should refuse, with a `ValueError`, every \
picture that has a value not from 0 to 1. Some broken pictures come through all the same. Find the defect and mend it.
```
def range_guard(module, args):
    x = args[0]
    if x.min() < 0 or x.max() > 1:
        raise ValueError("expected values from 0 to 1")
```""",
    difficulty="medium",
    minutes=5,
    check=_check_guard,
    why="NaN is neither below 0 nor above 1; ask whether all is well, and refuse everything else.",
    hints=(
        "What could a broken scanner send that is no number between anything? Hang up the guard and try.",
        'Run `torch.tensor(float("nan")) < 0`, and the same with `> 1`, `>= 0`, `<= 1`.',
        "Turn the question round: `if not (…)`, with what must be true of a good picture in the brackets.",
    ),
    solution="""
def range_guard(module, args):
    x = args[0]
    if not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("expected values from 0 to 1")

q3.check(range_guard)
""",
    wrong={
        """
def range_guard(module, args):
    x = args[0]
    if x.min() < 0 or x.max() > 1:
        raise ValueError("expected values from 0 to 1")

q3.check(range_guard)
""": "one value NaN in it came through your guard; with it the network reads an 8 as a 0",
        """
def range_guard(module, args):
    if args[0].isnan().any():
        raise ValueError("expected values from 0 to 1")

q3.check(range_guard)
""": "one value -0.5 in it came through",
        """
def range_guard(module, args):
    x = args[0]
    if not (x.min() > 0 and x.max() < 1):
        raise ValueError("expected values from 0 to 1")

q3.check(range_guard)
""": "refused a good picture",
        """
def range_guard(module, args):
    return (args[0].nan_to_num().clamp(0, 1),)

q3.check(range_guard)
""": "one value -0.5 in it came through",
        """
def range_guard(module, args):
    return (args[0] > 0.5,)

q3.check(range_guard)
""": "reached the model as",
        """
def range_guard(module, args):
    if not (args.min() >= 0 and args.max() <= 1):
        raise ValueError("expected values from 0 to 1")

q3.check(range_guard)
""": "line 2 of your range_guard",
    },
)
