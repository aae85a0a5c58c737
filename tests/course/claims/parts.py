"""What the demonstrations share."""

from __future__ import annotations

import torch
from torch import nn


class Double(nn.Module):
    """Returns 2 * x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def doubling() -> nn.Linear:
    """A Linear layer with the single weight 2 and no bias: y = 2 x."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    return layer


THREE = torch.tensor([[3.0]])


class Product(nn.Module):
    """Returns x1 * x2 * W, with W = 5."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0]))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return x1 * x2 * self.W
