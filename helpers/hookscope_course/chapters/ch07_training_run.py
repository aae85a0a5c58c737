"""A training run in which a gradient breaks, for the exercise of chapter 07 that hunts it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Length", "make_run"]


class Length(nn.Module):
    """Returns the length of each row."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the lengths, (rows, 1)."""
        return x.square().sum(dim=1, keepdim=True).sqrt()


def make_run(layers: int = 2, blank: int = 4, steps: int = 6) -> tuple[nn.Module, Callable[[], None]]:
    """Build a model that ends in a Length, and the function that trains it; one row of one batch is blank.

    Args:
        layers: how many Linear layers stand before the Length.
        blank: the step whose batch has the blank row; no such step, and the run is healthy.
        steps: how many steps there are.

    Example:
        >>> model, train = make_run()
        >>> train()
        >>> bool(model[0].weight.isnan().all())
        True

    """
    made = list[nn.Module]()
    for _ in range(layers):
        made += [nn.Linear(4, 4, bias=False), nn.Tanh()]
    model = nn.Sequential(*made, Length(), nn.Linear(1, 1)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5)
    rows = torch.rand(steps, 3, 4, generator=generator, dtype=torch.float64)
    if blank < steps:
        rows[blank, 1] = 0

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in rows:
            optimizer.zero_grad()
            (model(batch) - 1).square().mean().backward()
            optimizer.step()

    return model, train
