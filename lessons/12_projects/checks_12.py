"""Exercises of chapter 12: a step that comes too early, a hunter that blames the wrong layer, and the capstone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope.censuses.census import census
from hookscope.layers.find import leaves
from hookscope_course.exercises import Wrong


def check_q1(answer: object) -> Wrong | None:
    if isinstance(answer, Tensor) and answer.numel() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return Wrong(f"the answer is a number, not a {type(answer).__name__}")
    weight = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))

    def step(weight: Tensor) -> None:
        assert weight.grad is not None
        weight.data -= 0.25 * weight.grad
        weight.grad = None

    with weight.register_post_accumulate_grad_hook(step):  # type: ignore[no-untyped-call]
        for _ in range(2):
            torch.autograd.backward(weight**2)
    if abs(answer - weight.item()) < 1e-9:
        return None
    reasons: dict[float, str] = {
        0: "that is the usual loop: both gradients were taken at 4 and added before one step",
        2: "that is the weight after the first `backward()`; there are two",
        4: "nothing has changed the weight then, but the hook steps inside `backward()`",
    }
    return Wrong(reasons.get(answer, f"it is not {answer:g}; what is the weight after the first `backward()`?"))


class _Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax()


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def _chain(**layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def check_q2(first_bad: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    inner = _chain(square=_Square(), act=nn.ReLU())
    model = _chain(stem=nn.Identity(), block=inner, divide=_Divide(), head=nn.Identity())
    cases: list[tuple[str, float, str | None]] = [
        ("zeros, where `divide` makes 0 / 0", 0.0, "divide"),
        ("1e30, whose square is inf", 1e30, "block.square"),
        ("a healthy 3", 3.0, None),
    ]
    for what, value, expected in cases:
        found = first_bad(model, torch.full((1, 2), value))
        if found != expected:
            return Wrong(f"with {what}, your function returned {found!r}, and it should be {expected!r}")
        if len(census(model, include_global=False)):
            return Wrong(f"with {what}, the name is right, but {len(census(model))} hooks are still on the model")

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("this layer stops")

    stopping = _chain(stem=nn.Identity(), stops=Stops())
    try:
        first_bad(stopping, torch.ones(1, 2))
    except ValueError:
        if len(census(stopping, include_global=False)):
            return Wrong(f"a layer raised, and {len(census(stopping))} hooks stayed on; take them off in a `finally`")
        return None
    return Wrong("a layer raised ValueError, and your function kept it to itself")


# -- the capstone -------------------------------------------------------------------------------------------------

Ledger = Callable[[nn.Module], AbstractContextManager[list[dict[str, Any]]]]


def _column(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _names_every_call(ledger: Ledger) -> str | None:
    net = samples.digit_cnn()
    with ledger(net) as rows:
        net(samples.digit(5))
    got, expected = _column(rows, "layer"), list(leaves(net))
    if got != expected:
        return f"on the digit CNN your layers are {got[:3]} … ({len(got)}), not {expected[:3]} … ({len(expected)})"
    size = rows[0]["bytes"]
    return None if size == 50176 else f"block1.conv returns 16 · 28 · 28 numbers of 4 bytes, 50176; you wrote {size}"


class _Twice(nn.Module):
    """One ReLU, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.first(x))))  # type: ignore[no-any-return]


def _counts_shared_calls(ledger: Ledger) -> str | None:
    net = _Twice()
    with ledger(net) as rows:
        net(torch.ones(1, 1))
    got, expected = _column(rows, "layer"), ["first", "act", "second", "act"]
    return None if got == expected else f"a ReLU is called twice, and your layers are {got}, not {expected}"


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"x": x, "pair": [x, None]}


def _opens_outputs(ledger: Ledger) -> str | None:
    for net, what, expected in (
        (nn.Sequential(nn.LSTM(1, 2, batch_first=True)), "an LSTM returns tensors of 6, 2 and 2 numbers", 40),
        (nn.Sequential(_Pair()), "a layer returns 3 numbers in a dict and again in a list in it", 24),
    ):
        with ledger(net) as rows:
            net(torch.ones(1, 3, 1))
        if _column(rows, "bytes") != [expected]:
            return f"{what}, {expected} bytes in all; you wrote {_column(rows, 'bytes')}"
    return None


def _reads_before_in_place(ledger: Ledger) -> str | None:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(inplace=True))
    net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    with ledger(net) as rows:
        net(torch.tensor([[3.0]]))
    got = [float(lowest) for lowest in _column(rows, "lowest")]
    return None if got == [-3, 0] else f"a Linear returns [3, -3], then an in-place ReLU; your lowest are {got}"


class _Stops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("this layer stops")


def _survives_errors(ledger: Ledger) -> str | None:
    net = nn.Sequential(nn.Linear(1, 1), _Stops())
    rows: list[dict[str, Any]] = []
    try:
        with ledger(net) as rows:
            net(torch.ones(1, 1))
    except ValueError:
        pass
    else:
        return "a layer raised ValueError, and your ledger swallowed it"
    if left := len(census(net, include_global=False)):
        return f"a layer raised, and {left} hooks stayed on"
    got = _column(rows, "layer")
    return None if got == ["0"] else f"layer 0 ran before layer 1 raised, and your layers are {got}"


def _leaves_no_trace(ledger: Ledger) -> str | None:
    net, x, fired, alive = nn.Sequential(nn.Linear(1, 4), nn.Tanh()), torch.ones(1, 1), [], []

    def someone_else(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        fired.append(module)
        alive.append(weakref.ref(output))

    expected = net(x)
    other = net[0].register_forward_hook(someone_else)
    with ledger(net) as rows:
        output = net(x)
    fired.clear()
    same = torch.equal(output, expected)
    del output
    gc.collect()
    if not same:
        return "the model's output is another with your ledger"
    if alive[0]() is not None or any(isinstance(value, Tensor) for row in rows for value in row.values()):
        return "your rows keep tensors alive; keep numbers (`.item()`)"
    left = len(census(net, include_global=False)) - 1
    net(x)
    if not fired:
        return "you took off a hook that someone else had put on"
    other.remove()
    return f"{left} of your hooks are still on the model" if left else None


_RUBRIC: tuple[tuple[str, Callable[[Ledger], str | None]], ...] = (
    ("a row for each call, in order, with name and bytes", _names_every_call),
    ("a shared layer has a row for each call", _counts_shared_calls),
    ("all tensors in a tuple, list or dict count", _opens_outputs),
    ("`lowest` is right before an in-place layer", _reads_before_in_place),
    ("after an exception: rows kept, hooks off", _survives_errors),
    ("no trace: same output, no tensor kept, others' hooks stay", _leaves_no_trace),
)


def check_q3(ledger: Ledger) -> Wrong | None:
    lines, points = [], 0
    for number, (asked, point) in enumerate(_RUBRIC, start=1):
        try:
            problem = point(ledger)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
        points += problem is None
        lines.append(f"{number}. {'✓' if problem is None else '✗'} {asked}{f': {problem}' if problem else ''}")
    return None if points == len(_RUBRIC) else Wrong("\n".join([f"{points} of {len(_RUBRIC)} points.", *lines]))
