"""The example layers of `GradInputExplorer`, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["LAYERS", "ExampleLayer"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ExampleLayer:
    """One example layer and its inputs.

    Attributes:
        make: a function of bias and inplace that creates the layer.
        shapes: input shapes that it accepts. The first one is the default.
        options: the options that it has, of "bias" and "inplace".
        inputs: the number of its arguments.
        integer: whether the input contains integers, which cannot require grad.

    """

    make: Callable[[bool, bool], nn.Module]
    shapes: tuple[Shape, ...]
    options: tuple[str, ...] = ()
    inputs: int = 1
    integer: bool = False

    def arguments(self, shape: Shape, requires_grad: bool, inplace: bool) -> tuple[Tensor, ...]:
        """Create the inputs. They are always the same, and torch's random state does not change."""
        numbers = torch.Generator().manual_seed(1)
        if self.integer:
            return (torch.randint(7, shape, generator=numbers),)
        made = [torch.randn(shape, generator=numbers).requires_grad_(requires_grad) for _ in range(self.inputs)]
        # torch does not allow an in-place operation on a leaf that requires grad.
        return tuple(tensor.clone() if inplace and requires_grad else tensor for tensor in made)


class Sum(nn.Module):
    """A module with three arguments and two autograd nodes."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x + y + z


class Product(nn.Module):
    """A module with two arguments and one autograd node."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class TwoHeads(nn.Module):
    """A module with two outputs, in a tuple or a dict."""

    def __init__(self, bias: bool, as_dict: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5, bias), nn.Linear(4, 2, bias)
        self.as_dict = as_dict

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor] | dict[str, Tensor]:  # noqa: A002
        one, two = self.one(input), self.two(input)
        return {"one": one, "two": two} if self.as_dict else (one, two)


class _ConstantArgument(ExampleLayer):
    """An example layer whose last argument does not require grad."""

    def arguments(self, shape: Shape, requires_grad: bool, inplace: bool) -> tuple[Tensor, ...]:
        *first, last = super().arguments(shape, requires_grad, inplace)
        return (*first, last.detach())


_ROWS, _IMAGE = ((3, 4), (4,), (2, 3, 4)), ((2, 3, 6, 6), (3, 6, 6))
_SEQUENCES = ((2, 3, 4), (3, 4))

LAYERS = {
    "Linear": ExampleLayer(lambda bias, _: nn.Linear(4, 5, bias), _ROWS, ("bias",)),
    "Conv1d": ExampleLayer(lambda bias, _: nn.Conv1d(3, 8, 3, bias=bias), ((2, 3, 8), (3, 8)), ("bias",)),
    "Conv2d": ExampleLayer(lambda bias, _: nn.Conv2d(3, 8, 3, bias=bias), _IMAGE, ("bias",)),
    "BatchNorm2d": ExampleLayer(lambda *_: nn.BatchNorm2d(3), ((2, 3, 4, 4),)),
    "LayerNorm": ExampleLayer(lambda bias, _: nn.LayerNorm(4, bias=bias), _ROWS, ("bias",)),
    "Embedding": ExampleLayer(lambda *_: nn.Embedding(7, 3), ((2, 5), (5,)), integer=True),
    "ReLU": ExampleLayer(lambda _, inplace: nn.ReLU(inplace), _ROWS, ("inplace",)),
    "Dropout": ExampleLayer(lambda _, inplace: nn.Dropout(0.5, inplace), _ROWS, ("inplace",)),
    "MaxPool2d": ExampleLayer(lambda *_: nn.MaxPool2d(2), _IMAGE),
    "Flatten": ExampleLayer(lambda *_: nn.Flatten(), ((2, 3, 4),)),
    "Identity": ExampleLayer(lambda *_: nn.Identity(), _ROWS),
    "Sequential(Linear, ReLU)": ExampleLayer(
        lambda bias, inplace: nn.Sequential(nn.Linear(4, 5, bias), nn.ReLU(inplace)), _ROWS, ("bias", "inplace")
    ),
    "Sequential(ReLU, Linear)": ExampleLayer(
        lambda bias, inplace: nn.Sequential(nn.ReLU(inplace), nn.Linear(4, 5, bias)), _ROWS, ("bias", "inplace")
    ),
    "LSTM": ExampleLayer(lambda bias, _: nn.LSTM(4, 5, bias=bias, batch_first=True), _SEQUENCES, ("bias",)),
    "MultiheadAttention": ExampleLayer(
        lambda bias, _: nn.MultiheadAttention(4, 2, bias=bias, batch_first=True), _SEQUENCES, ("bias",), inputs=3
    ),
    "x * y": ExampleLayer(lambda *_: Product(), ((2, 3),), inputs=2),
    "x * y, y without requires_grad": _ConstantArgument(lambda *_: Product(), ((2, 3),), inputs=2),
    "x + y + z": ExampleLayer(lambda *_: Sum(), ((2, 3),), inputs=3),
    "output is a tuple": ExampleLayer(lambda bias, _: TwoHeads(bias, False), _ROWS, ("bias",)),
    "output is a dict": ExampleLayer(lambda bias, _: TwoHeads(bias, True), _ROWS, ("bias",)),
}
"""Maps the name of each example layer to it."""
