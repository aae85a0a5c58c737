"""A clock that a test moves itself, so that what is said about times is tested on a machine of any speed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Clock", "TimedLayer", "TimedOperations", "count_python_calls"]


class Clock:
    """Stands where a module has `time`, and moves when the test says so.

    Attributes:
        now: nanoseconds.
        step: by how many it moves at each reading.

    """

    def __init__(self, step: int = 0) -> None:
        self.now, self.step = 0, step

    def perf_counter_ns(self) -> int:
        self.now += self.step
        return self.now

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9

    def time(self) -> float:
        return self.perf_counter()


class TimedLayer(nn.Module):
    """Hands its input on, and moves a clock: by `forward_ns` on the way, by `backward_ns` on the way back."""

    def __init__(self, clock: Clock, forward_ns: int, backward_ns: int = 0) -> None:
        super().__init__()
        self.clock, self.forward_ns, self.backward_ns = clock, forward_ns, backward_ns

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.forward_ns
        made: Tensor = _TimedFunction.apply(x, self.clock, self.backward_ns)
        return made


class _TimedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, backward_ns: int) -> Tensor:
        ctx.clock, ctx.backward_ns = clock, backward_ns
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.clock.now += ctx.backward_ns
        return grad, None, None


class TimedOperations(TorchDispatchMode):
    """While it is on, each operation of torch moves a clock by as many nanoseconds as it makes values."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.clock.now += sum(each.numel() for each in tree_leaves(made) if isinstance(each, Tensor))
        return made


def count_python_calls(run: Callable[[], object]) -> int:
    """Count the functions of Python that are called while something runs: its cost, without a clock."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
