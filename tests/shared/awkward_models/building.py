"""What awkward models are built of, and how a builder is entered in `MODELS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
MODELS: dict[str, Callable[[], Case]] = {}


class Do(nn.Module):
    """A leaf that does what it is told."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Own(nn.Module):
    """A leaf with a parameter and a buffer: `function(self, *args)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4))
        self.register_buffer("seen", torch.zeros(2, 4))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Net(nn.Module):
    """What to do, `forward(self, *args, **kwargs)`, and by name what it is done with: layers, parameters, buffers."""

    def __init__(self, forward: Callable[..., Any], /, **attributes: Any) -> None:
        super().__init__()
        self.run = forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


class Pair(NamedTuple):
    """A named tuple as an output."""

    low: Tensor
    high: Tensor


@dataclasses.dataclass
class Result:
    """A dataclass as an output, as `transformers` has them."""

    logits: Tensor
    parts: list[Tensor]
    note: str = "fine"


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataclass that takes no assignment."""

    value: Tensor


class Doubling(torch.autograd.Function):
    """Doubles its input in place, the official way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def seed(number: int) -> None:
    """Seed the CPU alone: `torch.manual_seed` formats its whole call stack once for every sort of accelerator."""
    torch.default_generator.manual_seed(number)


def model(name: str) -> Callable[[Callable[[], Any]], Callable[[], Case]]:
    """Enter a builder of `model` or `(model, *args)` or a whole case in `MODELS`, with a fixed seed."""

    def enter(build: Callable[[], Any]) -> Callable[[], Case]:
        @wraps(build)
        def seeded() -> Case:
            with torch.random.fork_rng(devices=[]):
                seed(0)
                built = build()
                if isinstance(built, nn.Module):
                    built = built, torch.randn(2, 4)
                if not (len(built) == 3 and isinstance(built[2], dict)):
                    built = built[0], tuple(built[1:]), {}
                return built

        assert name not in MODELS, name
        MODELS[name] = seeded
        return seeded

    return enter


def images(*shape: int) -> Tensor:
    """Random images that need a gradient where the mode allows one."""
    return torch.rand(*shape)


def silently(function: Callable[..., Any]) -> Callable[..., None]:
    """A hook that does what it is told and returns nothing."""

    def hook(*args: Any) -> None:
        function(*args)

    return hook
