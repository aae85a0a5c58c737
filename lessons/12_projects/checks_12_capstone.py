"""The capstone of chapter 12: a ledger of every call, tried on networks that the page does not show; six points."""

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
from hookscope_course.practice import Wrong, blind_to

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
    expected, found = ["first", "act", "second", "act"], list[list[dict[str, Any]]]()
    for times in (1, 2):
        with ledger(net) as rows:
            for _ in range(times):
                net(torch.ones(1, 1))
        if (got := _column(rows, "layer")) != times * expected:
            return f"a ReLU is called twice, and your layers are {got}, not {times * expected}"
        found.append(rows)
    if len(found[0]) != len(expected):
        return f"a second `with` block has changed the rows of the first: there were 4, now {len(found[0])}"
    return None


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"x": x, "pair": [x, None]}


def _opens_outputs(ledger: Ledger) -> str | None:
    for net, what, expected in (
        (nn.Sequential(nn.LSTM(1, 2, batch_first=True)), "an LSTM returns tensors of 6, 2 and 2 numbers", 40),
        (nn.Sequential(_Pair()), "a layer returns 3 numbers in a dict and again in a list in it", 24),
        (nn.Sequential(_Pair()).double(), "a layer returns 3 numbers of float64 in a dict, and again in a list", 48),
    ):
        with ledger(net) as rows:
            net(torch.ones(1, 3, 1, dtype=torch.float64 if expected == 48 else torch.float32))
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
    same, graph = torch.equal(output, expected), output.requires_grad
    del output
    gc.collect()
    if not same:
        return "the model's output is another with your ledger"
    if not graph:
        return "with your ledger, the model's output has lost its gradient"
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


@blind_to(swallows_errors="layers raise in the `with` block, and point 5 sees to it that this comes through")
def check_q7(ledger: Ledger) -> Wrong | None:
    lines, points = [], 0
    for number, (asked, point) in enumerate(_RUBRIC, start=1):
        try:
            problem = point(ledger)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
        points += problem is None
        lines.append(f"{number}. {'✓' if problem is None else '✗'} {asked}{f': {problem}' if problem else ''}")
    return None if points == len(_RUBRIC) else Wrong("\n".join([f"{points} of {len(_RUBRIC)} points.", *lines]))
